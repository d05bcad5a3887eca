"""Turns what a backend's engines report into what the gate needs: capacity, usage, pressure, restarts. No I/O.

Called with each scrape. Several engines behind one address (data parallel) get a room each where requests can be sent
to a rank. Else they count as one pool, a little smaller than their sum: one of them holds a request, and not all.
Beside ranks there is such a pool as well, for routes that take none; each sees as foreign what runs in the other.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum, unique
from operator import attrgetter
from typing import Final, TypeVar

from proxy.core.capacity import KvCapacity, together
from proxy.core.reports import Continuity, EngineKind, EngineReport, ReportDelta
from proxy.engines.capacity import capacity_of, capacity_of_tokens
from proxy.engines.delta import EngineTrack, follow
from proxy.gate.gate import Gate
from proxy.gate.settings import EngineSettings
from proxy.state.ranks import RankTable

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
    """Follows the reports of every backend. Bounded by backends and their ranks.

    Args:
        gate: who is told.
        ranks: which engines can be told apart; written here.
        settings: by backend, where anything is configured about its engines.
    """

    def __init__(
        self, gate: Gate, ranks: RankTable | None = None, settings: Mapping[str, EngineSettings] | None = None
    ) -> None:
        self._gate = gate
        self._ranks = ranks or RankTable()
        self._settings = settings or {}
        self._tracks: dict[tuple[str, str], EngineTrack] = {}
        self.latest: dict[str, tuple[EngineReport, ...]] = {}

    def take(self, backend: str, reports: Sequence[EngineReport], asked_at: float) -> EngineChange | None:
        """One scrape of a backend, asked for at `asked_at` (monotonic seconds); says what has become of its engine."""
        if not reports:
            return None
        self.latest[backend] = tuple(reports)
        settings = self._settings.get(backend, EngineSettings())
        deltas = [self._follow(backend, report, asked_at) for report in reports]
        rooms = self._rooms(backend, reports, deltas, settings, asked_at)
        capacities = [capacity_of(report.capacity) for report in reports]
        if len(rooms) == 1:
            return self._take(backend, reports, deltas, asked_at, together(capacities, _SPREAD_SHARE))
        # One that does not tell its size is no larger than the others; without one it would be let fill up.
        least = min((one for one in capacities if one is not None), key=attrgetter("total_blocks"), default=None)
        # By position: behind a node of several, labels are those of the whole, and the header counts its own.
        sizes = [own or least for own in capacities]
        parts = zip(rooms, reports, deltas, sizes, strict=True)
        changes = [self._take(room, [report], [delta], asked_at, size) for room, report, delta, size in parts]
        pool = self._ranks.pool_of(backend)
        changes.append(self._take(pool, reports, deltas, asked_at, together(sizes, _SPREAD_SHARE)))
        return next((change for change in EngineChange if change in changes), None)

    def _rooms(
        self,
        backend: str,
        reports: Sequence[EngineReport],
        deltas: Sequence[ReportDelta],
        settings: EngineSettings,
        asked_at: float,
    ) -> Sequence[str]:
        """The rooms of a backend, by rank, as this report tells them."""
        before = self._ranks.current_rooms_of(backend)
        if self._ranks.see(backend, len(reports) if _takes_ranks(reports, deltas, settings) else 1):
            now = self._ranks.current_rooms_of(backend)
            for room in now:
                self._gate.open_room(room, backend)
                if settings.kv_cache_tokens is not None:
                    engines = len(self._ranks.rooms_of(backend))
                    is_pool = engines > 1 and room == self._ranks.pool_of(backend)
                    share = _SPREAD_SHARE if is_pool else 1 / engines
                    capacity = capacity_of_tokens(int(settings.kv_cache_tokens * share))
                    self._gate.see_capacity(room, capacity, now=asked_at)
            for room in before:
                if room not in now:
                    self._gate.see_restart(room, asked_at)  # what lies there cannot be asked for any more
        return self._ranks.rooms_of(backend)

    def _take(
        self,
        name: str,
        reports: Sequence[EngineReport],
        deltas: Sequence[ReportDelta],
        asked_at: float,
        pool: KvCapacity | None,
    ) -> EngineChange | None:
        """What the engines of one room report."""
        change = self._change(name, reports, deltas)
        if change is not None:
            # Waking is a beginning too: everybody is cold, and prompts come all at once.
            self._gate.see_restart(name, asked_at)
        facts = reports[0].capacity
        known = self._gate.rooms[name].capacity
        is_steady = not any(delta.continuity in _UNSTEADY for delta in deltas)
        # Of several processes that answer in turn the smallest counts; following each of them would empty the ledger.
        if is_steady or known is None or (pool is not None and pool.total_blocks < known.total_blocks):
            self._gate.see_capacity(name, pool, facts.max_num_batched_tokens, now=asked_at)
        self._gate.see_report(
            name,
            asked_at,
            usage_ratio=_mean([report.kv_usage_ratio for report in reports]),
            preemptions=sum(delta.preemptions or 0 for delta in deltas),
            is_short_of_memory=any(_is_short(report) for report in reports),
            prefill_tokens_per_s=max((delta.prefill_tokens_per_s or 0.0 for delta in deltas), default=0.0),
            holds_back=any(report.waiting_deferred for report in reports),
        )
        room = self._gate.rooms[name]
        room.prefixes.is_one_engine = len(reports) == 1 and is_steady
        for delta in deltas:
            room.external.on_report(delta.fetched_tokens, delta.computed_tokens)
            room.prefixes.on_report(delta.prefix_queries_tokens, delta.prefix_hits_tokens, asked_at)
        room.knee.see_speed(
            asked_at,
            running=_total([report.running for report in reports]),
            tokens_per_s=_total([delta.generation_tokens_per_s for delta in deltas]),
            computed_tokens_per_s=_mean([delta.computed_tokens_per_s for delta in deltas]),
            interval_s=_mean([delta.interval_s for delta in deltas]),
        )
        return change

    def _change(self, name: str, reports: Sequence[EngineReport], deltas: Sequence[ReportDelta]) -> EngineChange | None:
        is_asleep, was_asleep = any(report.is_asleep for report in reports), self._gate.rooms[name].is_asleep
        self._gate.see_sleep(name, is_asleep=is_asleep)
        if is_asleep != was_asleep:
            return EngineChange.ASLEEP if is_asleep else EngineChange.AWAKE
        has_restarted = any(delta.continuity is Continuity.RESTARTED for delta in deltas)
        return EngineChange.RESTARTED if has_restarted else None

    def _follow(self, backend: str, report: EngineReport, asked_at: float) -> ReportDelta:
        key = (backend, report.rank)
        self._tracks[key], delta = follow(self._tracks.get(key), report, asked_at)
        return delta


def _takes_ranks(reports: Sequence[EngineReport], deltas: Sequence[ReportDelta], settings: EngineSettings) -> bool:
    """Whether each engine of a page can be sent its own requests.

    vLLM takes the rank from a header, on most routes (`Route.takes_rank`); other engines do so by version and route, so
    only where the configuration says it. Of several processes that answer in turn each has ranks of its own.
    """
    if settings.data_parallel == "sum" or any(delta.continuity is Continuity.ALTERNATING for delta in deltas):
        return False
    return settings.data_parallel == "ranks" or all(report.kind is EngineKind.VLLM for report in reports)


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
