"""Sessions between two turns on one backend, in the order in which its engine gives their blocks away.

The front of that order, up to the first lease that still runs, is kept apart with its sums: what could be given away is
asked with every request and must not cost a walk. Whether a lease still runs is the owner's to say. Written by the
ledger alone; bounded by the sessions whose blocks fit on the backend.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice

from proxy.state.sessions import Residency, Session

Rest = tuple[float, int]
"""What lies there of one session: blocks of its own, and the head that it shares."""


class IdleSessions:
    """Longest idle first.

    Attributes:
        blocks: of all.
        residents: how many keep their place.
        kept_by: by credential, how many of them and their blocks; asked at each turn's end, so it must cost no walk.
        over_blocks: of those whose lease is over.
        over_residents: how many of them still count as residents.
        changes: grows with each change, so that what was worked out from the list is known to be old.
    """

    def __init__(self) -> None:
        self._over: OrderedDict[Session, Rest] = OrderedDict()
        self._kept: OrderedDict[Session, Rest] = OrderedDict()
        self._returned: set[Session] = set()
        self.blocks = 0.0
        self.residents = 0
        self.kept_by: dict[str, tuple[int, float]] = {}
        self.over_blocks = 0.0
        self.over_residents = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._over) + len(self._kept)

    def __iter__(self) -> Iterator[tuple[Session, Rest]]:
        return chain(self._over.items(), self._kept.items())

    def get(self, session: Session) -> Rest | None:
        """What lies there of a session."""
        rest = self._kept.get(session)
        return self._over.get(session) if rest is None else rest

    def is_over(self, session: Session) -> bool:
        """Whether its lease was seen to be over."""
        return session in self._over

    def add(self, session: Session, rest: Rest) -> None:
        """A session begins to rest; it was not resting."""
        self._kept[session] = rest
        self.blocks += rest[0]
        self._count(session, rest[0], 1)
        self.changes += 1

    def remove(self, session: Session) -> Rest | None:
        """A session rests no more; what lay there, if it did."""
        rest = self._kept.pop(session, None)
        if rest is None:
            rest = self._over.pop(session, None)
            if rest is None:
                return None
            self.over_blocks = self.over_blocks - rest[0] if self._over else 0.0
            self.over_residents -= session.residency is Residency.IN
        # Sums of floats drift; nothing is exactly nothing.
        self.blocks = self.blocks - rest[0] if self._over or self._kept else 0.0
        self._count(session, rest[0], -1)
        self.changes += 1
        return rest

    def give_up_place(self, session: Session) -> None:
        """A session is resident no more; its blocks lie there until everything older is gone."""
        rest = self.get(session)
        if rest is not None:
            self._count(session, rest[0], -1)
            self.over_residents -= session.residency is Residency.IN and session in self._over
            self.changes += 1
        session.residency = Residency.OUT

    def first_kept(self) -> Session | None:
        """The longest idle one whose lease was not seen to be over."""
        return next(iter(self._kept), None)

    def kept(self, skip: int = 0) -> Iterator[Session]:
        """From that one on, or behind it."""
        return islice(self._kept, skip, None)

    def let_go(self) -> Rest:
        """The lease of the first that was kept is over. It stays so: a lease is not given twice for one rest."""
        session, rest = self._kept.popitem(last=False)
        self._over[session] = rest
        self.over_blocks += rest[0]
        self.over_residents += session.residency is Residency.IN
        return rest

    def come_back(self, session: Session) -> None:
        """A turn of it is here: it is to be kept for as long as that waits or runs, though its lease was over."""
        if session in self._over:
            self._returned.add(session)
            self.changes += 1

    def has_returned(self, but: Session | None = None) -> bool:
        """Whether another one whose lease was over is to be kept."""
        if not self._returned:
            return False
        gone = [one for one in self._returned if not one.has_come_back or one not in self._over]
        if gone:
            self._returned.difference_update(gone)
            self.changes += 1
        return len(self._returned) > (but in self._returned)

    def _count(self, session: Session, blocks: float, sign: int) -> None:
        if session.residency is not Residency.IN:
            return
        self.residents += sign
        key = session.key.credential
        number, held = self.kept_by.get(key, (0, 0.0))
        if number + sign:
            self.kept_by[key] = number + sign, held + sign * blocks
        else:
            del self.kept_by[key]

    def __repr__(self) -> str:
        return f"<IdleSessions {self.blocks:.0f} blocks of {len(self)}, {len(self._over)} over>"
