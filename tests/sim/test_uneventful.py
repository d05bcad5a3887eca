"""Passing over uneventful steps gives what single steps give."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.sim.step_time import StepTime
from tests.sim.engines import engine, request, run

SPEED = StepTime(0.01, 0.001, 1e-6, 1e-4, 1e-8)


def play(until, mtp, shapes):
    """Some requests on an engine with a small pool; ends, tokens and how many calls it took."""
    subject = engine(mtp=mtp, num_gpu_blocks=61, max_model_len=500, max_num_seqs=6, step_time=SPEED)
    for number, (tokens, output) in enumerate(shapes):
        subject.submit(request(str(number), tokens, output=output), 0.0)
    finished, results = run(subject, until=until)
    return finished, len(results), subject.counters


@settings(max_examples=60, deadline=None)
@given(
    mtp=st.integers(0, 3),
    shapes=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 120)), min_size=1, max_size=12),
)
def test_same_as_single_steps(mtp, shapes):
    """Ends come at the same times in the same order, with the same counters, after fewer calls."""
    single, calls, counters = play(None, mtp, shapes)
    passed, fewer, passed_counters = play(inf, mtp, shapes)
    assert list(single) == list(passed)
    assert passed == pytest.approx(single, rel=1e-3)
    assert passed_counters == counters
    assert fewer <= calls


def test_it_saves_most_calls():
    """A lone long answer takes about one call a block, not one a token."""
    _, calls, _ = play(inf, 0, [(10, 400)])
    assert calls < 100


def test_horizon_is_kept():
    """No step that is passed over reaches beyond the time at which something may be submitted."""
    subject = engine(step_time=SPEED, block_tokens=1000, max_model_len=1000)
    subject.submit(request("a", 10, output=500), 0.0)
    now = subject.step(0.0).duration_s
    result = subject.step(now, now + 0.2)
    assert result.steps > 5
    assert result.duration_s <= 0.2
