"""Requests that wait for room at the proxy, where they can still be re-ordered, re-routed and given up.

Written by the gate alone. Bounded by entries and by the bytes of the bodies that they hold.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Collection, Iterator
from math import inf
from typing import Final, NamedTuple

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
        kept_since: since when it has been kept for that, while it is.
        kept_until: until when, at most.
        kept_s: how long it was before.
        is_hopeless: no engine could hold it; it goes there for the engine's own error.
        relative: the session whose last prompt began like this one, though this is not simply its next turn: another
            one from which it branches off, or its own before a change.
        shared_tokens: prompt tokens that it has in common with what was computed for that one, the head included.
        prefix_break: why it cannot use what its session's last turn left in the cache.
        number: its place in the order of arrival, given by the queue each time it enters.
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
    kept_since: float | None = None
    kept_until: float = 0.0
    kept_s: float = 0.0
    relative: Session | None = None
    shared_tokens: int = 0
    prefix_break: PrefixBreak | None = None
    number: int = 0

    @property
    def relative_home(self) -> str | None:
        """Where the tokens that it shares were computed."""
        return self.relative.home if self.relative is not None and self.shared_tokens else None

    def herd_wait_s(self, now: float) -> float | None:
        """How much of its wait was for the head of its prompt to be computed, not for room; None if it never was."""
        if self.kept_for is None:
            return None
        # Nobody may have looked since it was over.
        return self.kept_s + (min(now, self.kept_until) - self.kept_since if self.kept_since is not None else 0.0)

    def keep(self, now: float, until: float) -> None:
        """It is kept for a head that is being computed, or still is."""
        if self.kept_since is None:
            self.kept_since = now
        self.kept_until = until

    def keep_no_more(self, now: float) -> None:
        """The head is computed, or that took too long: from now on it waits for room alone, if it still waits."""
        self.kept_s, self.kept_since = self.herd_wait_s(now) or 0.0, None


class Sized(NamedTuple):
    """One that waits for a place, as it is sorted by size, with what rules out most of them: they are touched often.

    Attributes:
        tokens: its prompt.
        number: decides between equals.
        is_agent: a sub-agent's turn.
    """

    tokens: int
    number: int
    waiting: Waiting
    arrived_at: float
    head_bytes: int
    shared_tokens: int
    is_agent: bool


class _Indexes:
    """Those of one rank by what the gate looks for. Each event's pass would else walk the hundreds that wait."""

    __slots__ = ("at_home", "by_size", "by_stamp")

    def __init__(self) -> None:
        self.by_size: list[Sized] = []
        self.by_stamp: list[tuple[float, int, Waiting]] = []
        self.at_home: dict[str | None, dict[int, Sized]] = {}

    def add(self, waiting: Waiting) -> None:
        number, turn = waiting.number, waiting.turn
        is_agent = bool(turn.session.agent)
        sized = Sized(
            waiting.prompt_tokens,
            number,
            waiting,
            waiting.arrived_at,
            turn.head_bytes,
            waiting.shared_tokens,
            is_agent,
        )
        insort(self.by_size, sized)
        insort(self.by_stamp, (waiting.stamp, number, waiting))
        self.at_home.setdefault(waiting.session.home, {})[number] = sized

    def remove(self, waiting: Waiting) -> None:
        number = waiting.number
        del self.by_size[bisect_left(self.by_size, (waiting.prompt_tokens, number))]
        del self.by_stamp[bisect_left(self.by_stamp, (waiting.stamp, number))]
        self._take_from(waiting.session.home, number)

    def move(self, session: Session, left: str | None) -> None:
        for sized in [one for one in self.at_home.get(left, {}).values() if one.waiting.session is session]:
            self._take_from(left, sized.number)
            self.at_home.setdefault(session.home, {})[sized.number] = sized

    def _take_from(self, home: str | None, number: int) -> None:
        there = self.at_home[home]
        del there[number]
        if not there:
            del self.at_home[home]


class WaitQueue:
    """Waiting requests by rank, each rank in order of arrival.

    Those that wait for a place (`Rank.SESSION`, `Rank.BATCH`) are found by size, by age and by home too; what they are
    found by must not change while they wait, but for a session's home, which `has_moved` tells.

    Attributes:
        entries: how many wait; looked at for each request.
        keys: how many wait of each fairness key; those that have none are not in it.
        prompt_tokens: of all prompts that wait.
    """

    def __init__(self, *, capacity: int = MAX_WAITING, capacity_bytes: int = MAX_BODY_BYTES) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._by_rank: dict[Rank, dict[int, Waiting]] = {rank: {} for rank in Rank}
        self._indexes = {rank: _Indexes() for rank in (Rank.SESSION, Rank.BATCH)}
        self._twins: dict[tuple[object, int], Waiting] = {}
        self._numbers = 0
        self.entries = 0
        self.prompt_tokens = 0
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
        self._numbers = waiting.number = self._numbers + 1
        if (indexes := self._indexes.get(waiting.rank)) is not None:
            indexes.add(waiting)
        self.entries += 1
        self.prompt_tokens += waiting.prompt_tokens
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
        if (indexes := self._indexes.get(waiting.rank)) is not None:
            indexes.remove(waiting)
        self.entries -= 1
        self.prompt_tokens -= waiting.prompt_tokens
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

    def has_moved(self, session: Session, left: str | None) -> None:
        """A session is at home elsewhere now; its other turns may wait.

        Args:
            session: whose home is the new one already.
            left: where it was at home before.
        """
        for indexes in self._indexes.values():
            indexes.move(session, left)

    def longest_waiting(self, rank: Rank) -> Waiting | None:
        """The one of a rank that has the oldest stamp; of several, the one that came first."""
        by_stamp = self._indexes[rank].by_stamp
        return by_stamp[0][2] if by_stamp else None

    def up_to(self, rank: Rank, prompt_tokens: float) -> list[Sized]:
        """Those of a rank whose prompts are no longer than that, the shortest first."""
        by_size = self._indexes[rank].by_size
        return by_size[: bisect_right(by_size, (prompt_tokens, inf))]

    def at_home(self, rank: Rank, names: Collection[str]) -> dict[int, Sized]:
        """Those of a rank whose sessions were served last by one of these backends, by number."""
        homes = self._indexes[rank].at_home
        found: dict[int, Sized] = {}
        for name in names:
            if name in homes:
                found.update(homes[name])
        return found

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
