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
from proxy.gate.fitting import Fitting
from proxy.gate.herd import Herd
from proxy.gate.homing import Homing
from proxy.gate.lessons import Lessons
from proxy.gate.lineage import Lineage
from proxy.gate.openings import Openings
from proxy.gate.placement import Placement
from proxy.gate.settings import GateSettings
from proxy.gate.starts import Starts
from proxy.gate.wake_ups import WakeUps
from proxy.policy import limit as limits
from proxy.policy import queueing
from proxy.state.prefix_index import PrefixIndex
from proxy.state.sessions import SessionTable
from proxy.state.wait_queue import Waiting, WaitQueue

_BATCH: Final = Rank.BATCH


class Gate:
    """Decides for every backend at once.

    Args:
        backends: their names.
        settings: what can be chosen.
        lessons: what has been learned so far; nothing by default.
        room: what keeps a backend's room; the policy simulation puts others in its place.
        starts: what starts requests; the same.
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
        starts: type[Starts] = Starts,
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
        self._wake_ups = WakeUps(self.rooms)
        self._bookings = Bookings(
            self.rooms, self.lessons, self.queue, self.counters, target_wait_s=settings.target_wait_s
        )
        self._starts = starts(
            self.rooms,
            self.queue,
            lessons=self.lessons,
            fitting=self._fitting,
            openings=self._openings,
            homing=self._homing,
            bookings=self._bookings,
            is_enforcing=settings.is_enforcing,
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
            placed = self._starts.arrival(waiting, open_names, now)
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
        names = self.rooms if only is None else only
        if arrival is not None and arrival.rank is not _BATCH:
            return self._starts.arrival(arrival, names, now)
        return self._starts.all_that_may(names, now)

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
        if not self._starts.leave(waiting):
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
        holds_back: bool = False,
    ) -> None:
        """One good report of a backend; capacity comes separately.

        Args:
            backend: whose.
            now: when it was asked for.
            usage_ratio: share of blocks held by running requests, ours and others'.
            preemptions: since the last report.
            is_short_of_memory: requests wait for blocks inside the engine at a usage above nine tenths.
            prefill_tokens_per_s: prompts were computed at least so fast; 0 when nothing is known of it.
            holds_back: requests wait inside the engine for something else than room: another adapter's turns, a fetch.
        """
        room = self.rooms[backend]
        self._openings.forget(backend)
        room.report_at = now
        room.release.look(now)
        room.see_computed(now)
        room.prefill.on_report(prefill_tokens_per_s)
        if holds_back:
            room.prefill.see_held_back(now)
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
