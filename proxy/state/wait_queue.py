"""Requests that wait for room at the proxy, where they can still be re-ordered, re-routed and given up.

Written by the gate alone. Bounded by entries and by the bytes of the bodies that they hold.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.core.turns import PrefixBreak, Rank, Turn
from proxy.state.sessions import Session

MAX_WAITING: Final = 512
MAX_BODY_BYTES: Final = 512 * 2**20
_RESIDENT: Final = Rank.RESIDENT
_REPLACED_ONCE_IN_S: Final = 600.0
"""Longer than any hold, so that a copy that was replaced and comes back is known for one whose client is there."""


class Waiting(Struct, eq=False):
    """One request that waits.

    Attributes:
        candidates: names of backends that may serve it, in order of preference.
        stamp: since when it counts as waiting: its first arrival, kept over refusals by a ticket.
        deadline: when it must be answered one way or the other.
        prompt_tokens: estimated size of its prompt.
        body_bytes: what its body occupies.
        replaced: an older copy of the same turn that stopped waiting for it.
        is_side: a side call (a title, a quota check) under its session's id, but not of its thread of turns.
        has_ticket: it came back for the place that an earlier refusal left it.
        would_wait: it passed although there was no room (shadow mode).
        kept_for: the backend where the head of its prompt is being computed, so that it waited for that.
        is_hopeless: no engine could hold it; it goes there for the engine's own error.
        relative: the session whose last prompt began like this one, though this is not simply its next turn: another
            one from which it branches off, or its own before a change.
        shared_tokens: prompt tokens that it has in common with what was computed for that one, the head included.
        prefix_break: why it cannot use what its session's last turn left in the cache.
    """

    id: int
    turn: Turn
    session: Session
    rank: Rank
    candidates: tuple[str, ...]
    stamp: float
    arrived_at: float
    deadline: float
    prompt_tokens: int
    model: str
    body_bytes: int = 0
    fairness_key: str = ""
    replaced: "Waiting | None" = None
    would_wait: bool = False
    is_side: bool = False
    has_ticket: bool = False
    is_hopeless: bool = False
    kept_for: str | None = None
    relative: Session | None = None
    shared_tokens: int = 0
    prefix_break: PrefixBreak | None = None

    @property
    def relative_home(self) -> str | None:
        """Where the tokens that it shares were computed."""
        return self.relative.home if self.relative is not None and self.shared_tokens else None


class WaitQueue:
    """Waiting requests by rank, each rank in order of arrival.

    Attributes:
        entries: how many wait; looked at for each request.
        keys: how many wait of each fairness key; those that have none are not in it.
    """

    def __init__(self, *, capacity: int = MAX_WAITING, capacity_bytes: int = MAX_BODY_BYTES) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._by_rank: dict[Rank, dict[int, Waiting]] = {rank: {} for rank in Rank}
        self._twins: dict[tuple[object, int], Waiting] = {}
        self.entries = 0
        self.keys: dict[str, int] = {}
        self._replaced_at: OrderedDict[tuple[object, int], float] = OrderedDict()
        self.body_bytes = 0

    def __len__(self) -> int:
        return self.entries

    def has_room(self, body_bytes: int) -> bool:
        """Whether another request may wait."""
        return len(self) < self._capacity and self.body_bytes + body_bytes <= self._capacity_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether the one that came last may not stay."""
        return len(self) > self._capacity or self.body_bytes > self._capacity_bytes

    def surplus(self, arrival: Waiting) -> list[Waiting]:
        """Who may not stay, now that this one came: nobody, some who have waited for less time, or it alone.

        Whoever has waited longest stays, refusals with a ticket in between counted, so that who comes back is not
        refused for ever while newcomers take each place that comes free.
        """
        if not self.is_overfull:
            return []
        is_newest = arrival.stamp == arrival.arrived_at
        if is_newest and _standing(arrival)[:2] >= (self.count(Rank.BATCH) > 0, True):
            return [arrival]  # as most often: nobody has waited for less time, and nobody goes before it
        last = max(self, key=_standing)
        entries, body_bytes = len(self), self.body_bytes
        if last is arrival or (entries - 1 <= self._capacity and body_bytes - last.body_bytes <= self._capacity_bytes):
            return [last]  # sorting them all is for when several have to go
        leaving: list[Waiting] = []
        for entry in sorted(self, key=_standing, reverse=True):
            if entry is arrival:
                break
            leaving.append(entry)
            entries, body_bytes = entries - 1, body_bytes - entry.body_bytes
            if entries <= self._capacity and body_bytes <= self._capacity_bytes:
                return leaving
        return [arrival]

    def twin_of(self, turn: Turn) -> Waiting | None:
        """A waiting copy of the same turn, if there is one."""
        return self._twins.get((turn.session, turn.twin)) if turn.twin else None

    def takes_over(self, turn: Turn, now: float) -> bool:
        """A copy of a turn that waits has come; says whether it takes the place of the one that waits.

        Once in a while: whose client has given up does not come back for it. If a further copy comes, both clients are
        there and each would push the other out for ever; from then on copies wait beside each other.
        """
        key = (turn.session, turn.twin)
        replaced_at = self._replaced_at.pop(key, None)
        self._replaced_at[key] = now
        if len(self._replaced_at) > self._capacity:
            self._replaced_at.popitem(last=False)
        return replaced_at is None or now - replaced_at > _REPLACED_ONCE_IN_S

    def add(self, waiting: Waiting) -> None:
        """A request begins to wait."""
        self._by_rank[waiting.rank][waiting.id] = waiting
        self.entries += 1
        self.keys[waiting.fairness_key] = self.keys.get(waiting.fairness_key, 0) + 1
        self.body_bytes += waiting.body_bytes
        waiting.session.waiting += 1
        waiting.session.waiting_as_resident += waiting.rank is _RESIDENT
        if waiting.turn.twin:
            self._twins[waiting.turn.session, waiting.turn.twin] = waiting

    def remove(self, waiting: Waiting) -> bool:
        """A request waits no more; says whether it did."""
        if self._by_rank[waiting.rank].pop(waiting.id, None) is None:
            return False
        self.entries -= 1
        left = self.keys[waiting.fairness_key] - 1
        if left:
            self.keys[waiting.fairness_key] = left
        else:
            del self.keys[waiting.fairness_key]
        self.body_bytes -= waiting.body_bytes
        waiting.session.waiting -= 1
        waiting.session.waiting_as_resident -= waiting.rank is _RESIDENT
        if waiting.turn.twin:
            key = (waiting.turn.session, waiting.turn.twin)
            if self._twins.get(key) is waiting:
                del self._twins[key]
        return True

    def of(self, rank: Rank) -> list[Waiting]:
        """Those of a rank, in order of arrival."""
        return list(self._by_rank[rank].values())

    def oldest(self, rank: Rank) -> Waiting | None:
        """The one of a rank that came first."""
        return next(iter(self._by_rank[rank].values()), None)

    def count(self, rank: Rank) -> int:
        """How many of a rank wait."""
        return len(self._by_rank[rank])

    def __iter__(self) -> Iterator[Waiting]:
        for entries in self._by_rank.values():
            yield from entries.values()

    def __repr__(self) -> str:
        return f"<WaitQueue { ({rank.name.lower(): len(entries) for rank, entries in self._by_rank.items()}) }>"


def _standing(waiting: Waiting) -> tuple[bool, bool, float, int]:
    """Whoever has the highest leaves first: batches, then the youngest; a resident's only waiting turn goes last."""
    is_resident = waiting.rank is Rank.RESIDENT and waiting.session.waiting == 1
    return waiting.rank is Rank.BATCH, not is_resident, waiting.stamp, waiting.id
