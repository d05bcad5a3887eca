"""When waiting, computing or a lease that ends lets somebody start, so that nobody depends on the next report for it.

Called by the gate each time a timer is set, so it looks at the oldest of each rank only: when that one starts, the next
is the oldest; while it cannot, whoever is behind it is looked at with everything else that happens. What was found for
a backend is kept until something happens there or its time comes: most events change one of many.
"""

from collections.abc import Collection, Iterator, Mapping
from math import inf
from typing import Final

from proxy.core.turns import Rank
from proxy.gate.engine_room import LONG_WAIT_S, EngineRoom
from proxy.gate.herd import Herd
from proxy.policy.queueing import HEAD_RESERVATION_S
from proxy.state.wait_queue import WaitQueue

_NEVER: Final = float("-inf")


class WakeUps:
    """The next moment of each backend. Bounded by them.

    Args:
        rooms: the backends' rooms by name.
    """

    def __init__(self, rooms: Mapping[str, EngineRoom]) -> None:
        self._rooms = rooms
        self._at: dict[str, float] = {}

    def next(self, queue: WaitQueue, herd: Herd, now: float, *, changed: Collection[str]) -> float | None:
        """When to look again, in monotonic seconds; None for never.

        Args:
            queue: who waits.
            herd: who of them is kept for a head.
            now: monotonic seconds.
            changed: backends where something has happened since this was asked last.
        """
        at, rooms = self._at, self._rooms
        for name in changed:
            at[name] = _of_room(rooms[name], now)
        first = min(at.values(), default=inf)
        if first <= now:
            for name in [name for name, then in at.items() if then <= now]:
                at[name] = _of_room(rooms[name], now)
            first = min(at.values())
        first = min(first, min((then for then in _of_waiting(queue) if then > now), default=inf))
        if (released_at := herd.next_release_at(now)) is not None:
            first = min(first, released_at)
        return None if first == inf else first


def _of_room(room: EngineRoom, now: float) -> float:
    ledger = room.ledger
    if ledger.capacity is None:
        # A full engine is not full for ever.
        return room.full_until if room.full_until > now else inf
    first = inf
    if (end := room.leases.next_end(now, room.report_at)) is not None and end > now:
        first = end
    # A prompt that tells no first token counts as computed after its time; those behind it have less before them then.
    if ledger.uncached_in_flight(now, room.prefill.tokens_per_s):
        first = min(first, ledger.next_computed_at(room.prefill.tokens_per_s))
    if room.full_at != _NEVER and now < (at := room.full_until) < first:
        first = at
    return first


def _of_waiting(queue: WaitQueue) -> Iterator[float]:
    """The prefill gate's patience with large prompts, the head reservation."""
    for rank in Rank:
        oldest = queue.oldest(rank)
        if oldest is None:
            continue
        yield oldest.arrived_at + LONG_WAIT_S
        yield oldest.stamp + HEAD_RESERVATION_S
