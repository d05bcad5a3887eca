"""The scheduler's rules, one by one, on an engine of ten blocks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.engines import engine, request, run


def running_names(subject):
    """The running list, in order."""
    return [sequence.request.request_id for sequence in subject._running]


def test_one_request_end_to_end():
    """Prefill gives the first token, each further step one more, and in the end nothing is held."""
    subject = engine()
    subject.submit(request("a", 25, output=3), 0.0)
    finished, results = run(subject)
    assert finished == {"a": 3.0}
    assert [result.emitted for result in results] == [{"a": 1}] * 3
    assert subject.pool.used_blocks == subject.running == subject.waiting == 0


def test_idle_engine_does_nothing():
    """A step without work takes no time."""
    assert engine().step(5.0).duration_s == 0


def test_long_prompt_is_computed_in_chunks():
    """The token budget cuts a prompt into steps; the token comes after the last."""
    subject = engine(max_num_batched_tokens=20)
    subject.submit(request("a", 45), 0.0)
    _, results = run(subject)
    assert [result.emitted for result in results] == [{}, {}, {"a": 1}]


def test_running_goes_before_waiting():
    """A decoding request keeps its place in the budget when a long prompt arrives."""
    subject = engine(max_num_batched_tokens=20)
    subject.submit(request("a", 5, output=9), 0.0)
    subject.step(0.0)
    subject.submit(request("b", 45), 1.0)
    result = subject.step(1.0)
    assert result.emitted == {"a": 1}
    assert result.batch_tokens == 20


def test_max_num_seqs():
    """No more requests run than the limit, whatever room there is."""
    subject = engine(max_num_seqs=2)
    for name in "abc":
        subject.submit(request(name, 5, output=4), 0.0)
    subject.step(0.0)
    assert (subject.running, subject.waiting) == (2, 1)


def test_whole_prompt_must_fit():
    """A prompt is not begun while its last chunk would not fit, even if its first would."""
    subject = engine(max_num_batched_tokens=20)
    subject.submit(request("a", 55, output=5), 0.0)
    subject.step(0.0)
    subject.step(1.0)
    assert subject.pool.free_blocks == 6
    subject.submit(request("b", 60 - 1), 2.0)
    subject.step(2.0)
    subject.step(3.0)
    assert running_names(subject) == ["a"]


def test_head_of_line_blocks():
    """A small request behind a large one that does not fit waits with it, and both go in order."""
    subject = engine()
    subject.submit(request("a", 55, output=5), 0.0)
    subject.submit(request("large", 55), 0.0)
    subject.submit(request("small", 5), 0.0)
    subject.step(0.0)
    assert running_names(subject) == ["a"]
    assert subject.waiting == 2
    finished, _ = run(subject, now=1.0)
    assert finished["large"] == finished["small"] > finished["a"]


def test_last_one_is_preempted_and_comes_back_first():
    """When decoding needs a block and none is free, the last of the running list starts over, before all who wait."""
    subject = engine(max_num_seqs=3)
    for name in "abc":
        subject.submit(request(name, 29, output=20), 0.0)
    subject.submit(request("d", 5), 0.0)
    steps = [subject.step(float(now)) for now in range(3)]
    assert [result.preempted for result in steps] == [[], [], ["c"]]
    assert [sequence.request.request_id for sequence in subject._waiting] == ["c", "d"]
    assert subject.counters.preemptions == 1
    assert running_names(subject) == ["a", "b"]


def test_nobody_is_admitted_in_a_step_that_preempted():
    """Room that a preemption made is not given to the waiting line in the same step."""
    subject = engine(max_num_seqs=3)
    for name in "abc":
        subject.submit(request(name, 29, output=20), 0.0)
    subject.submit(request("d", 5), 0.0)
    results = [subject.step(float(now)) for now in range(3)]
    assert results[2].preempted
    assert not results[2].admitted


def test_preempted_request_still_gives_each_token_once():
    """Recomputing after a preemption repeats no output."""
    subject = engine(max_num_seqs=3)
    for name in "abc":
        subject.submit(request(name, 29, output=20), 0.0)
    _, results = run(subject)
    assert subject.counters.preemptions > 0
    for name in "abc":
        assert sum(result.emitted.get(name, 0) for result in results) == 20
    assert subject.counters.prefix_queries == 3 * 29
    assert subject.counters.prompt == 3 * 29


def test_hit_is_rounded_down_to_blocks():
    """A returning prompt finds its full blocks only."""
    subject = engine()
    subject.submit(request("a", 25), 0.0)
    run(subject)
    keys = [("a", 0), ("a", 1), ("b", 2)]
    subject.submit(request("b", 39, keys=keys), 9.0)
    assert subject.step(9.0).admitted[0].hit_tokens == 20
    assert subject.counters.prefix_hits == 20
    assert subject.counters.prefix_queries == 25 + 39


def test_last_prompt_token_is_always_computed():
    """A prompt that is cached to its end is matched one block short."""
    subject = engine()
    keys = [("a", 0), ("a", 1)]
    for name in "ab":
        subject.submit(request(name, 20, keys=keys), 0.0)
        run(subject)
    assert subject.counters.prefix_hits == 10


def test_drafting_costs_one_matched_block():
    """With MTP the last matched block is dropped."""
    subject = engine(mtp=1)
    keys = [("a", 0), ("a", 1), ("a", 2)]
    for name in "ab":
        subject.submit(request(name, 39, keys=keys), 0.0)
        run(subject)
    assert subject.counters.prefix_hits == 20


def test_answer_is_found_by_the_next_turn():
    """Blocks filled by generated tokens belong to the prefix of the turn that follows."""
    subject = engine()
    keys = [("a", index) for index in range(4)]
    subject.submit(request("a", 15, output=20, keys=keys), 0.0)
    run(subject)
    subject.submit(request("b", 45, keys=keys), 50.0)
    assert subject.step(50.0).admitted[0].hit_tokens == 30


def test_hit_is_judged_at_admission():
    """A prefix that was cached on arrival and evicted while waiting is computed anew."""
    subject = engine(max_num_seqs=1)
    subject.submit(request("a", 45), 0.0)
    run(subject)
    subject.submit(request("x", 59, output=1), 10.0)
    subject.submit(request("y", 59, output=1), 10.0)
    subject.submit(request("again", 49, keys=[("a", index) for index in range(4)]), 10.0)
    _, results = run(subject, now=10.0)
    admitted = {one.request_id: one.hit_tokens for result in results for one in result.admitted}
    assert admitted["again"] < 40


@pytest.mark.parametrize(("tokens", "fits"), [(39, True), (49, False)])
def test_idle_cached_blocks_count_as_consumed(tokens, fits):
    """Reusing idle blocks takes room: with four free, three cached and one new fit, four cached and one new do not."""
    subject = engine()
    subject.submit(request("old", 41), 0.0)
    run(subject)
    subject.submit(request("a", 55, output=5), 9.0)
    subject.step(9.0)
    assert subject.pool.free_blocks == 4
    subject.submit(request("again", tokens, output=5, keys=[("old", index) for index in range(4)]), 10.0)
    subject.step(10.0)
    assert running_names(subject) == (["a", "again"] if fits else ["a"])


def test_shared_running_blocks_cost_nothing():
    """Two running requests with one prefix hold its blocks once."""
    subject = engine()
    keys = [("shared", index) for index in range(4)]
    subject.submit(request("a", 45, output=5, keys=keys), 0.0)
    subject.step(0.0)
    subject.submit(request("b", 45, output=5, keys=keys), 1.0)
    subject.step(1.0)
    assert subject.pool.used_blocks == 6
    assert subject.held_blocks("a") == subject.held_blocks("b") == 5


@pytest.mark.parametrize(("mtp", "fit"), [(0, 5), (1, 3), (2, 2), (3, 2)])
def test_hybrid_state_blocks(mtp, fit):
    """Each running request holds its state blocks, times one plus the drafts."""
    subject = engine(state_blocks=1, num_gpu_blocks=11, max_model_len=30, mtp=mtp)
    for number in range(8):
        subject.submit(request(str(number), 5, output=2), 0.0)
    waited = subject.step(0.0) and subject.waiting
    assert 8 - waited == fit
    run(subject, now=1.0)
    assert subject.pool.used_blocks == 0


@pytest.mark.parametrize(("mtp", "tokens_per_step"), [(0, 1.0), (1, 1.62), (2, 2.05), (3, 2.35)])
def test_mtp_gains(mtp, tokens_per_step):
    """A decoder gains the stated tokens a step on average, and never more than one plus the drafts at once."""
    subject = engine(mtp=mtp, block_tokens=1000, max_model_len=1000)
    subject.submit(request("a", 5, output=900), 0.0)
    finished, results = run(subject)
    assert 899 / (finished["a"] - 1) == pytest.approx(tokens_per_step, rel=0.01)
    assert max(result.emitted["a"] for result in results) <= 1 + mtp


@pytest.mark.parametrize("steps_before", [0, 1, 4])
def test_abort_releases_everything(steps_before):
    """A request taken back while waiting, in prefill or decoding leaves nothing behind and makes way."""
    subject = engine(state_blocks=1, max_model_len=40, max_num_batched_tokens=20)
    subject.submit(request("a", 35, output=5), 0.0)
    for now in range(steps_before):
        subject.step(float(now))
    assert subject.abort("a")
    assert not subject.abort("a")
    assert not subject.has_work
    assert subject.pool.used_blocks == 0
    assert subject.counters.aborted == 1


def test_abort_of_a_blocking_head_unblocks_the_line():
    """When the head that did not fit is taken back, the next one is looked at."""
    subject = engine()
    subject.submit(request("a", 55, output=5), 0.0)
    subject.submit(request("large", 55), 0.0)
    subject.submit(request("small", 5, output=2), 0.0)
    subject.step(0.0)
    subject.abort("large")
    subject.step(1.0)
    assert running_names(subject) == ["a", "small"]


def test_report():
    """The gauges count running, waiting and the blocks that running requests hold, cached idle ones not."""
    subject = engine(max_num_seqs=1)
    subject.submit(request("old", 45), 0.0)
    run(subject)
    subject.submit(request("a", 15, output=2), 2.0)
    subject.submit(request("b", 15), 2.0)
    subject.step(2.0)
    report = subject.report()
    assert (report.running, report.waiting) == (1, 1)
    assert report.usage_ratio == pytest.approx(0.2)
    assert report.counters == subject.counters
    assert report.counters is not subject.counters


@pytest.mark.parametrize(
    ("tokens", "output", "words"), [(0, 1, "at least one"), (5, 0, "at least one"), (50, 11, "longer than 60")]
)
def test_impossible_requests_are_refused(tokens, output, words):
    """What could never finish is not taken in."""
    with pytest.raises(ValueError, match=words):
        engine().submit(request("a", tokens, output=output), 0.0)


def test_same_id_twice():
    """An id in flight cannot be used again, a finished one can."""
    subject = engine()
    subject.submit(request("a", 5), 0.0)
    with pytest.raises(ValueError, match="already"):
        subject.submit(request("a", 5), 0.0)
    run(subject)
    subject.submit(request("a", 5), 2.0)


def test_watermark():
    """With a watermark a part of the pool stays free while something runs, but not otherwise."""
    subject = engine(watermark_ratio=0.5)
    subject.submit(request("a", 45, output=5), 0.0)
    subject.submit(request("b", 5, output=5), 0.0)
    subject.step(0.0)
    assert running_names(subject) == ["a"]


def scenario(seed, until):
    """A busy engine with preemptions, drafts and shared prefixes."""
    subject = engine(seed=seed, mtp=2, num_gpu_blocks=31, max_model_len=200)
    for number in range(12):
        keys = [("shared", 0), ("shared", 1), *((number, index) for index in range(18))]
        subject.submit(request(str(number), 25 + number, output=60, keys=keys), 0.0)
    return run(subject, until=until)


def test_same_seed_same_run():
    """Two engines with one seed do the same to the last bit, another seed does not."""
    first, second, other = scenario(1, None), scenario(1, None), scenario(2, None)
    assert first == second
    assert first[1] != other[1]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_random_life(data):
    """Under any mixture of arrivals, steps and aborts no block is lost and everybody ends."""
    mtp = data.draw(st.integers(0, 3))
    subject = engine(mtp=mtp, state_blocks=data.draw(st.integers(0, 1)), max_model_len=40, max_num_seqs=4)
    alive = []
    now = 0.0
    for number in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["submit", "submit", "step", "step", "step", "abort"]))
        if action == "submit":
            name = str(number)
            family = data.draw(st.integers(0, 2))
            tokens, output = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 15))
            subject.submit(request(name, tokens, output, keys=[(family, index) for index in range(4)]), now)
            alive.append(name)
        elif action == "abort" and alive:
            subject.abort(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        else:
            now += subject.step(now).duration_s
        held = [block for one in subject._running for block in (*one.blocks, *one.fixed)]
        assert len(set(held)) == subject.pool.used_blocks
        assert subject.running + subject.waiting == len(subject._by_id)
    run(subject, now=now)
    assert subject.pool.used_blocks == 0
    assert not subject._by_id
    assert subject.counters.prefix_hits <= subject.counters.prefix_queries
