"""Who of those that wait starts now, and where: one look along the queue, or at one that has just come.

Called by the gate when something has happened. Changes what being placed changes, and nothing for who goes on waiting.
"""

from collections.abc import Collection, Mapping
from typing import Final

from proxy.core.turns import Rank
from proxy.gate.bookings import Bookings
from proxy.gate.engine_room import EngineRoom
from proxy.gate.fitting import Fitting, Footprint
from proxy.gate.homing import Homing
from proxy.gate.lessons import Lessons
from proxy.gate.line import Line
from proxy.gate.openings import Openings
from proxy.gate.placement import Placement
from proxy.policy import queueing
from proxy.state.sessions import Residency
from proxy.state.wait_queue import Waiting, WaitQueue

_BATCH: Final = Rank.BATCH
_CONTROL: Final = Rank.CONTROL
_SESSION: Final = Rank.SESSION
_IN: Final = Residency.IN


class Starts:
    """Starts requests.

    Args:
        rooms: the backends' rooms by name.
        queue: who waits.
        lessons: who goes first among them.
        fitting: whether one fits on a backend.
        openings: who certainly fits nowhere.
        homing: where one is tried, in which order.
        bookings: takes the room.
        is_enforcing: False lets everything pass.
    """

    def __init__(
        self,
        rooms: Mapping[str, EngineRoom],
        queue: WaitQueue,
        *,
        lessons: Lessons,
        fitting: Fitting,
        openings: Openings,
        homing: Homing,
        bookings: Bookings,
        is_enforcing: bool,
    ) -> None:
        self._rooms = rooms
        self._queue = queue
        self._fitting = fitting
        self._openings = openings
        self._homing = homing
        self._bookings = bookings
        self._is_enforcing = is_enforcing
        self._line = Line(queue, openings, lessons)

    def all_that_may(self, names: Collection[str], now: float) -> list[Placement]:
        """Start every waiting request that may start on these backends now."""
        names = self._open(names, now)
        self._openings.begin(now, looks=len(names) * len(self._queue))
        placed: list[Placement] = []
        for waiting in self._restless(names):
            if not self._stays(waiting, names):
                self._try(waiting, names, now, placed)
        for waiting in self._queue.of(Rank.CONTROL):
            self._try(waiting, names, now, placed)
        for rank in (Rank.SESSION, Rank.BATCH):
            if rank is Rank.BATCH and len(self._queue) > self._queue.count(Rank.BATCH):
                break
            overdue = self._overdue(rank, now)
            taken: Collection[str] = ()
            if overdue is not None and not self._try_session(overdue, names, now, placed):
                taken = _wanted_by(overdue)
            free = _without(names, taken)
            for waiting in self._line.in_order(rank, free, now, but=overdue):
                self._try_session(waiting, free, now, placed)
        return placed

    def arrival(self, arrival: Waiting, names: Collection[str], now: float) -> list[Placement]:
        """Start one that has just come, if it may: nothing else has changed, and nobody else is looked at again."""
        names = self._open(names, now)
        self._openings.begin(now, looks=len(names))
        placed: list[Placement] = []
        if arrival.rank is not _SESSION:
            self._try(arrival, names, now, placed)
            return placed
        if self._queue.count(_SESSION):
            oldest = self._overdue(_SESSION, now)
            if oldest is not None and oldest is not arrival and oldest.stamp <= arrival.stamp:
                names = _without(names, _wanted_by(oldest))
        self._try_session(arrival, names, now, placed)
        return placed

    def _restless(self, names: Collection[str]) -> list[Waiting]:
        """Residents' turns but for those whose home has not changed: a hundred may wait elsewhere."""
        everywhere = len(self._rooms)
        return [
            waiting
            for waiting in self._queue.of(Rank.RESIDENT)
            if (home := (session := waiting.session).home) in names
            or session.residency is not _IN
            or (home is not None and self._homing.may_leave(home))
            or len(waiting.candidates) < everywhere
        ]

    def _stays(self, waiting: Waiting, names: Collection[str]) -> bool:
        """Whether a resident's turn goes on waiting for certain, since its home is full."""
        session = waiting.session
        if session.residency is not _IN or session.home not in names or session.home not in waiting.candidates:
            return False
        return not (self._openings.may_run(waiting, session.home) or self._homing.may_leave(session.home))

    def _overdue(self, rank: Rank, now: float) -> Waiting | None:
        """Whoever has waited longest, once that is a minute: it goes first.

        Until it can, nobody else may enter where it wants to go.
        """
        oldest = self._queue.longest_waiting(rank)
        is_overdue = oldest is not None and now - oldest.stamp > queueing.HEAD_RESERVATION_S
        return oldest if is_overdue else None

    def leave(self, waiting: Waiting) -> bool:
        """A request waits no longer, and was not placed; its session may keep its place for less long now."""
        self._openings.forget(waiting.session.home)
        return self._queue.remove(waiting)

    def _open(self, names: Collection[str], now: float) -> Collection[str]:
        """Those that take work now, as far as is known."""
        if self._is_enforcing:
            rooms = self._rooms
            names = [name for name in names if not rooms[name].is_full(now)]
        return frozenset(names) if len(names) > 1 else names

    def _try(self, waiting: Waiting, names: Collection[str], now: float, placed: list[Placement]) -> None:
        """A resident turn or a control request."""
        if waiting.rank is _CONTROL:
            for name in self._homing.order(waiting, names, now, fits_beside=True):
                if took := self._fitting.fits_control(waiting, name):
                    self._place(waiting, "control", took, now, placed)
                    return
                if self._openings.may_fit(waiting, name) and (took := self._fitting.fits_set(waiting, name, now)):
                    self._place(waiting, "new", took, now, placed)
                    return
                self._openings.changed.add(name)
            return
        session = waiting.session
        if session.residency is not _IN or session.home is None or session.home not in waiting.candidates:
            # Pushed out, or moved where it may not go, while it waited: it needs room like any other session now.
            self.leave(waiting)
            waiting.rank = _SESSION
            self._queue.add(waiting)
            return
        self._try_session(waiting, names, now, placed)

    def _try_resident(
        self, waiting: Waiting, home: str, names: Collection[str], now: float, placed: list[Placement]
    ) -> bool:
        """A turn of a session that is in, which may go nowhere but home; says whether it was placed."""
        if home not in names:
            return False
        took = self._fitting.fits_running(waiting, home, now)
        if took is None:
            self._openings.changed.add(home)  # what time alone has made of it was seen
            return False
        self._place(waiting, "resident", took, now, placed)
        return True

    def _try_session(self, waiting: Waiting, names: Collection[str], now: float, placed: list[Placement]) -> bool:
        """A session that is new or out, or in, as another turn of it may have made it; says whether it was placed."""
        session = waiting.session
        home = session.home if session.residency is _IN else None
        if home is not None and home in waiting.candidates and not self._homing.may_leave(home):
            return self._try_resident(waiting, home, names, now, placed)
        for name in self._homing.order(waiting, names, now):
            fits = self._fitting.fits_running if name == home else self._fitting.fits_set
            if took := fits(waiting, name, now):
                admission = "new" if session.residency is Residency.NEW else "returning"
                self._place(waiting, "resident" if name == home else admission, took, now, placed)
                return True
            self._openings.changed.add(name)
        return False

    def _place(self, waiting: Waiting, admission: str, took: Footprint, now: float, placed: list[Placement]) -> None:
        home = (session := waiting.session).home
        self._openings.forget(took.backend)
        if home != took.backend:
            self._openings.forget(home)
        placed.append(self._bookings.place(waiting, admission, took, now))
        if session.waiting and session.home != home:
            self._queue.has_moved(session, home)


def _wanted_by(waiting: Waiting) -> Collection[str]:
    """Where a session wants to go: home, or wherever it may."""
    home = waiting.session.home
    return waiting.candidates if home is None or home not in waiting.candidates else (home,)


def _without(names: Collection[str], taken: Collection[str]) -> Collection[str]:
    return frozenset(names).difference(taken) if taken else names
