"""When waiting, computing or a lease that ends lets somebody start, so that nobody depends on the next report for it.

Called by the gate each time a timer is set, so it looks at the oldest of each rank only: when that one starts, the next
is the oldest; while it cannot, whoever is behind it is looked at with everything else that happens.
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from proxy.core.turns import Rank
from proxy.gate.engine_room import LONG_WAIT_S, EngineRoom
from proxy.gate.herd import Herd
from proxy.policy.queueing import HEAD_RESERVATION_S
from proxy.state.wait_queue import WaitQueue

_NEVER: Final = float("-inf")


def next_by_time_alone(queue: WaitQueue, rooms: Iterable[EngineRoom], herd: Herd, now: float) -> float | None:
    """When to look again, in monotonic seconds; None for never."""
    first = min((at for at in _of_waiting(queue) if at > now), default=inf)
    if (released_at := herd.next_release_at(now)) is not None:
        first = min(first, released_at)
    for room in rooms:
        ledger = room.ledger
        if ledger.capacity is not None and (end := room.next_lease_end(now)) is not None and end < first:
            first = end
        # A prompt that tells no first token counts as computed after its time.
        if ledger.uncached_tokens and now < (at := ledger.next_computed_at(room.prefill.tokens_per_s)) < first:
            first = at
        # A full engine is not full for ever.
        if room.full_at != _NEVER and now < (at := room.full_until) < first:
            first = at
    return None if first == inf else first


def _of_waiting(queue: WaitQueue) -> Iterator[float]:
    """The prefill gate's patience with large prompts, the head reservation."""
    for rank in Rank:
        oldest = queue.oldest(rank)
        if oldest is None:
            continue
        yield oldest.arrived_at + LONG_WAIT_S
        yield oldest.stamp + HEAD_RESERVATION_S
