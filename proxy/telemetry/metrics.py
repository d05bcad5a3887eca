"""All metrics of the proxy: what they are called, how they are counted, how they are exposed.

Fed by the recorder and the loop monitor, read by the admin paths, always on the event loop. Never takes a label value
that is not from a closed set or from the configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from proxy.core.gaps import GAP_BOUNDS_S
from proxy.core.outcomes import Outcome
from proxy.core.requests import FinishedRequest, Usage
from proxy.core.snapshots import FleetSnapshot
from proxy.core.turns import PrefixBreak
from proxy.gate.evictions import Corrections
from proxy.telemetry.counters import Counter
from proxy.telemetry.gauges import SnapshotCollector
from proxy.telemetry.histograms import Histogram

_DURATION_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
_TTFT_BOUNDS_S = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.35,
    0.5,
    0.75,
    1.0,
    1.5,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    600.0,
)
_OVERHEAD_BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_QUEUE_WAIT_BOUNDS_S = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 600.0)
_HERD_WAIT_BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)
_ESTIMATE_BOUNDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)
_LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

MAX_MODELS = 1000
"""Distinct model labels; further ones count as `other`. Adapters that come and go for months stay bounded by it."""
CACHE_S = 1.0
"""A scrape costs about 8 us a sample on the event loop; within this time further scrapers get the same page."""


_OVERLOADED = Outcome.REFUSED_OVERLOADED


class Metrics:
    """The metric half of a recorder, with a registry of its own.

    The callables are asked at each scrape; what is not given is not exported, since unknown is not zero.

    Args:
        version: of the proxy.
        snapshot: the fleet now; a backend that is no longer named disappears.
        buffered_body_bytes: request bodies in memory now, in bytes.
        open_connections: client connections now.
        dropped_log_lines: log lines that were thrown away since the start.
    """

    def __init__(
        self,
        *,
        version: str,
        snapshot: Callable[[], FleetSnapshot] = FleetSnapshot,
        buffered_body_bytes: Callable[[], int] | None = None,
        open_connections: Callable[[], int] | None = None,
        dropped_log_lines: Callable[[], int] | None = None,
    ) -> None:
        # Process-wide in prometheus_client: without it every counter has a second series with its birthday.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library leaves it untyped
        self.registry = CollectorRegistry(auto_describe=False)
        self._pages: dict[bool, tuple[float, bytes]] = {}
        self._models: set[str] = set()
        self._register_counters()
        self._register_histograms()
        self.registry.register(SnapshotCollector(snapshot))
        build = Gauge("tidegate_build_info", "1, with the running version.", ["version"], registry=self.registry)
        build.labels(version).set(1)
        self._read_at_scrape("tidegate_buffered_body_bytes", "Request bodies in memory.", buffered_body_bytes)
        self._read_at_scrape("tidegate_open_connections", "Client connections.", open_connections)
        if dropped_log_lines is not None:
            self.registry.register(_DroppedLines(dropped_log_lines))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def record(self, finished: FinishedRequest) -> None:
        """Count one finished request."""
        model, route = self._model_label(finished.model), finished.route
        self._requests.inc(route, model, finished.outcome)
        if finished.outcome.is_refusal:
            self._refusals.inc(finished.outcome)
        else:
            # A refusal takes no time; among the durations it would make a bad hour look fast.
            self._duration.observe(finished.duration_s, route, model)
        if finished.ttft_s is not None:
            self._ttft.observe(finished.ttft_s, route, model, finished.prefix)
        if finished.overhead_s is not None:
            self._overhead.observe(finished.overhead_s)
        if finished.gap_counts:
            self._gaps.merge(finished.gap_counts, finished.gap_sum_s, model)
        for reason, count in finished.retries.items():
            self._retries.inc(reason, by=count)
        self._count_tokens(model, finished.usage)
        self._count_admission(finished)

    def observe_event_loop_lag(self, lag_s: float) -> None:
        """Count how much later than asked, in seconds, the event loop woke its monitor."""
        self._lag.observe(max(lag_s, 0.0))

    def count_kv_events(self, backend: str, corrections: Corrections) -> None:
        """Count what a batch of an engine's events told, and what came of it."""
        told = {"stored": corrections.stored, "removed": corrections.removed, "cleared": corrections.cleared}
        for event, count in told.items():
            if count:
                self._kv_events.inc(backend, event, by=count)
        gone = {"evicted": corrections.evicted_sessions, "cleared": corrections.cleared_sessions}
        for reason, sessions in gone.items():
            if sessions:
                self._kv_corrections.inc(backend, reason, by=sessions)

    def count_malformed_kv_events(self, backend: str) -> None:
        """Count a message that could not be read."""
        self._kv_events.inc(backend, "malformed")

    def count_kv_event_gap(self, backend: str, *, is_filled: bool) -> None:
        """Count events that were missing, sent again or not."""
        self._kv_gaps.inc(backend, "replayed" if is_filled else "lost")

    def exposition(self, accept_header: str, *, now: float) -> tuple[bytes, str]:
        """The page for a scraper and its content type; at most one is made a second and format.

        Args:
            accept_header: as the scraper sent it; anything but OpenMetrics gets the plain text format.
            now: monotonic seconds.
        """
        # The library's own choice would repeat a version from the header in the answer, and so is not used.
        is_openmetrics = "application/openmetrics-text" in accept_header
        made_at, page = self._pages.get(is_openmetrics, (float("-inf"), b""))
        if now - made_at >= CACHE_S:
            page = _to_openmetrics(self.registry) if is_openmetrics else _to_text(self.registry)
            self._pages[is_openmetrics] = (now, page)
        return page, openmetrics.CONTENT_TYPE_LATEST if is_openmetrics else _PLAIN_TEXT

    def _register_counters(self) -> None:
        self._requests = self._counter("requests", "Requests that ended.", ["route", "model", "outcome"])
        refusals = [outcome for outcome in Outcome if outcome.is_refusal]
        self._refusals = self._counter("refusals", "Requests that the proxy turned away itself.", ["reason"], refusals)
        self._retries = self._counter("retries", "Attempts that were repeated.", ["reason"])
        self._tokens = self._counter("tokens", "Tokens that engines reported.", ["model", "kind"])
        self._would_wait = self._counter("would_wait", "Requests let through that would have waited.", ["class"])
        self._breaks = self._counter(
            "prefix_breaks", "Turns whose session's prefix was of no use to them.", ["reason"], PrefixBreak
        )
        self._expected = self._counter("prefix_expected_tokens", "Prompt tokens believed cached.", ["backend"])
        self._hits = self._counter("prefix_hit_tokens", "Of those, tokens that were cached.", ["backend"])
        self._kv_events = self._counter("kv_events", "What engines told of their caches.", ["backend", "event"])
        self._kv_gaps = self._counter("kv_event_gaps", "Times that events were missing.", ["backend", "outcome"])
        self._kv_corrections = self._counter(
            "kv_corrections", "Sessions that lost their place by events.", ["backend", "reason"]
        )

    def _register_histograms(self) -> None:
        labels = ["route", "model"]
        self._duration = self._histogram(
            "request_duration_seconds", "From a request's arrival to its end.", labels, _DURATION_BOUNDS_S
        )
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            [*labels, "prefix"],
            _TTFT_BOUNDS_S,
        )
        self._gaps = self._histogram(
            "inter_token_latency_seconds", "Pauses between token events of a stream.", ["model"], GAP_BOUNDS_S
        )
        self._overhead = self._histogram(
            "overhead_seconds", "Time that the proxy added before sending.", [], _OVERHEAD_BOUNDS_S
        )
        self._queue_wait = self._histogram(
            "queue_wait_seconds", "How long requests waited for room.", ["class", "outcome"], _QUEUE_WAIT_BOUNDS_S
        )
        self._herd_wait = self._histogram(
            "herd_wait_seconds", "Of that, waiting for a shared head to be computed.", [], _HERD_WAIT_BOUNDS_S
        )
        self._estimates = self._histogram(
            "estimate_error_ratio", "Estimated by counted tokens; 1 is exact.", ["kind"], _ESTIMATE_BOUNDS
        )
        self._lag = self._histogram(
            "event_loop_lag_seconds", "How late the event loop woke a timer.", [], _LAG_BOUNDS_S
        )

    def _counter(
        self, name: str, documentation: str, labels: Sequence[str], starts_with: Iterable[str] = ()
    ) -> Counter:
        counter = Counter(f"tidegate_{name}", documentation, labels)
        for value in starts_with:
            counter.inc(value, by=0.0)  # else the first one of its kind makes no rate
        self.registry.register(counter)
        return counter

    def _histogram(self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]) -> Histogram:
        histogram = Histogram(f"tidegate_{name}", documentation, labels, bounds)
        self.registry.register(histogram)
        return histogram

    def _read_at_scrape(self, name: str, documentation: str, read: Callable[[], int] | None) -> None:
        if read is not None:
            Gauge(name, documentation, registry=self.registry).set_function(read)

    def _model_label(self, model: str) -> str:
        if model in self._models:
            return model
        if len(self._models) >= MAX_MODELS:
            return "other"
        self._models.add(model)
        return model

    def _count_tokens(self, model: str, usage: Usage) -> None:
        if usage.prompt_tokens:
            self._tokens.inc(model, "prompt", by=usage.prompt_tokens)
        if usage.cached_tokens:
            self._tokens.inc(model, "cached", by=usage.cached_tokens)
        if usage.completion_tokens:
            self._tokens.inc(model, "completion", by=usage.completion_tokens)

    def _count_admission(self, finished: FinishedRequest) -> None:
        """What the gate did with it, and how right the gate's beliefs were."""
        counted, cached = finished.usage.prompt_tokens, finished.usage.cached_tokens
        if finished.queue is not None and finished.queue_wait_s is not None:
            self._queue_wait.observe(finished.queue_wait_s, finished.queue, _how_waiting_ended(finished))
            if finished.herd_wait_s is not None:
                self._herd_wait.observe(finished.herd_wait_s)
            if finished.would_wait:
                self._would_wait.inc(finished.queue)
        if finished.prefix_break is not None:
            self._breaks.inc(finished.prefix_break)
        if finished.estimated_tokens and counted:
            self._estimates.observe(finished.estimated_tokens / counted, "prompt")
        if finished.backend is not None and finished.expected_tokens and cached is not None:
            expected = min(finished.expected_tokens, counted or finished.expected_tokens)
            self._expected.inc(finished.backend, by=expected)
            # Hits beyond what was expected are left out, so that the two can be compared.
            self._hits.inc(finished.backend, by=min(cached, expected))


def _how_waiting_ended(finished: FinishedRequest) -> str:
    if finished.outcome is _OVERLOADED:
        return "refused"
    return "left" if finished.admission is None else "admitted"


# The library leaves these untyped in part.
_to_text: Callable[[CollectorRegistry], bytes] = generate_latest
_to_openmetrics: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest
_PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _DroppedLines(Collector):
    """Reads the log's own count at each scrape."""

    def __init__(self, dropped_log_lines: Callable[[], int]) -> None:
        self._dropped_log_lines = dropped_log_lines

    def describe(self) -> Iterable[Metric]:
        return [self._family(0)]

    def collect(self) -> Iterator[Metric]:
        yield self._family(self._dropped_log_lines())

    def _family(self, count: int) -> CounterMetricFamily:
        documentation = "Log lines thrown away because whoever reads the log did not keep up."
        return CounterMetricFamily("tidegate_log_lines_dropped", documentation, value=count)
