"""Turns what an engine says of its cache's blocks into what the gate needs: whose prefix is gone. No I/O.

A corrector: without it the ledger goes by its own sums, and ghost misses tell when these are wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from proxy.engines.kv_events import AllCleared, Batch, BlocksStored, is_on_gpu
from proxy.gate.gate import Gate
from proxy.state.cache_horizon import CacheHorizon

_MARGIN_S: Final = 1.0
"""An engine lets go of a request a little after its answer ended where the client left; clocks are compared as well as
messages are quick. Who was idle for less than this before the horizon keeps its place."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """What one batch came to.

    Attributes:
        stored: blocks that can be found from now on.
        removed: blocks that were given away.
        cleared: how often everything was.
        evicted_sessions: marked out because the engine gave their blocks away.
        cleared_sessions: marked out because it cleared its cache.
    """

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    evicted_sessions: int = 0
    cleared_sessions: int = 0

    @property
    def has_made_room(self) -> bool:
        """Whether somebody who waits may go now."""
        return self.evicted_sessions > 0 or self.cleared > 0


@dataclass(slots=True)
class _Track:
    """One backend's cache, and how far its wall clock is from ours: no message comes before it was sent."""

    horizon: CacheHorizon = field(default_factory=CacheHorizon)
    ahead_s: float = float("inf")
    has_groups: bool = False


class EvictionWatch:
    """Follows the events of every backend that tells them.

    Args:
        gate: told of sessions whose blocks are gone.
        is_one_engine: whether a backend is one engine; what one of several says is not true of the others.
    """

    def __init__(self, gate: Gate, *, is_one_engine: Callable[[str], bool]) -> None:
        self._gate = gate
        self._is_one_engine = is_one_engine
        self._tracks: dict[str, _Track] = {}

    def take(self, backend: str, batch: Batch, now: float) -> Corrections:
        """A batch has come, now in monotonic seconds, in the order of its number."""
        track = self._tracks.get(backend) or self._tracks.setdefault(backend, _Track())
        # A replayed batch comes late: when it happened is told by the engine's clock, and never later than now.
        track.ahead_s = min(track.ahead_s, now - batch.ts)
        at, horizon = batch.ts + track.ahead_s, track.horizon
        stored = removed = cleared = cleared_sessions = 0
        reached = horizon.stored_at
        for event in batch.events:
            if isinstance(event, AllCleared):
                cleared += 1
                horizon.forget()  # of these blocks no removal will be told
                cleared_sessions += self._gate.see_lost(backend, now)
            elif not is_on_gpu(event):
                continue
            elif isinstance(event, BlocksStored):
                stored += len(event.block_hashes)
                track.has_groups = track.has_groups or bool(event.group_idx)
                horizon.stored(event.block_hashes, event.block_size, at)
            else:
                removed += len(event.block_hashes)
                horizon.removed(event.block_hashes)
        evicted = 0
        # A hybrid engine replaces blocks of running requests, and says that they are gone as if they were evicted.
        if horizon.stored_at > reached and not track.has_groups and self._is_one_engine(backend):
            evicted = self._gate.see_lost(backend, now, idle_since_before=horizon.stored_at - _MARGIN_S)
        return Corrections(stored, removed, cleared, evicted, cleared_sessions)

    def forget(self, backend: str) -> None:
        """Events were missed, or the engine is another process: what is known of its cache may be wrong."""
        self._tracks.pop(backend, None)
