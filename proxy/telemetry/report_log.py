"""Says in the log what changes about the engines' reports: their size, their silence, their restarts. Once a change.

Fed by the composition root with every scrape, good or not; what stays as it was is no line. Bounded by backends.
"""

from proxy.core.capacity import KvCapacity
from proxy.core.reports import ScrapeFailure
from proxy.gate.reporting import EngineChange
from proxy.telemetry.logs import EventLog


class ReportLog:
    """Remembers of each backend what was said last.

    Args:
        log: where to say it.
        stale_after_s: silence of an engine from which on it is worth a line; the gate fills less from then on.
    """

    def __init__(self, log: EventLog, *, stale_after_s: float) -> None:
        self._log = log
        self._stale_after_s = stale_after_s
        self._came_at: dict[str, float] = {}
        self._failed_since: dict[str, float] = {}
        self._stale: set[str] = set()
        self._capacity: dict[str, KvCapacity | None] = {}
        self._turn_caps: dict[str, int | None] = {}
        self._ranks: dict[str, int] = {}
        self._inert: set[str] = set()

    def came(
        self,
        backend: str,
        capacity: KvCapacity | None,
        change: EngineChange | None,
        now: float,
        *,
        turn_cap: int | None = None,
        ranks: int = 1,
        is_prefix_cache_inert: bool = False,
    ) -> None:
        """A good report.

        Args:
            backend: whose.
            capacity: its size, as admission understands it.
            change: what has become of its engine.
            now: monotonic seconds when it was asked for.
            turn_cap: how many turns may run there, where the knee guard says so.
            ranks: engines that requests are sent to one by one.
            is_prefix_cache_inert: no prefix that should lie there is found.
        """
        self._failed_since.pop(backend, None)
        if backend in self._stale:
            self._stale.discard(backend)
            self._log.event("backend.report_fresh", backend=backend, silent_s=round(now - self._came_at[backend], 1))
        self._came_at[backend] = now
        if change is not None:
            self._log.event(f"backend.{change.value}", level="warning", backend=backend)
        if ranks != self._ranks.get(backend, 1):
            self._ranks[backend] = ranks
            self._log.event("backend.ranks", backend=backend, ranks=ranks)
        self._tell_capacity(backend, capacity, None)
        if is_prefix_cache_inert != (backend in self._inert):
            if is_prefix_cache_inert:
                self._inert.add(backend)
                self._log.event("backend.prefix_cache_inert", level="warning", backend=backend)
            else:
                self._inert.discard(backend)
                self._log.event("backend.prefix_cache_works", backend=backend)
        if turn_cap != self._turn_caps.get(backend):
            self._turn_caps[backend] = turn_cap
            if turn_cap is None:
                self._log.event("backend.turn_cap_lifted", backend=backend)
            else:
                self._log.event("backend.turn_cap", backend=backend, turns=turn_cap)

    def failed(self, backend: str, capacity: KvCapacity | None, why: ScrapeFailure, now: float) -> None:
        """No report, or not a good one; a size may be known from the configuration."""
        came_at, since = self._came_at.get(backend), self._failed_since.setdefault(backend, now)
        if came_at is None:
            # A page that is not there will not come; anything else may be an engine that starts.
            if why is ScrapeFailure.MISSING or now - since > self._stale_after_s:
                self._tell_capacity(backend, capacity, why)
        elif backend not in self._stale and now - came_at > self._stale_after_s:
            self._stale.add(backend)
            self._log.event("backend.report_stale", level="warning", backend=backend, reason=why.value)

    def _tell_capacity(self, backend: str, capacity: KvCapacity | None, why: ScrapeFailure | None) -> None:
        if backend in self._capacity and self._capacity[backend] == capacity:
            return
        self._capacity[backend] = capacity
        if capacity is None:
            reason = why.value if why is not None else None
            self._log.event("backend.capacity_unknown", level="warning", backend=backend, reason=reason)
        else:
            tokens, blocks = capacity.total_tokens, capacity.total_blocks
            self._log.event("backend.capacity", backend=backend, tokens=tokens, blocks=blocks)

    def __repr__(self) -> str:
        return f"<ReportLog: {len(self._came_at)} backends, {len(self._stale)} silent>"
