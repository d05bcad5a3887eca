"""Metrics that are read at the moment of a scrape: the fleet's snapshot as Prometheus families.

Registered by `metrics.py`. One snapshot is taken a page, so that the figures on it fit together. A family without a
value is left out, since unknown is not zero.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from proxy.core.snapshots import BackendSnapshot, EngineSnapshot, FleetSnapshot, KvSnapshot

_Values: TypeAlias = Iterable[tuple[tuple[str, ...], float | None]]
_Read: TypeAlias = Callable[[BackendSnapshot], float | None]


def _kv(read: Callable[[KvSnapshot], float | None]) -> _Read:
    return lambda backend: read(backend.kv) if backend.kv is not None else None


def _engine(read: Callable[[EngineSnapshot], float | None]) -> _Read:
    return lambda backend: read(backend.engine) if backend.engine is not None else None


_BY_BACKEND: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("up", "1 while a backend gets requests.", lambda it: it.is_up),
    ("inflight_requests", "Requests that the proxy has there now.", lambda it: it.inflight_requests),
    ("report_age_seconds", "Since the engine's last good report was asked for.", lambda it: it.report_age_s),
    ("kv_capacity_tokens", "The engine's KV cache.", _kv(lambda it: it.capacity_tokens)),
    ("kv_idle_tokens", "Prefixes of sessions between two turns.", _kv(lambda it: it.idle_tokens)),
    ("headroom_tokens", "What a new session could take.", _kv(lambda it: it.headroom_tokens)),
    ("prefill_tokens", "Prompt tokens sent and not computed yet.", _kv(lambda it: it.prefill_tokens)),
    ("admission_ratio", "Share of the KV cache that may be filled.", _kv(lambda it: it.admission_ratio)),
    ("external_ratio", "Of uncached prompt tokens, those from outside.", _kv(lambda it: it.external_ratio)),
    ("prefix_cache_inert", "1 while no prefix is found there.", _kv(lambda it: it.is_prefix_cache_inert)),
    ("turn_cap", "Most turns at once, where more were seen to be slower.", _kv(lambda it: it.turn_cap)),
    ("engine_waiting_requests", "Requests that wait in the engine.", _engine(lambda it: it.waiting_requests)),
    ("draft_accept_ratio", "Accepted of proposed draft tokens.", _engine(lambda it: it.draft_accept_ratio)),
    ("tokens_per_draft", "Mean length of an accepted draft.", _engine(lambda it: it.tokens_per_draft)),
)
"""Gauges with the label `backend` alone: what follows `tidegate_backend_`, its help, where it is read."""

_COUNTED: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("prefix_ghost_misses", "Turns that were believed cached and came back cold.", lambda it: it.ghost_misses),
    ("backend_preemptions", "Requests that the engine put back.", _engine(lambda it: it.preemptions)),
    ("backend_drafts", "Speculations made.", _engine(lambda it: it.drafts)),
    ("backend_draft_tokens", "Draft tokens proposed.", _engine(lambda it: it.draft_tokens)),
    ("backend_accepted_draft_tokens", "Draft tokens accepted.", _engine(lambda it: it.accepted_draft_tokens)),
)
"""Counters that somebody else keeps."""


class SnapshotCollector(Collector):
    """Asks for a snapshot at each scrape, so that nothing has to be kept in step with what it shows."""

    def __init__(self, snapshot: Callable[[], FleetSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """No names in advance: which families there are is known at the scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families that have a value now."""
        snapshot = self._snapshot()
        backends = snapshot.backends
        for name, documentation, read in _BY_BACKEND:
            values = [((backend.name,), read(backend)) for backend in backends]
            yield from _gauge(f"tidegate_backend_{name}", documentation, ["backend"], values)
        yield from _gauge(
            "tidegate_backend_kv_pinned_tokens", "Held by running turns.", ["backend", "source"], _pinned(backends)
        )
        yield from _gauge(
            "tidegate_sessions", "Sessions that have a place there.", ["backend", "state"], _sessions(backends)
        )
        for name, documentation, read in _COUNTED:
            yield from _counter(f"tidegate_{name}", documentation, [((it.name,), read(it)) for it in backends])
        yield from _of_the_queue(snapshot)


def _of_the_queue(snapshot: FleetSnapshot) -> Iterator[Metric]:
    waiting = snapshot.waiting
    yield from _gauge(
        "tidegate_waiting_requests",
        "Requests that wait for room at the proxy.",
        ["class"],
        [((one.name,), one.requests) for one in waiting],
    )
    held = sum(one.prompt_tokens for one in waiting) if waiting else None
    yield from _gauge("tidegate_held_tokens", "Prompt tokens of waiting requests.", [], [((), held)])
    known = snapshot.known_sessions
    yield from _gauge("tidegate_known_sessions", "Sessions remembered, resident or not.", [], [((), known)])


def _pinned(backends: Iterable[BackendSnapshot]) -> _Values:
    for backend in backends:
        if backend.kv is not None:
            yield (backend.name, "own"), backend.kv.running_tokens + backend.kv.head_tokens
            yield (backend.name, "foreign"), backend.kv.foreign_tokens


def _sessions(backends: Iterable[BackendSnapshot]) -> _Values:
    for backend in backends:
        if backend.kv is not None:
            yield (backend.name, "running"), backend.kv.running_turns
            yield (backend.name, "idle"), backend.kv.idle_sessions


def _gauge(name: str, documentation: str, labels: list[str], values: _Values) -> Iterator[Metric]:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for own, value in values:
        if value is not None:
            family.add_metric(own, float(value))
    if family.samples:
        yield family


def _counter(name: str, documentation: str, values: _Values) -> Iterator[Metric]:
    family = CounterMetricFamily(name, documentation, labels=["backend"])
    for own, value in values:
        if value is not None:
            family.add_metric(own, float(value))
    if family.samples:
        yield family
