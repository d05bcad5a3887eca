"""From records to figures: what lies in the window, what was held, what was cached, who got how much."""

import pytest

from proxy.bench.records import EngineSample, Event, RunRecord, TurnRecord
from proxy.bench.summary import engine_figures, jain, percentile, summarise

LIMIT_S = 5.0


def turn(wanted, first=None, end=None, *, agent=0, **values):
    """A turn by its times."""
    values = {"shared_tokens": 100, "is_returning": False, **values}
    return TurnRecord(agent=agent, wanted_s=wanted, sent_s=wanted, first_s=first, end_s=end, **values)


def sample(at, waiting=0, usage=0.5, *, preemptions=0, queries=0, hits=0):
    """What an engine said at one moment."""
    return EngineSample(at, 1, waiting, usage, preemptions, queries, hits)


def figures(*turns, agents=1, **lists):
    """The window is from 100 to 110 s."""
    return summarise(RunRecord(agents, 100.0, 110.0, turns=list(turns), **lists), LIMIT_S)


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (90, 9), (99, 10), (1, 1), (100, 10)])
def test_percentiles_are_values_that_were_there(percent, value):
    """By the nearest rank."""
    assert percentile(list(range(10, 0, -1)), percent) == value


def test_no_values_no_percentile():
    """And not zero, which would look good."""
    assert percentile([], 50) is None
    assert figures().first_token_s.p50 is None


@pytest.mark.parametrize(
    ("amounts", "index"), [([5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([1, 3], 0.8), ([0, 0], None), ([], None)]
)
def test_jain(amounts, index):
    """One when even, one nth when somebody has it all."""
    assert jain(amounts) == (pytest.approx(index) if index is not None else None)


def test_a_turn_counts_where_it_ends_and_its_first_token_where_it_comes():
    """Warm-up and what came after the end stay out."""
    summary = figures(
        turn(90, 92, 99),  # before
        turn(98, 99, 101),  # ends inside
        turn(100, 104, 108),
        turn(105, 109),  # begins inside
    )

    assert (summary.turns, summary.turns_per_s, summary.turns_per_min) == (2, 0.2, 12)
    assert (summary.first_token_s.p50, summary.first_token_s.p99) == (4, 4)


def test_good_turns_had_their_first_token_in_time():
    """Pauses after refusals count: the user waited."""
    summary = figures(turn(96, 101, 102), turn(96, 101.5, 103), turn(99, 100, 101, is_failed=True))

    assert summary.turns == 2
    assert summary.good_turns_per_s == pytest.approx(0.1)


def test_holds_stand_in_the_first_token_time_and_apart():
    """Refusals' pauses and what the proxy said that it held."""
    summary = figures(turn(100, 108, 109, refused_wait_s=5, queued_s=2))

    assert summary.first_token_s.p50 == 8
    assert summary.hold_s.p50 == 7
    assert summary.first_token_unheld_s.p50 == pytest.approx(1)
    assert (summary.good_turns_per_s, summary.good_turns_unheld_per_s) == (0, pytest.approx(0.1))


def test_output_is_what_came_within_the_window():
    """Also of turns that were not done; in proportion to the time."""
    summary = figures(
        turn(90, 95, 105, answer_tokens=100),  # half of it
        turn(100, 101, 102, answer_tokens=40),
        turn(104, 105, answer_pieces=30),  # still running
    )

    assert summary.output_tokens_per_s == pytest.approx((50 + 40 + 30) / 10)


def test_token_gap_leaves_the_first_token_out():
    """Five tokens have four gaps."""
    assert figures(turn(100, 101, 103, answer_tokens=5)).token_gap_p50_s == pytest.approx(0.5)


def test_cached_part_overall_and_of_what_is_a_sessions_own():
    """A shared head that still hits must not hide that everything else was lost."""
    summary = figures(
        turn(100, 101, 102, prompt_tokens=200, cached_tokens=100),  # a session's first turn
        turn(103, 104, 105, prompt_tokens=300, cached_tokens=250, is_returning=True),
        turn(105, 106, 107, prompt_tokens=300, cached_tokens=96, is_returning=True),
    )

    assert summary.cached_ratio == pytest.approx(446 / 800)
    assert summary.own_cached_ratio == pytest.approx(150 / 400)
    assert (summary.returning_turns, summary.returning_missed) == (2, 1)


def test_an_engine_that_reports_no_cached_tokens_leaves_a_gap():
    """Unknown is not zero."""
    summary = figures(turn(100, 101, 102, prompt_tokens=200, is_returning=True))

    assert summary.cached_ratio is summary.own_cached_ratio is None
    assert summary.returning_missed == 0


def test_a_starved_agent_is_seen():
    """Its turn never ends, so no percentile knows of it."""
    summary = figures(turn(100, 101, 102), turn(103, 104, 105), turn(60, agent=1), turn(108, 109, agent=2), agents=3)

    assert (summary.slowest_agent_turns, summary.fastest_agent_turns) == (0, 2)
    assert summary.jain == pytest.approx(1 / 3)
    assert (summary.open_turns, summary.open_unserved, summary.open_oldest_s) == (2, 1, 50)


def test_events_are_counted_by_name_within_the_window():
    """Sessions too."""
    events = [Event(99, "429"), Event(101, "503"), Event(102, "429"), Event(103, "429")]
    summary = figures(refusals=events, errors=[Event(105, "502")], sessions=[98, 104], given_up=[106])

    assert summary.refusals == {"429": 2, "503": 1}
    assert summary.errors == {"502": 1}
    assert (summary.sessions_finished, summary.sessions_given_up) == (1, 1)


def test_engine_figures():
    """Gauges as means and maxima, counters as what they grew."""
    seen = engine_figures(
        [
            sample(1, 0, 0.2, preemptions=7, queries=1_000, hits=500),
            sample(2, 4, 0.6, preemptions=9, queries=3_000, hits=2_300),
        ]
    )

    assert (seen.preemptions, seen.prefix_hit_ratio) == (2, 0.9)
    assert (seen.waiting_mean, seen.waiting_max) == (2, 4)
    assert (seen.kv_usage_mean_ratio, seen.kv_usage_max_ratio) == (0.4, 0.6)


@pytest.mark.parametrize("samples", [[], [sample(1, preemptions=7)], [sample(1, preemptions=7), sample(2)]])
def test_counters_that_cannot_be_compared_give_nothing(samples):
    """No sample, one, or an engine that restarted."""
    assert engine_figures(samples).preemptions is None
