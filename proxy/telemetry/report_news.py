"""Says in the log what becomes of the engines' reports: each change once, however often they are asked for."""

from typing import Final, Protocol

from proxy.core.capacity import KvCapacity
from proxy.core.reports import ScrapeFailure
from proxy.telemetry.logs import LogLevel

_LOST_S: Final = 3.0
"""After so long without a report the gate fills less; a page that comes late now and then is no news."""


class Log(Protocol):
    """Where events go."""

    def event(self, event: str, *, level: LogLevel = "info", **fields: object) -> None:
        """Write one."""


class IsUp(Protocol):
    """Whether a backend passes its probes."""

    def __call__(self, name: str, /) -> bool:
        """Answer for one."""


class ReportNews:
    """Follows the reports of every backend. Bounded by backends.

    Args:
        log: is told.
        is_up: a backend that is down has no reports either, which needs no line of its own.
    """

    def __init__(self, log: Log, is_up: IsUp) -> None:
        self._log = log
        self._is_up = is_up
        self._told: set[str] = set()
        self._last_at: dict[str, float] = {}
        self._lost: set[str] = set()

    def on_report(self, name: str, asked_at: float, capacity: KvCapacity | None) -> None:
        """There was one; `capacity` is what it amounts to."""
        self._last_at[name] = asked_at
        if name in self._lost:
            self._lost.discard(name)
            self._log.event("backend.reports_back", backend=name)
        if name in self._told:
            return
        self._told.add(name)
        if capacity is None:
            self._log.event("backend.capacity_unknown", level="warning", backend=name)
        else:
            self._log.event(
                "backend.capacity", backend=name, tokens=capacity.total_tokens, blocks=capacity.total_blocks
            )

    def on_failure(self, name: str, why: ScrapeFailure, asked_at: float) -> None:
        """There was none."""
        last_at = self._last_at.get(name)
        if last_at is None:
            if name not in self._told and why is ScrapeFailure.MISSING:
                self._told.add(name)
                self._log.event("backend.capacity_unknown", level="warning", backend=name, reason=why.value)
        elif name not in self._lost and asked_at - last_at > _LOST_S and self._is_up(name):
            self._lost.add(name)
            self._log.event("backend.reports_lost", level="warning", backend=name, reason=why.value)
