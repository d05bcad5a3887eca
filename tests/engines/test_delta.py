from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.reports import Continuity, EngineCounters, EngineKind, EngineReport
from proxy.engines import parse_page
from proxy.engines.delta import FLAPPING_S, follow
from tests.engines.pages import page


def at(tokens, *, began=None, **more):
    """A report whose generation counter stands there."""
    return EngineReport(
        kind=EngineKind.VLLM,
        process_start_time_s=began,
        counters=EngineCounters(generation_tokens=tokens, **more),
    )


def told(reports, *, every_s=1.0):
    """The deltas of a row of reports."""
    track, deltas = None, []
    for number, report in enumerate(reports):
        track, delta = follow(track, report, number * every_s)
        deltas.append(delta)
    return deltas


def continuities(reports, **more):
    """How each report follows."""
    return [delta.continuity.value for delta in told(reports, **more)]


def test_rates_come_from_two_real_pages():
    """From fresh to used: 4 prompts, half of their tokens found."""
    (idle,), (used,) = parse_page(page("vllm-0.32-idle")), parse_page(page("vllm-0.32-used"))

    _, delta = told([idle, used], every_s=2.0)

    assert (Continuity.CONTINUED, 2.0) == (delta.continuity, delta.interval_s)
    assert (1_333.5, 693.5, 40.0, 40.0) == (
        delta.prompt_tokens_per_s, delta.computed_tokens_per_s, delta.generation_tokens_per_s, delta.iterations_per_s
    )  # fmt: skip
    assert (2_667, 1_280, 1_280 / 2_667) == (
        delta.prefix_queries_tokens, delta.prefix_hits_tokens, delta.prefix_hit_ratio
    )  # fmt: skip
    assert (0, 4, True) == (delta.preemptions, delta.successes, delta.has_progressed)
    assert (None, None) == (delta.draft_accept_ratio, delta.external_hit_ratio)
    assert delta.prefill_tokens_per_s == pytest.approx(1_387 / 0.19035, rel=1e-3)


def test_the_speed_of_prefill_is_not_diluted_by_idle_time():
    """Two seconds for 40,000 tokens, in an hour; nothing where no request has ended, or an engine counts neither."""
    busy = [at(1, prefilled_tokens=0, prefill_s=0.0), at(2, prefilled_tokens=40_000, prefill_s=2.0)]
    idle = [at(1, prefilled_tokens=5, prefill_s=1.0), at(2, prefilled_tokens=5, prefill_s=1.0)]

    assert told(busy, every_s=3_600.0)[1].prefill_tokens_per_s == 20_000
    assert told(idle)[1].prefill_tokens_per_s is None
    assert told([at(1), at(2)])[1].prefill_tokens_per_s is None
    assert told([at(1, prefilled_tokens=0), at(2, prefilled_tokens=9)])[1].prefill_tokens_per_s is None


def test_a_first_report_has_nothing_to_compare_with():
    """Not even a rate of 0."""
    (delta,) = told([at(5)])

    assert (Continuity.FIRST, None) == (delta.continuity, delta.generation_tokens_per_s)


def test_speculation_is_measured_over_the_interval():
    """The last second, not the average since the start."""
    _, delta = told(
        [at(0, drafts=100, draft_tokens=200, accepted_draft_tokens=190),
         at(0, drafts=150, draft_tokens=300, accepted_draft_tokens=215)]
    )  # fmt: skip

    assert (0.25, 1.5) == (delta.draft_accept_ratio, delta.tokens_per_draft)


def test_a_later_start_is_a_restart_at_once():
    """Row 98: another process; its cache is empty."""
    deltas = told([at(900, began=100), at(3, began=180), at(13, began=180)])

    assert [Continuity.FIRST, Continuity.RESTARTED, Continuity.CONTINUED] == [delta.continuity for delta in deltas]
    assert deltas[1].generation_tokens_per_s is None
    assert 10 == deltas[2].generation_tokens_per_s


def test_counters_that_go_back_and_stay_are_a_restart():
    """Row 97: without a start time it takes one more report to know."""
    assert ["first", "continued", "unsure", "restarted", "continued"] == continuities(
        [at(900), at(950), at(2), at(5), at(9)]
    )


def test_counters_that_go_back_and_forth_are_several_processes():
    """L57: no negative rate, and no false one on the way up."""
    deltas = told([at(900), at(40), at(910), at(45), at(920), at(50)])

    assert ["first", "unsure", *["alternating"] * 4] == [delta.continuity.value for delta in deltas]
    assert [None] * 6 == [delta.generation_tokens_per_s for delta in deltas]


def test_three_processes_in_turn_settle_on_alternating():
    """The first round may look like one restart; no second one follows."""
    seen = continuities([at(base + step) for step in range(0, 40, 10) for base in (900, 40, 500)])

    assert ["first", "unsure", "restarted", *["alternating"] * 2] == [*seen[:3], *seen[4:6]]
    assert 1 == seen.count("restarted")


def test_start_times_that_go_back_and_forth_are_several_processes():
    """An older process cannot be a restart, nor can one seconds after the last."""
    seen = continuities([at(900, began=100), at(40, began=180), at(910, began=100), at(45, began=180)])

    assert ["first", "restarted", "alternating", "alternating"] == seen


def test_it_counts_again_after_a_quiet_time():
    """One odd answer does not spoil the rates for good."""
    reports = [at(900), at(40), *(at(901 + step) for step in range(40))]

    seen = continuities(reports)

    assert "alternating" == seen[2]
    assert "continued" == seen[2 + int(FLAPPING_S)]


def test_a_restart_long_after_another_is_one():
    """A crash loop slower than a model's load."""
    seen = continuities([at(900), at(2), at(3), *[at(100)] * 20, at(1), at(2)])

    assert ["unsure", "restarted"] == seen[-2:]


def test_a_scrape_at_the_same_moment_gives_no_rate():
    """No division by an interval of 0."""
    track, _ = follow(None, at(1), 5.0)

    _, delta = follow(track, at(2), 5.0)

    assert delta.generation_tokens_per_s is None


def test_a_counter_that_comes_or_goes_is_unknown_in_between():
    """An upgrade of the metrics is no restart."""
    appeared = told([at(1), at(2, preemptions=7)])[1]

    assert (Continuity.CONTINUED, None, True) == (appeared.continuity, appeared.preemptions, appeared.has_progressed)
    assert told([at(None), at(None)])[1].has_progressed is None
    assert told([at(4), at(4)])[1].has_progressed is False


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from([None, 1.0, 50.0, 99.0])), max_size=20)
)
def test_no_row_of_reports_gives_a_negative_rate(rows):
    """Whatever comes."""
    for delta in told(
        [replace(at(tokens, prefix_hits_tokens=hits), process_start_time_s=began) for tokens, hits, began in rows]
    ):
        rates = (delta.generation_tokens_per_s, delta.prefix_hits_tokens, delta.preemptions)
        assert all(rate is None or rate >= 0 for rate in rates)


def test_tokens_from_outside_are_told_beside_those_computed():
    """Nothing, not zero, where an engine does not tell them apart."""
    before = at(1, prompt_tokens_by_source={"local_compute": 400, "external_kv_transfer": 600})
    after = at(2, prompt_tokens_by_source={"local_compute": 500, "external_kv_transfer": 900})

    _, delta = told([before, after])
    _, silent = told([at(1), at(2)])

    assert (100, 300) == (delta.computed_tokens, delta.fetched_tokens)
    assert (None, None) == (silent.computed_tokens, silent.fetched_tokens)
