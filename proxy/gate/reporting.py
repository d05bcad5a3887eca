"""Turns what a backend's engines report into what the gate needs: capacity, usage, pressure, restarts. No I/O.

Called with each scrape. Several engines behind one address (data parallel) count as one pool, a little smaller than
their sum, because a request is held by one of them and not by all.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum, unique
from typing import Final, TypeVar

from proxy.core.capacity import KvCapacity
from proxy.core.reports import Continuity, EngineReport, ReportDelta
from proxy.engines.capacity import capacity_of
from proxy.engines.delta import EngineTrack, follow
from proxy.gate.gate import Gate

_SPREAD_SHARE: Final = 0.88
"""Of the sum over several ranks: .85 of each, over a limit that starts at .97."""
_SHORT_USAGE_RATIO: Final = 0.9
_Number = TypeVar("_Number", int, float)
_UNSTEADY: Final = frozenset({Continuity.UNSURE, Continuity.ALTERNATING})


@unique
class EngineChange(StrEnum):
    """What a report tells of an engine that whoever looks after it wants to know."""

    RESTARTED = "restarted"
    ASLEEP = "asleep"
    AWAKE = "awake"


class EngineWatch:
    """Follows the reports of every backend. Bounded by backends and their ranks."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tracks: dict[tuple[str, str], EngineTrack] = {}
        self.latest: dict[str, tuple[EngineReport, ...]] = {}

    def take(self, backend: str, reports: Sequence[EngineReport], asked_at: float) -> EngineChange | None:
        """One scrape of a backend, asked for at `asked_at` (monotonic seconds); says what has become of its engine."""
        if not reports:
            return None
        self.latest[backend] = tuple(reports)
        deltas = [self._follow(backend, report, asked_at) for report in reports]
        change = self._change(backend, reports, deltas)
        if change is not None:
            # Waking is a beginning too: everybody is cold, and prompts come all at once.
            self._gate.see_restart(backend, asked_at)
        facts = reports[0].capacity
        pool = _pool([capacity_of(report.capacity) for report in reports])
        known = self._gate.rooms[backend].capacity
        is_steady = not any(delta.continuity in _UNSTEADY for delta in deltas)
        # Of several processes that answer in turn the smallest counts; following each of them would empty the ledger.
        if is_steady or known is None or (pool is not None and pool.total_blocks < known.total_blocks):
            self._gate.see_capacity(backend, pool, facts.max_num_batched_tokens, now=asked_at)
        self._gate.see_report(
            backend,
            asked_at,
            usage_ratio=_mean([report.kv_usage_ratio for report in reports]),
            preemptions=sum(delta.preemptions or 0 for delta in deltas),
            is_short_of_memory=any(_is_short(report) for report in reports),
            prefill_tokens_per_s=max((delta.prefill_tokens_per_s or 0.0 for delta in deltas), default=0.0),
        )
        room = self._gate.rooms[backend]
        for delta in deltas:
            room.external.on_report(delta.fetched_tokens, delta.computed_tokens)
            room.prefixes.on_report(delta.prefix_queries_tokens, delta.prefix_hits_tokens)
        room.knee.see_speed(
            asked_at,
            running=_total([report.running for report in reports]),
            tokens_per_s=_total([delta.generation_tokens_per_s for delta in deltas]),
            computed_tokens_per_s=_mean([delta.computed_tokens_per_s for delta in deltas]),
            interval_s=_mean([delta.interval_s for delta in deltas]),
        )
        return change

    def _change(
        self, backend: str, reports: Sequence[EngineReport], deltas: Sequence[ReportDelta]
    ) -> EngineChange | None:
        is_asleep, was_asleep = any(report.is_asleep for report in reports), self._gate.rooms[backend].is_asleep
        self._gate.see_sleep(backend, is_asleep=is_asleep)
        if is_asleep != was_asleep:
            return EngineChange.ASLEEP if is_asleep else EngineChange.AWAKE
        has_restarted = any(delta.continuity is Continuity.RESTARTED for delta in deltas)
        return EngineChange.RESTARTED if has_restarted else None

    def _follow(self, backend: str, report: EngineReport, asked_at: float) -> ReportDelta:
        key = (backend, report.rank)
        self._tracks[key], delta = follow(self._tracks.get(key), report, asked_at)
        return delta


def _pool(capacities: Sequence[KvCapacity | None]) -> KvCapacity | None:
    known = [capacity for capacity in capacities if capacity is not None]
    if len(known) != len(capacities) or not known:
        return None
    if len(known) == 1:
        return known[0]
    total = int(_SPREAD_SHARE * sum(capacity.total_blocks for capacity in known))
    return replace(known[0], total_blocks=total)


def _total(numbers: Sequence[_Number | None]) -> _Number | None:
    """Their sum; unknown as soon as one is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def _mean(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return sum(known) / len(known) if known and len(known) == len(ratios) else None


def _is_short(report: EngineReport) -> bool:
    """Whether requests wait for memory: for nothing else do they wait at such a usage."""
    waiting = report.waiting if report.waiting_capacity is None else report.waiting_capacity
    usage = report.kv_usage_ratio
    return bool(waiting) and usage is not None and usage > _SHORT_USAGE_RATIO
