import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.knee import BUCKETS, ENOUGH_S, FORGOTTEN_S, Knee, after_report, bucket_of

FALLING = {1: 70.0, 4: 256.0, 8: 418.0, 12: 380.0, 16: 330.0, 24: 290.0}
"""Tokens a second by requests running, of an engine whose knee is at 8."""


def run(knee, now, running, seconds, rate, *, every_s=1.0, noise=0.0, seed=1, **more):
    """So many requests run for so long; what is known then, and when."""
    chance = random.Random(seed)
    for _ in range(int(seconds / every_s)):
        now += every_s
        tokens_per_s = rate * chance.gauss(1.0, noise)
        knee = after_report(knee, now, running=running, tokens_per_s=tokens_per_s, interval_s=every_s, **more)
    return knee, now


def climbed(rates, *, seconds=40.0, knee=None, now=0.0, **more):
    """Every level of a table for a while, from few to many."""
    knee = knee or Knee()
    for number, (running, rate) in enumerate(rates.items()):
        knee, now = run(knee, now, running, seconds, rate, seed=number, **more)
    return knee, now


@pytest.mark.parametrize(
    ("running", "bucket"),
    [(None, None), (0, None), (1, 1), (3, 2), (4, 4), (7, 4), (11, 8), (12, 12), (63, 48), (64, 64), (900, 64)],
)
def test_a_bucket_begins_at_its_number(running, bucket):
    """Nothing running is no bucket, and the last one has no end."""
    assert bucket_of(running) == bucket


@pytest.mark.parametrize("every_s", [1.0, 5.0])
def test_an_engine_that_falls_off_is_capped_one_above_its_best(every_s):
    """However often it reports."""
    knee, _ = climbed(FALLING, every_s=every_s)

    assert knee.cap == 9
    assert knee.speeds[8].tokens_per_s == pytest.approx(418.0)


def test_what_rises_is_never_capped():
    """An engine without a knee loses nothing: the users' card without drafts."""
    knee, _ = climbed({1: 36.6, 4: 136.0, 8: 262.0, 16: 457.9, 24: 590.2, 32: 704.5, 64: 700.0}, noise=0.1)

    assert knee.cap is None


def test_a_dip_on_the_way_up_is_no_knee():
    """The fastest bucket decides, not the first that is followed by a slower one."""
    knee, _ = climbed({4: 256.0, 8: 400.0, 12: 350.0, 16: 500.0})

    assert knee.cap is None


def test_half_a_minute_is_needed_in_both_buckets():
    """A second of trouble is not a knee."""
    knee, now = run(Knee(), 0.0, 8, ENOUGH_S + 1, 418.0)
    knee, now = run(knee, now, 16, ENOUGH_S, 200.0)  # the first of them began in the other bucket
    assert knee.cap is None

    knee, _ = run(knee, now, 16, 1, 200.0)

    assert knee.cap == 9


def test_a_loss_of_six_per_cent_is_none():
    """Of eight it is one."""
    assert climbed({8: 400.0, 16: 376.0})[0].cap is None
    assert climbed({8: 400.0, 16: 368.0})[0].cap == 9


@pytest.mark.parametrize("seed", range(20))
def test_noise_on_a_plateau_does_not_trip_it(seed):
    """An hour of one speed in two buckets, by turns of a minute, with a fifth of noise from second to second."""
    knee, now = Knee(), 0.0
    for minute in range(60):
        knee, now = run(knee, now, (48, 64)[minute % 2], 60, 700.0, noise=0.2, seed=1_000 * seed + minute)
        assert knee.cap is None


def test_noise_does_not_hide_a_knee():
    """A fifth less is seen through a tenth of noise within two minutes."""
    knee, _ = climbed({8: 418.0, 16: 335.0}, seconds=60, noise=0.1)

    assert knee.cap == 9


def test_it_looks_again_after_ten_minutes():
    """Nobody runs in the larger bucket while the cap holds, so what is known of it ages, and the cap goes with it."""
    knee, now = climbed({8: 418.0, 16: 330.0})
    held, later = run(knee, now, 9, FORGOTTEN_S - 1, 410.0)
    lifted, later = run(held, later, 9, 2, 410.0)
    still_falling, _ = climbed({16: 330.0}, knee=lifted, now=later)
    mended, _ = climbed({16: 600.0}, knee=lifted, now=later)

    assert (held.cap, lifted.cap) == (9, None)
    assert (still_falling.cap, mended.cap) == (9, None)


def test_a_cap_that_makes_it_slower_is_lifted_at_once():
    """Behind a step at nine, eight and one is worse than twelve was."""
    knee, now = climbed({8: 418.0, 12: 360.0})
    assert knee.cap == 9

    knee, _ = run(knee, now, 9, 30, 275.0)

    assert knee.cap is None


def test_a_cap_does_not_flutter():
    """It takes seven per cent to come, and nothing at all to go."""
    knee, now = climbed({8: 400.0, 16: 360.0})
    knee, now = run(knee, now, 9, 60, 365.0)
    assert knee.cap == 9

    knee, _ = run(knee, now, 9, 60, 355.0)

    assert knee.cap is None


@pytest.mark.parametrize("unknown", ["running", "tokens_per_s", "interval_s"])
def test_what_is_not_known_teaches_nothing(unknown):
    """A report without one of the fields, or a counter that went back, and the interval after it."""
    told: dict[str, Any] = {"running": 8, "tokens_per_s": 400.0, "interval_s": 1.0}
    knee = Knee()
    for second in range(100):
        knee = after_report(knee, float(second), **{**told, unknown: None})

    assert knee == Knee(bucket=None if unknown == "running" else 8)


def test_an_interval_between_two_buckets_belongs_to_neither():
    """Eight at its beginning and sixteen at its end is no sample of either."""
    knee = Knee()
    for second in range(100):
        knee = after_report(knee, float(second), running=(8, 16)[second % 2], tokens_per_s=400.0, interval_s=1.0)

    assert knee.speeds == {}


def test_time_for_prompts_is_taken_off():
    """A fifth of the second for prompts leaves four fifths for these tokens; beyond three tenths it says too little."""
    knee, _ = run(Knee(), 0.0, 8, 40, 320.0, prefill_ratio=0.2)
    starved, _ = run(Knee(), 0.0, 8, 40, 100.0, prefill_ratio=0.4)

    assert knee.speeds[8].tokens_per_s == pytest.approx(400.0)
    assert starved.speeds == {}


reports = st.fixed_dictionaries(
    {
        "running": st.none() | st.integers(0, 200),
        "tokens_per_s": st.none() | st.floats(0, 1e6),
        "interval_s": st.none() | st.floats(0, 60),
        "prefill_ratio": st.floats(0, 2),
    }
)


@given(st.lists(reports, max_size=60))
def test_a_cap_is_always_one_above_a_bucket(seen):
    """So that at least two may run, whatever an engine says."""
    knee, now = Knee(), 0.0
    for report in seen:
        now += report["interval_s"] or 0.0
        knee = after_report(knee, now, **report)
        assert knee.cap is None or knee.cap - 1 in BUCKETS
