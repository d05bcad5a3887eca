import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from proxy.core.outcomes import Outcome
from proxy.core.requests import Usage
from proxy.core.snapshots import BackendSnapshot, FleetSnapshot
from proxy.core.turns import PrefixBreak
from proxy.telemetry.metrics import CACHE_S, MAX_MODELS, Metrics
from tests.telemetry.fleets import backend, fleet, unknown
from tests.telemetry.records import finished

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


def values_of(metrics, name, *labels, now=0.0):
    """The samples of one name, as the values of these labels to the number, from the page that a scraper gets."""
    page, _ = metrics.exposition("", now=now)
    samples = [one for family in parse_text(page.decode()) for one in family.samples if one.name == name]
    return {tuple(one.labels[label] for label in labels): one.value for one in samples}


def test_a_completed_request_is_counted_everywhere():
    """One record feeds the counters and all histograms."""
    metrics = Metrics(version="1")
    metrics.record(finished(retries={"connect": 2}))

    key = ("chat_completions", "qwen")
    assert values_of(metrics, "tidegate_requests_total", "route", "model", "outcome") == {(*key, "completed"): 1}
    assert values_of(metrics, "tidegate_request_duration_seconds_sum", "route", "model") == {key: 1.5}
    assert values_of(metrics, "tidegate_time_to_first_token_seconds_sum", "route", "model", "prefix") == {
        (*key, "warm"): 0.2
    }
    assert values_of(metrics, "tidegate_overhead_seconds_sum") == {(): 0.0004}
    assert values_of(metrics, "tidegate_retries_total", "reason") == {("connect",): 2}
    assert not any(values_of(metrics, "tidegate_refusals_total", "reason").values())


def test_token_gaps_land_in_the_buckets_of_their_length():
    """Pauses that streams counted for themselves are merged: two of 15 ms and two of 40 s."""
    metrics = Metrics(version="1")
    for _ in range(2):
        metrics.record(finished())

    buckets = values_of(metrics, "tidegate_inter_token_latency_seconds_bucket", "model", "le")

    assert [buckets["qwen", le] for le in ("0.01", "0.02", "30.0", "+Inf")] == [0, 2, 2, 4]
    assert values_of(metrics, "tidegate_inter_token_latency_seconds_sum") == {(): pytest.approx(80.03)}


def test_tokens_that_were_not_reported_are_not_counted_as_none():
    """Unknown is not zero: no series appears for what no engine has said."""
    metrics = Metrics(version="1")
    metrics.record(finished(usage=Usage(prompt_tokens=7)))

    assert values_of(metrics, "tidegate_tokens_total", "model", "kind") == {("qwen", "prompt"): 7}


def test_a_refusal_is_counted_and_kept_out_of_the_durations():
    """Refusals take no time; among the durations they would make a bad hour look fast."""
    metrics = Metrics(version="1")
    metrics.record(
        finished(outcome=Outcome.REFUSED_OVERLOADED, ttft_s=None, overhead_s=None, gap_counts=(), usage=Usage())
    )

    refusals = values_of(metrics, "tidegate_refusals_total", "reason")
    assert {reason: count for reason, count in refusals.items() if count} == {("refused_overloaded",): 1}
    assert len(refusals) > 1, "the first one of any other kind is to make a rate too"
    assert values_of(metrics, "tidegate_request_duration_seconds_count") == {}
    assert values_of(metrics, "tidegate_time_to_first_token_seconds_count") == {}


def test_models_stay_bounded():
    """Names beyond the bound share one series; those known already keep theirs."""
    metrics = Metrics(version="1")
    for number in range(MAX_MODELS + 50):
        metrics.record(finished(model=f"adapter-{number}"))
    metrics.record(finished(model="adapter-0"))

    by_model = values_of(metrics, "tidegate_requests_total", "model")

    assert len(by_model) == MAX_MODELS + 1
    assert (by_model["other",], by_model["adapter-0",]) == (50, 2)


def test_gauges_are_read_when_asked():
    """Backends come and go between scrapes without anybody telling the metrics."""
    backends = [
        BackendSnapshot(name="a", is_up=True, inflight_requests=3),
        BackendSnapshot(name="b", is_up=False, inflight_requests=0),
    ]
    metrics = Metrics(
        version="1.2",
        snapshot=lambda: FleetSnapshot(backends=tuple(backends)),
        buffered_body_bytes=lambda: 77,
        open_connections=lambda: 5,
        dropped_log_lines=lambda: 9,
    )

    assert values_of(metrics, "tidegate_backend_up", "backend") == {("a",): 1, ("b",): 0}
    assert values_of(metrics, "tidegate_backend_inflight_requests", "backend") == {("a",): 3, ("b",): 0}
    assert values_of(metrics, "tidegate_buffered_body_bytes") == {(): 77}
    assert values_of(metrics, "tidegate_open_connections") == {(): 5}
    assert values_of(metrics, "tidegate_log_lines_dropped_total") == {(): 9}
    assert values_of(metrics, "tidegate_build_info", "version") == {("1.2",): 1}

    backends.pop()
    assert values_of(metrics, "tidegate_backend_up", "backend", now=CACHE_S) == {("a",): 1}


def test_what_nobody_feeds_is_not_exported():
    """A gauge that stands at zero because nothing reads it would be believed."""
    page, _ = Metrics(version="1").exposition("", now=0.0)

    assert b"tidegate_open_connections" not in page
    assert b"tidegate_buffered_body_bytes" not in page
    assert b"tidegate_log_lines_dropped" not in page
    assert b"tidegate_waiting_requests" not in page
    assert b"tidegate_held_tokens" not in page


def test_what_is_held_of_each_cache_is_told_in_tokens():
    """Whole, parts, and what is left; an engine of unknown size has none of them."""
    metrics = Metrics(version="1", snapshot=lambda: fleet(backend(), unknown(name="b")))

    def of(name, *labels):
        return values_of(metrics, f"tidegate_{name}", *labels)

    assert of("backend_up", "backend") == {("a",): 1, ("b",): 1}
    assert of("backend_report_age_seconds", "backend") == {("a",): 0.5}
    assert of("backend_kv_capacity_tokens", "backend") == {("a",): 100_000}
    assert of("backend_kv_pinned_tokens", "backend", "source") == {("a", "own"): 38_000, ("a", "foreign"): 5_000}
    assert of("backend_kv_idle_tokens", "backend") == {("a",): 40_000}
    assert of("backend_headroom_tokens", "backend") == {("a",): 10_000}
    assert of("backend_prefill_tokens", "backend") == {("a",): 6_000}
    assert of("backend_admission_ratio", "backend") == {("a",): 0.97}
    assert of("sessions", "backend", "state") == {("a", "running"): 2, ("a", "idle"): 4}
    assert of("known_sessions") == {(): 11}


def test_who_waits_is_told_by_class():
    """Empty classes are zeros: they are known to be empty."""
    metrics = Metrics(version="1", snapshot=fleet)

    assert values_of(metrics, "tidegate_waiting_requests", "class") == {
        ("resident",): 1,
        ("control",): 0,
        ("session",): 2,
        ("batch",): 0,
    }
    assert values_of(metrics, "tidegate_held_tokens") == {(): 79_000}


def test_what_engines_say_is_passed_on():
    """Their queue, their preemptions and their drafts stand beside our figures."""
    metrics = Metrics(version="1", snapshot=lambda: fleet(backend(), unknown(name="b", ghost_misses=0)))

    def of(name):
        return values_of(metrics, f"tidegate_{name}", "backend")

    assert of("backend_engine_waiting_requests") == {("a",): 1}
    assert of("backend_preemptions_total") == {("a",): 7}
    assert of("backend_draft_accept_ratio") == {("a",): 0.7}
    assert of("backend_tokens_per_draft") == {("a",): 3.1}
    assert of("backend_drafts_total") == {("a",): 100}
    assert of("backend_draft_tokens_total") == {("a",): 300}
    assert of("backend_accepted_draft_tokens_total") == {("a",): 210}
    assert of("prefix_ghost_misses_total") == {("a",): 2, ("b",): 0}


def test_one_snapshot_makes_one_page():
    """The figures of a page were true at the same moment."""
    taken = []

    def snapshot():
        taken.append(fleet())
        return taken[-1]

    Metrics(version="1", snapshot=snapshot).exposition("", now=0.0)

    assert len(taken) == 1


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ({"admission": "new"}, "admitted"),
        ({"admission": "new", "outcome": Outcome.CLIENT_CLOSED}, "admitted"),
        ({"outcome": Outcome.CLIENT_CLOSED}, "left"),
        ({"outcome": Outcome.REFUSED_OVERLOADED}, "refused"),
        ({"admission": "new", "outcome": Outcome.REFUSED_OVERLOADED}, "refused"),
    ],
)
def test_waiting_is_counted_by_how_it_ended(ending, outcome):
    """Let in, turned away, or gone before either; a second wait after a failed attempt counts by its own end."""
    metrics = Metrics(version="1")
    metrics.record(finished(queue="session", queue_wait_s=12.5, **ending))

    assert values_of(metrics, "tidegate_queue_wait_seconds_sum", "class", "outcome") == {("session", outcome): 12.5}


def test_what_was_held_for_a_herd_is_told_from_waiting_for_room():
    """From the start, so that the first one is seen; who was not held is not in the count."""
    metrics = Metrics(version="1")
    value = metrics.registry.get_sample_value
    assert value("tidegate_herd_wait_seconds_count") == 0

    metrics.record(finished(queue="session", queue_wait_s=12.5, herd_wait_s=1.5, admission="new"))
    metrics.record(finished(queue="session", queue_wait_s=3.0, admission="new"))

    assert (value("tidegate_herd_wait_seconds_count"), value("tidegate_herd_wait_seconds_sum")) == (1, 1.5)
    waited = values_of(metrics, "tidegate_queue_wait_seconds_sum", "class", "outcome")
    assert waited == {("session", "admitted"): 15.5}


def test_what_never_came_to_the_gate_did_not_wait():
    """Routes that generate nothing, and refusals before the queue."""
    metrics = Metrics(version="1")
    metrics.record(finished())
    metrics.record(finished(outcome=Outcome.REFUSED_OVERLOADED))

    assert values_of(metrics, "tidegate_queue_wait_seconds_count") == {}


def test_what_would_have_waited_is_counted():
    """Shadow mode tells what enforcing would do."""
    metrics = Metrics(version="1")
    metrics.record(finished(queue="session", queue_wait_s=0.0, would_wait=True))
    metrics.record(finished(queue="session", queue_wait_s=0.0))

    assert values_of(metrics, "tidegate_would_wait_total", "class") == {("session",): 1}


def test_estimates_are_compared_with_what_the_engine_counted():
    """A fifth too much lands at 1.2; what was not estimated or not counted is no error."""
    metrics = Metrics(version="1")
    metrics.record(finished(estimated_tokens=120))
    metrics.record(finished(estimated_tokens=None))
    metrics.record(finished(estimated_tokens=120, usage=Usage()))

    assert values_of(metrics, "tidegate_estimate_error_ratio_sum", "kind") == {("prompt",): 1.2}
    assert values_of(metrics, "tidegate_estimate_error_ratio_bucket", "le")["1.2",] == 1


@pytest.mark.parametrize(
    ("expected", "cached", "counted"),
    [(80, 20, (80, 20)), (80, 100, (80, 80)), (300, 100, (100, 100)), (80, None, None), (0, 50, None)],
)
def test_prefixes_are_expected_and_found(expected, cached, counted):
    """Hits are counted up to what was expected, and only where the engine tells: their ratio is never above one."""
    metrics = Metrics(version="1")
    metrics.record(finished(expected_tokens=expected, usage=Usage(prompt_tokens=100, cached_tokens=cached)))

    seen = (
        values_of(metrics, "tidegate_prefix_expected_tokens_total", "backend"),
        values_of(metrics, "tidegate_prefix_hit_tokens_total", "backend"),
    )

    assert seen == (({("a:8000",): counted[0]}, {("a:8000",): counted[1]}) if counted else ({}, {}))


def test_broken_prefixes_are_counted_by_reason():
    """Once each, and nothing where nothing broke."""
    metrics = Metrics(version="1")
    for reason in (PrefixBreak.SYSTEM, None, PrefixBreak.SYSTEM, PrefixBreak.COMPACTION):
        metrics.record(finished(prefix_break=reason))

    counted = values_of(metrics, "tidegate_prefix_breaks_total", "reason")
    assert counted == {(reason.value,): 0 for reason in PrefixBreak} | {("system",): 2, ("compaction",): 1}


def test_a_page_is_made_once_a_second_and_format():
    """Many scrapers cost no more than one."""
    metrics = Metrics(version="1")
    first, _ = metrics.exposition("", now=10.0)
    metrics.record(finished())

    assert metrics.exposition("", now=10.0 + CACHE_S / 2)[0] is first
    assert metrics.exposition(OPENMETRICS, now=10.0 + CACHE_S / 2)[0] != first
    assert metrics.exposition("", now=10.0 + CACHE_S)[0] != first


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/plain", "application/json", "a" * 10_000, "text/plain;version=9\r\nx:y"]
)
def test_other_scrapers_get_plain_text(accept):
    """Whatever a client asks for, the content type is one of two constants."""
    _, content_type = Metrics(version="1").exposition(accept, now=0.0)

    assert content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_openmetrics_can_be_parsed_strictly():
    """The page holds to the stricter format as well, and no series tells a counter's birthday."""
    metrics = Metrics(version="1", snapshot=fleet)
    metrics.record(finished(retries={"connect": 1}))
    metrics.observe_event_loop_lag(0.004)

    page, content_type = metrics.exposition(OPENMETRICS, now=0.0)
    families = {family.name: family for family in parse_openmetrics(page.decode())}

    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert {"tidegate_requests", "tidegate_inter_token_latency_seconds", "process_cpu_seconds"} <= families.keys()
    assert "_created" not in page.decode()


def test_lag_is_never_negative():
    """A timer that fires early by the clock's grain counts as on time."""
    metrics = Metrics(version="1")
    metrics.observe_event_loop_lag(-0.001)
    metrics.observe_event_loop_lag(0.25)

    assert values_of(metrics, "tidegate_event_loop_lag_seconds_sum") == {(): 0.25}
    assert values_of(metrics, "tidegate_event_loop_lag_seconds_count") == {(): 2}


def test_every_outcome_can_be_recorded():
    """No ending is forgotten by the counters."""
    metrics = Metrics(version="1")
    for outcome in Outcome:
        metrics.record(finished(outcome=outcome))

    assert sum(values_of(metrics, "tidegate_requests_total", "outcome").values()) == len(Outcome)
    assert len(values_of(metrics, "tidegate_refusals_total", "reason")) == sum(
        outcome.is_refusal for outcome in Outcome
    )
