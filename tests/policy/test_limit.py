import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy import limit as limits
from proxy.policy.limit import Limit, after_ghost_miss, after_hit, after_report, effective, is_ghost_miss


def reported(limit, now, *, preemptions=0, is_short=False, has_waiting=True):
    """The limit after one report."""
    return after_report(limit, now, preemptions=preemptions, is_short_of_memory=is_short, has_waiting=has_waiting)


@pytest.mark.parametrize(
    ("expected", "cached", "block", "is_ghost"),
    [
        (10_000, 0, 16, True),
        (10_000, 6_999, 16, True),
        (10_000, 7_000, 16, False),
        (4_096, 0, 16, False),
        (4_097, 0, 16, True),
        (11_312, 0, 1_616, False),
        (12_928, 12_928 - 2 * 1_616, 1_616, False),
    ],
)
def test_a_ghost_miss_is_a_large_prefix_that_was_not_there(expected, cached, block, is_ghost):
    """Small prefixes and the two blocks that hybrids lose say nothing."""
    assert is_ghost is is_ghost_miss(expected, cached, block)


def test_one_overfull_moment_is_one_mistake():
    """Ghost misses within ten seconds cut once."""
    once = after_ghost_miss(Limit(), 100.0)
    twice = after_ghost_miss(once, 109.9)
    later = after_ghost_miss(twice, 110.0)

    assert once.theta == pytest.approx(0.95 * limits.START)
    assert twice.theta == once.theta
    assert later.theta == pytest.approx(0.95 * once.theta)


def test_a_miss_among_many_hits_is_none():
    """While the limit is low; the next one counts again, and what was saved up is never more than one."""
    limit = Limit(theta=0.6)
    for _ in range(500):
        limit = after_hit(limit, 0.0)
    spared = after_ghost_miss(limit, 100.0)

    assert (spared.theta, spared.bad_at) == (0.6, limit.bad_at)
    assert after_ghost_miss(spared, 101.0).theta < 0.6
    assert after_ghost_miss(replace(limit, theta=limits.START), 100.0).theta < limits.START


def test_a_few_hits_make_up_for_nothing():
    """Two misses in a hundred are too many."""
    limit = Limit(theta=0.6)
    for _ in range(50):
        limit = after_hit(limit, 0.0)

    assert after_ghost_miss(limit, 100.0).theta < 0.6


def test_a_preemption_cuts_at_once():
    """The engine itself says that it ran out."""
    assert reported(Limit(), 5.0, preemptions=1).theta == pytest.approx(0.93 * limits.START)


def test_waiting_for_memory_cuts_after_three_reports_in_a_row():
    """One such report is a moment, three are a state."""
    limit = reported(reported(Limit(), 1.0, is_short=True), 2.0, is_short=True)
    interrupted = reported(reported(limit, 3.0), 4.0, is_short=True)

    assert interrupted.theta >= limits.START
    assert reported(limit, 3.0, is_short=True).theta < limits.START


def grown(limit, since, seconds, *, has_waiting=True, has_hits=True):
    """The limit after so many clean reports, one a second, with a turn found cached before each."""
    for second in range(1, seconds + 1):
        if has_hits:
            limit = after_hit(limit, since + second)
        limit = reported(limit, since + second, has_waiting=has_waiting)
    return limit


def test_it_creeps_back_after_a_clean_minute():
    """Half a thousandth a second, and only after the minute."""
    cut = after_ghost_miss(Limit(), 0.0)

    assert grown(cut, 0.0, 59).theta == cut.theta
    assert grown(cut, 0.0, 70).theta == pytest.approx(cut.theta + 0.0005 * 10, abs=0.0006)


def test_it_grows_to_what_the_labels_say_in_a_minute():
    """Nothing is wrong and somebody waits: the margin of the start is given up."""
    assert grown(Limit(), 0.0, 61).theta == pytest.approx(limits.LABELLED, abs=0.001)


def test_past_the_labels_it_is_slow():
    """A tenth of a thousandth a second; ten minutes of it are six hundredths."""
    at_labels = Limit(theta=limits.LABELLED)

    assert grown(at_labels, 0.0, 600).theta == pytest.approx(limits.LABELLED + 0.06, abs=0.001)
    assert grown(at_labels, 0.0, 5_000).theta == limits.MOST


def test_past_the_labels_it_waits_for_five_clean_minutes():
    """Up to the labels one is enough."""
    cut = after_ghost_miss(Limit(theta=1.04), 0.0)

    assert grown(cut, 0.0, 299).theta == limits.LABELLED
    assert limits.LABELLED < grown(cut, 0.0, 320).theta < limits.LABELLED + 0.003


def test_past_the_labels_it_does_not_go_blindly():
    """Who does not say what was cached tells no miss either; up to the labels it grows all the same."""
    assert grown(Limit(), 0.0, 900, has_hits=False).theta == limits.LABELLED
    seen = grown(Limit(theta=limits.LABELLED), 0.0, 100)
    assert grown(seen, 100.0, 600, has_hits=False).theta <= seen.theta + 0.0001 * 61


@pytest.mark.parametrize(("theta", "left"), [(1.04, 1.0), (1.3, 1.235), (1.0, 0.95)])
def test_a_miss_past_the_labels_says_nothing_against_them(theta, left):
    """It takes back what was tried, and the next one cuts further."""
    assert after_ghost_miss(Limit(theta=theta), 0.0).theta == pytest.approx(left)


def test_a_preemption_past_the_labels_leads_back_to_them():
    """At once, and below them at the next."""
    limit = reported(Limit(theta=1.04), 5.0, preemptions=1)

    assert limit.theta == limits.LABELLED
    assert reported(limit, 20.0, preemptions=1).theta == pytest.approx(0.93)


def test_it_does_not_grow_while_nobody_waits():
    """Room that nobody asks for proves nothing."""
    cut = after_ghost_miss(Limit(), 0.0)

    assert grown(cut, 0.0, 500, has_waiting=False).theta == cut.theta


def test_a_pause_without_reports_is_not_made_up_for():
    """An hour of silence from the engine is not an hour without mistakes."""
    cut = after_ghost_miss(Limit(), 0.0)

    assert reported(cut, 3_600.0).theta <= cut.theta + 0.0005 * 5 + 1e-9


@pytest.mark.parametrize(
    ("age_s", "share"), [(0.0, 1.0), (3.0, 1.0), (3.1, 0.9), (30.0, 0.9), (30.1, 0.8), (1e9, 0.8), (None, 0.8)]
)
def test_old_reports_lower_it_a_little_and_never_shut_it(age_s, share):
    """Never fully open, never shut."""
    assert effective(0.9, age_s) == pytest.approx(share * 0.9)


@pytest.mark.parametrize(
    ("interval_s", "age_s", "share"),
    [(5.0, 14.9, 1.0), (5.0, 15.1, 0.9), (5.0, 30.1, 0.8), (20.0, 59.0, 1.0), (20.0, 119.0, 0.9), (0.2, 2.9, 1.0)],
)
def test_reports_that_come_seldom_are_not_old_for_ever(interval_s, age_s, share):
    """Three that fail to come make one old; often asked, three seconds do."""
    assert effective(0.9, age_s, interval_s) == pytest.approx(share * 0.9)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["ghost", "preempted", "short", "clean", "idle"]), st.floats(0.0, 200.0)), max_size=60
)


@given(EVENTS)
def test_it_stays_between_floor_and_cap(events):
    """Whatever happens in whatever order, it neither opens nor shuts, and cuts are ten seconds apart."""
    limit, now, cuts = Limit(), 0.0, []
    for what, pause in events:
        now += pause
        before = limit.theta
        if what == "ghost":
            limit = after_ghost_miss(limit, now)
        else:
            limit = reported(
                limit, now, preemptions=what == "preempted", is_short=what == "short", has_waiting=what != "idle"
            )
        if limit.theta < before:
            cuts.append(now)
        assert limits.GHOST_FLOOR <= limit.theta <= limits.MOST
    assert all(later - earlier >= 10.0 for earlier, later in itertools.pairwise(cuts))
