"""When waiting alone, or computing alone, lets somebody start, so that nobody depends on the next report for it. Pure.

Called by the gate each time a timer is set, so it looks at the oldest of each rank only: when that one starts, the next
is the oldest; while it cannot, whoever is behind it is looked at with everything else that happens.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from proxy.core.turns import Rank
from proxy.gate.engine_room import LONG_WAIT_S, EngineRoom
from proxy.policy.queueing import HEAD_RESERVATION_S
from proxy.state.wait_queue import WaitQueue

_NEVER: Final = float("-inf")


def next_by_time_alone(queue: WaitQueue, rooms: Iterable[EngineRoom], now: float) -> float | None:
    """When to look again, in monotonic seconds; None for never."""
    times = (*_of_waiting(queue), *_of_rooms(rooms))
    return min((at for at in times if at > now), default=None)


def _of_waiting(queue: WaitQueue) -> Iterator[float]:
    """The prefill gate's patience with large prompts, the head reservation."""
    for rank in Rank:
        oldest = queue.oldest(rank)
        if oldest is None:
            continue
        yield oldest.arrived_at + LONG_WAIT_S
        yield oldest.stamp + HEAD_RESERVATION_S


def _of_rooms(rooms: Iterable[EngineRoom]) -> Iterator[float]:
    """A prompt that tells no first token counts as computed after its time; a full engine is not full for ever."""
    for room in rooms:
        if room.full_at != _NEVER:
            yield room.full_until
        if room.ledger.uncached_tokens:
            at = room.ledger.next_computed_at(room.prefill.tokens_per_s)
            if at is not None:
                yield at
