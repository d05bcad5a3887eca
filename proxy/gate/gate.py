"""The gate over all backends: sessions, the queue, and what each event means for them. See the package's docstring.

Between looking at the room and taking it nothing else can run, because nothing in here waits.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

from proxy.core.capacity import KvCapacity
from proxy.core.turns import Rank, Turn, TurnEnd
from proxy.gate import tickets
from proxy.gate.arrivals import Arrivals
from proxy.gate.bookings import Bookings
from proxy.gate.engine_room import EngineRoom
from proxy.gate.fitting import Fitting, Footprint
from proxy.gate.herd import Herd
from proxy.gate.homing import Homing
from proxy.gate.lessons import Lessons
from proxy.gate.line import Line
from proxy.gate.lineage import Lineage
from proxy.gate.openings import Openings
from proxy.gate.placement import Placement
from proxy.gate.settings import GateSettings
from proxy.gate.wake_ups import WakeUps
from proxy.policy import limit as limits
from proxy.policy import queueing
from proxy.state.prefix_index import PrefixIndex
from proxy.state.sessions import Residency, SessionTable
from proxy.state.wait_queue import Waiting, WaitQueue

_BATCH: Final = Rank.BATCH
_CONTROL: Final = Rank.CONTROL
_SESSION: Final = Rank.SESSION
_IN: Final = Residency.IN


class Gate:
    """Decides for every backend at once.

    Args:
        backends: their names.
        settings: what can be chosen.
        lessons: what has been learned so far; nothing by default.
        room: what keeps a backend's room; the policy simulation puts others in its place.
        weights: how much more than its size says a backend is to take, by name; 1 for who is not in it.

    Attributes:
        counters: what happened, by name; for metrics.
    """

    def __init__(
        self,
        backends: Iterable[str],
        settings: GateSettings,
        *,
        lessons: Lessons | None = None,
        room: type[EngineRoom] = EngineRoom,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.settings = settings
        self.lessons = lessons or Lessons()
        learned = self.lessons.gaps, self.lessons.odds
        self._new_room = partial(room, *learned, settings.report_interval_s, guards_knee=settings.guards_knee)
        self.rooms = {name: self._new_room() for name in backends}
        self.sessions = SessionTable()
        self.prefixes = PrefixIndex()
        self.queue = WaitQueue(capacity=settings.max_waiting, capacity_bytes=settings.max_waiting_bytes)
        self.counters: Counter[str] = Counter()
        self._herd = Herd(self.rooms, self.lessons, self.counters, is_on=settings.holds_herd and settings.is_enforcing)
        self._fitting = Fitting(self.rooms, self.lessons, self.sessions, self._herd, is_enforcing=settings.is_enforcing)
        self._openings = Openings(self.rooms, self.lessons, self.sessions, is_enforcing=settings.is_enforcing)
        self._weights = dict(weights or {})
        self._homing = Homing(self.rooms, self._fitting, self._openings, self._herd, self._weights)
        self._line = Line(self.queue, self._openings, self.lessons)
        self._wake_ups = WakeUps(self.rooms)
        self._bookings = Bookings(
            self.rooms, self.lessons, self.queue, self.counters, target_wait_s=settings.target_wait_s
        )
        self._arrivals = Arrivals(
            lineage=Lineage(self.sessions, self.prefixes, self.lessons),
            queue=self.queue,
            lessons=self.lessons,
            fitting=self._fitting,
            bookings=self._bookings,
            openings=self._openings,
            counters=self.counters,
            max_hold_s=settings.max_hold_s,
        )

    # -- requests

    def arrive(
        self,
        turn: Turn,
        candidates: Sequence[str],
        now: float,
        *,
        model: str = "",
        body_bytes: int = 0,
        patience_s: float | None = None,
    ) -> Waiting:
        """A request is here. It waits from now on; `pump` says when it stops waiting.

        Args:
            turn: what it is.
            candidates: backends that may serve it, at least one.
            now: monotonic seconds.
            model: closed label; what is learned about sizes is kept by model.
            body_bytes: what holding it costs.
            patience_s: the client's own timeout.
        """
        waiting = self._arrivals.meet(turn, candidates, now, model=model, body_bytes=body_bytes, patience_s=patience_s)
        self.queue.add(waiting)
        return waiting

    def admit(
        self,
        turn: Turn,
        candidates: Sequence[str],
        now: float,
        *,
        open_names: Collection[str],
        model: str = "",
        body_bytes: int = 0,
        patience_s: float | None = None,
    ) -> tuple[Waiting, Placement | None, bool]:
        """A request is here, and starts at once if it may: what does is never in the queue.

        Args:
            turn: what it is.
            candidates: backends that may serve it, at least one.
            now: monotonic seconds.
            open_names: those of them that may take work now.
            model: see `arrive`, like the others.
            body_bytes: what holding it costs.
            patience_s: the client's own timeout.

        Returns:
            The request; its placement, else it is in the queue; whether it was tried, else `pump` is to be told of it.
        """
        waiting = self._arrivals.meet(turn, candidates, now, model=model, body_bytes=body_bytes, patience_s=patience_s)
        # A batch may let others start first, and of copies that wait beside each other the queue knows the last.
        if waiting.rank is not _BATCH and self.queue.twin_of(turn) is None:
            placed = self._try_arrival(waiting, self._open(open_names, now), now)
            if placed:
                return waiting, placed[0], True
            self.queue.add(waiting)
            return waiting, None, True
        self.queue.add(waiting)
        return waiting, None, False

    def pump(
        self, now: float, only: Collection[str] | None = None, *, arrival: Waiting | None = None
    ) -> list[Placement]:
        """Start every waiting request that may start now.

        Args:
            now: monotonic seconds.
            only: backends whose room has changed; None for all.
            arrival: nothing has changed but that this one came: the others need not be looked at again.
        """
        if not self.queue.entries:
            return []
        names = self._open(self.rooms if only is None else only, now)
        if arrival is not None and arrival.rank is not Rank.BATCH:
            return self._try_arrival(arrival, names, now)
        self._openings.begin(now, looks=len(names) * len(self.queue))
        placed: list[Placement] = []
        for waiting in self._restless(names):
            if not self._stays(waiting, names):
                self._try(waiting, names, now, placed)
        for waiting in self.queue.of(Rank.CONTROL):
            self._try(waiting, names, now, placed)
        for rank in (Rank.SESSION, Rank.BATCH):
            if rank is Rank.BATCH and len(self.queue) > self.queue.count(Rank.BATCH):
                break
            overdue = self._overdue(rank, now)
            taken: Collection[str] = ()
            if overdue is not None and not self._try_session(overdue, names, now, placed):
                taken = _wanted_by(overdue)
            free = _without(names, taken)
            for waiting in self._line.in_order(rank, free, now, but=overdue):
                self._try_session(waiting, free, now, placed)
        return placed

    def _open(self, names: Collection[str], now: float) -> Collection[str]:
        """Those that take work now, as far as is known."""
        if self.settings.is_enforcing:
            rooms = self.rooms
            names = [name for name in names if not rooms[name].is_full(now)]
        return frozenset(names) if len(names) > 1 else names

    def _try_arrival(self, arrival: Waiting, names: Collection[str], now: float) -> list[Placement]:
        """Nothing has changed but that this one came: the others need not be looked at again."""
        self._openings.begin(now, looks=len(names))
        placed: list[Placement] = []
        if arrival.rank is not _SESSION:
            self._try(arrival, names, now, placed)
            return placed
        if self.queue.count(_SESSION):
            oldest = self._overdue(_SESSION, now)
            if oldest is not None and oldest is not arrival and oldest.stamp <= arrival.stamp:
                names = _without(names, _wanted_by(oldest))
        self._try_session(arrival, names, now, placed)
        return placed

    def _restless(self, names: Collection[str]) -> list[Waiting]:
        """Residents' turns but for those whose home has not changed: a hundred may wait elsewhere."""
        everywhere = len(self.rooms)
        return [
            waiting
            for waiting in self.queue.of(Rank.RESIDENT)
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
        oldest = self.queue.longest_waiting(rank)
        is_overdue = oldest is not None and now - oldest.stamp > queueing.HEAD_RESERVATION_S
        return oldest if is_overdue else None

    def reroute(self, waiting: Waiting, candidates: Sequence[str]) -> None:
        """Other backends may serve a waiting request now; `pump` moves a resident whose home is not among them."""
        waiting.candidates = tuple(candidates)

    def give_up(self, waiting: Waiting, now: float, *, keeps_ticket: bool, has_left: bool = False) -> bool:
        """A request waits no longer without having been placed; says whether it was still waiting.

        Args:
            waiting: the request.
            now: monotonic seconds.
            keeps_ticket: its session may come back within a while and counts as waiting since it first came.
            has_left: its client is gone, so that the while is shorter.
        """
        if not self._leave(waiting):
            return False
        if keeps_ticket:
            self.keep_place(waiting, now, has_left=has_left)
        return True

    def keep_place(self, waiting: Waiting, now: float, *, has_left: bool) -> None:
        """A request was not served; its session may come back for its place in line."""
        if tickets.issue(waiting, now, has_left=has_left):
            self.counters["tickets_issued"] += 1

    def expected_wait_s(self, now: float) -> float:
        """How long a newcomer would probably wait, from what is ahead of it and how fast room comes free."""
        tokens_per_s = sum(room.release.look(now) for room in self.rooms.values())
        return self.queue.prompt_tokens / tokens_per_s if tokens_per_s > 0 else queueing.HEAD_RESERVATION_S

    # -- what happens to placed turns

    def first_token(self, placement: Placement, now: float) -> None:
        """A turn's prompt is computed."""
        self._openings.forget(placement.backend)
        self._bookings.first_token(placement, now)

    def generated(self, placement: Placement, tokens: int) -> None:
        """A running answer has so many tokens now."""
        if self._bookings.generated(placement, tokens):
            self._openings.forget(placement.backend)

    def end(self, placement: Placement, end: TurnEnd, now: float) -> None:
        """A turn has ended, however it did: its room is given back, its session stays resident or not, we learn."""
        home = placement.waiting.session.home
        self._openings.forget(placement.backend)
        if home != placement.backend:
            self._openings.forget(home)
        self._bookings.end(placement, end, now)

    # -- what engines say

    def open_room(self, name: str, like: str) -> None:
        """Another engine of a backend can be told apart. Its room stays when it goes, for the turns that ran there."""
        if name not in self.rooms:
            self.rooms[name] = self._new_room()
            self._weights[name] = self._weights.get(like, 1.0)
            self._openings.changed.add(name)

    def see_capacity(
        self, backend: str, capacity: KvCapacity | None, batch_tokens: int | None = None, *, now: float = 0.0
    ) -> None:
        """What a backend's labels amount to. A change (another model, another size) empties its ledger of residents."""
        room = self.rooms[backend]
        self._openings.forget(backend)
        if batch_tokens:
            room.batch_tokens = batch_tokens
        if capacity is None or capacity == room.ledger.capacity:
            return
        if room.ledger.capacity is not None:
            self._bookings.lose(backend, now)
            room.forget_process()
        # Turns already in flight are not booked; the usage gauge shows them as foreign until they end.
        room.ledger.capacity = capacity

    def see_report(
        self,
        backend: str,
        now: float,
        *,
        usage_ratio: float | None,
        preemptions: int,
        is_short_of_memory: bool,
        prefill_tokens_per_s: float = 0.0,
    ) -> None:
        """One good report of a backend; capacity comes separately.

        Args:
            backend: whose.
            now: when it was asked for.
            usage_ratio: share of blocks held by running requests, ours and others'.
            preemptions: since the last report.
            is_short_of_memory: requests wait for blocks inside the engine at a usage above nine tenths.
            prefill_tokens_per_s: prompts were computed at least so fast; 0 when nothing is known of it.
        """
        room = self.rooms[backend]
        self._openings.forget(backend)
        room.report_at = now
        room.release.look(now)
        room.see_computed(now)
        room.prefill.on_report(prefill_tokens_per_s)
        room.limit = limits.after_report(
            room.limit,
            now,
            preemptions=preemptions,
            is_short_of_memory=is_short_of_memory,
            has_waiting=len(self.queue) > 0,
        )
        ledger = room.ledger
        if usage_ratio is not None and ledger.capacity is not None and room.last_end_at < now:
            own = ledger.pinned_blocks + ledger.head_blocks
            ledger.see_foreign(usage_ratio * ledger.capacity.total_blocks - own)

    def see_restart(self, backend: str, now: float) -> None:
        """A backend's engine is another process now, or slept."""
        self.see_lost(backend, now)
        self.rooms[backend].forget_process()
        self.counters["restarts"] += 1

    def see_lost(self, backend: str, now: float, *, idle_since_before: float = inf) -> int:
        """A backend's cache lost what was last used before then; all by default. Says of how many sessions."""
        self._openings.forget(backend)
        return self._bookings.lose(backend, now, idle_since_before)

    def see_sleep(self, backend: str, *, is_asleep: bool) -> None:
        """Whether a backend's last report says that it sleeps: it gets nothing until one says that it does not."""
        self.rooms[backend].is_asleep = is_asleep

    def see_overload(self, backend: str, now: float) -> None:
        """A backend answered that it has no room: none is counted there until its next report says what is true."""
        self.rooms[backend].full_at = now
        self._openings.changed.add(backend)
        self.counters["overloads"] += 1

    def next_event_at(self, now: float) -> float | None:
        """When to pump again although nothing happened: a lease, somebody's patience or a computing ends meanwhile."""
        if not self.queue.entries:
            return None
        return self._wake_ups.next(self.queue, self._herd, now, changed=self._openings.take_changed())

    # -- inside

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
            self._leave(waiting)
            waiting.rank = Rank.SESSION
            self.queue.add(waiting)
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

    def _leave(self, waiting: Waiting) -> bool:
        """A request waits no longer, and was not placed; its session may keep its place for less long now."""
        self._openings.forget(waiting.session.home)
        return self.queue.remove(waiting)

    def _place(self, waiting: Waiting, admission: str, took: Footprint, now: float, placed: list[Placement]) -> None:
        home = (session := waiting.session).home
        self._openings.forget(took.backend)
        if home != took.backend:
            self._openings.forget(home)
        placed.append(self._bookings.place(waiting, admission, took, now))
        if session.waiting and session.home != home:
            self.queue.has_moved(session, home)


def _wanted_by(waiting: Waiting) -> Collection[str]:
    """Where a session wants to go: home, or wherever it may."""
    home = waiting.session.home
    return waiting.candidates if home is None or home not in waiting.candidates else (home,)


def _without(names: Collection[str], taken: Collection[str]) -> Collection[str]:
    return frozenset(names).difference(taken) if taken else names
