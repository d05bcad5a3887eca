"""The gate over all backends: sessions, the queue, and what each event means for them. See the package's docstring.

Between looking at the room and taking it nothing else can run, because nothing in here waits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from proxy.core.capacity import KvCapacity
from proxy.core.turns import Rank, Turn, TurnEnd
from proxy.gate.engine_room import EngineRoom
from proxy.gate.lessons import Lessons
from proxy.gate.placement import Placement
from proxy.policy import limit as limits
from proxy.policy import queueing
from proxy.state.kv_ledger import Hold
from proxy.state.sessions import Residency, Session, SessionTable
from proxy.state.wait_queue import Waiting, WaitQueue

_REGROW_TOKENS: Final = 256
"""A running answer is booked anew each time it has grown by so much."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What can be chosen.

    Attributes:
        is_enforcing: False lets everything pass at once and only counts what would have waited.
        max_hold_s: longest wait of a request before it is refused with a ticket.
        target_wait_s: the wait of a session to aim for when more want in than fit; shorter is fairer and slower.
        max_waiting: requests that wait at most, and the bytes of their bodies.
    """

    is_enforcing: bool = True
    max_hold_s: float = 240.0
    target_wait_s: float = 900.0
    max_waiting: int = 512
    max_waiting_bytes: int = 512 * 2**20


class Gate:
    """Decides for every backend at once.

    Args:
        backends: their names.
        settings: what can be chosen.

    Attributes:
        counters: what happened, by name; for metrics.
    """

    def __init__(self, backends: Iterable[str], settings: GateSettings) -> None:
        self.settings = settings
        self.lessons = Lessons()
        self.rooms = {name: EngineRoom(self.lessons.gaps, self.lessons.odds) for name in backends}
        self.sessions = SessionTable()
        self.queue = WaitQueue(capacity=settings.max_waiting, capacity_bytes=settings.max_waiting_bytes)
        self.counters: dict[str, int] = {}
        self._ids = count(1)
        self._released_blocks_per_s = 0.0
        self._released_at: float | None = None

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
        session, forgotten = self.sessions.touch(turn.session, now)
        for gone in forgotten:
            self._leave_home(gone)
        if session.turns and not session.is_busy and session.stamp is None:
            self.lessons.gaps.on_return(session.last_stop, now - session.idle_since)
            if session.turns == 1:
                self.lessons.odds.on_return(session.is_named)
        prompt_tokens = self.lessons.estimate(turn, session, model)
        stamp = session.stamp if session.stamp is not None and now <= session.stamp_until else now
        older = self.queue.twin_of(turn)
        if older is not None:
            # Its client gave up on it and asks again: the copy takes its place.
            self.queue.remove(older)
            stamp = min(stamp, older.stamp)
            self._count("resends")
        waiting = Waiting(
            id=next(self._ids),
            turn=turn,
            session=session,
            rank=self.lessons.rank(turn, session, prompt_tokens, candidates),
            candidates=tuple(candidates),
            stamp=stamp,
            arrived_at=now,
            deadline=now + queueing.hold_limit_s(patience_s, self.settings.max_hold_s),
            prompt_tokens=prompt_tokens,
            model=model,
            body_bytes=body_bytes,
            fairness_key=turn.session.credential,
            replaced=older,
        )
        self.lessons.lift(waiting.fairness_key, (other.fairness_key for other in self.queue))
        self.queue.add(waiting)
        return waiting

    def pump(self, now: float, only: Iterable[str] | None = None) -> list[Placement]:
        """Start every waiting request that may start now.

        Args:
            now: monotonic seconds.
            only: backends whose room has changed; None for all.
        """
        if not len(self.queue):
            return []
        names = set(self.rooms if only is None else only)
        placed: list[Placement] = []
        for waiting in self.queue.of(Rank.RESIDENT) + self.queue.of(Rank.CONTROL):
            self._try(waiting, names, now, placed)
        taken: set[str] = set()
        for rank in (Rank.SESSION, Rank.BATCH):
            if rank is Rank.BATCH and len(self.queue) > self.queue.count(Rank.BATCH):
                break
            for waiting in sorted(self.queue.of(rank), key=lambda entry: self.lessons.order(entry, now)):
                is_placed = self._try_session(waiting, names - taken, now, placed)
                if not is_placed and now - waiting.stamp > queueing.HEAD_RESERVATION_S:
                    # Nobody overtakes it where it wants to go: its home, or anywhere.
                    taken.update(waiting.candidates if waiting.session.home is None else (waiting.session.home,))
        return placed

    def give_up(self, waiting: Waiting, now: float, *, keeps_ticket: bool) -> bool:
        """A request waits no longer without having been placed; says whether it was still waiting.

        Args:
            waiting: the request.
            now: monotonic seconds.
            keeps_ticket: its session may come back within a while and counts as waiting since it first came.
        """
        if not self.queue.remove(waiting):
            return False
        if keeps_ticket:
            waiting.session.stamp = waiting.stamp
            waiting.session.stamp_until = now + queueing.TICKET_TTL_S
            self._count("tickets_issued")
        return True

    def expected_wait_s(self) -> float:
        """How long a newcomer would probably wait, from what is ahead of it and how fast room comes free."""
        ahead = sum(other.prompt_tokens for other in self.queue)
        block_tokens = next((r.capacity.block_tokens for r in self.rooms.values() if r.capacity), 16)
        if self._released_blocks_per_s <= 0:
            return queueing.HEAD_RESERVATION_S
        return ahead / (self._released_blocks_per_s * block_tokens)

    # -- what happens to placed turns

    def first_token(self, placement: Placement, now: float) -> None:
        """A turn's prompt is computed."""
        if placement.has_first_token:
            return
        placement.has_first_token = True
        room = self.rooms[placement.backend]
        room.ledger.computed(placement.id)
        if placement.was_alone and room.ledger.uncached_tokens == 0:
            placement.prefill_s = now - placement.placed_at

    def generated(self, placement: Placement, tokens: int) -> None:
        """A running answer has so many tokens now."""
        placement.generated_tokens = tokens
        if tokens - placement.booked_tokens >= _REGROW_TOKENS:
            placement.booked_tokens = tokens
            self._book(placement, placement.waiting.prompt_tokens + tokens)

    def end(self, placement: Placement, end: TurnEnd, now: float) -> None:
        """A turn has ended, however it did: its room is given back, its session stays resident or not, we learn."""
        room = self.rooms[placement.backend]
        waiting, session = placement.waiting, placement.waiting.session
        room.inflight -= 1
        session.inflight -= 1
        room.control_blocks -= placement.control_blocks
        hold = room.ledger.give_back(placement.id)
        room.last_end_at = now
        self.lessons.learn(room, placement, end, now)
        self.lessons.charge(placement, end, now)
        if waiting.rank is Rank.CONTROL or hold is None:
            return
        if end.has_first_token or placement.has_first_token:
            self._note_turn(session, waiting.turn, end, waiting.prompt_tokens + placement.generated_tokens)
        session.last_stop = end.stop
        session.idle_since = now
        if not session.context_tokens and session.inflight == 0:
            # Its first turn ended before its prompt was computed: nothing of it lies anywhere.
            session.residency, session.home = Residency.NEW, None
        self._settle(room, placement, hold, now)

    # -- what engines say

    def see_capacity(
        self, backend: str, capacity: KvCapacity | None, batch_tokens: int | None = None, *, now: float = 0.0
    ) -> None:
        """What a backend's labels amount to. A change (another model, another size) empties its ledger of residents."""
        room = self.rooms[backend]
        if batch_tokens:
            room.batch_tokens = batch_tokens
        if capacity is None or capacity == room.ledger.capacity:
            return
        if room.ledger.capacity is not None:
            room.forget_residents(now)
        # Turns already in flight are not booked; the usage gauge shows them as foreign until they end.
        room.ledger.capacity = capacity

    def see_report(
        self, backend: str, now: float, *, usage_ratio: float | None, preemptions: int, is_short_of_memory: bool
    ) -> None:
        """One good report of a backend; capacity comes separately.

        Args:
            backend: whose.
            now: when it was asked for.
            usage_ratio: share of blocks held by running requests, ours and others'.
            preemptions: since the last report.
            is_short_of_memory: requests wait for blocks inside the engine at a usage above nine tenths.
        """
        room = self.rooms[backend]
        room.report_at = now
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
        """A backend's engine is another process now, or lost its cache."""
        self.rooms[backend].forget_residents(now)
        self._count("restarts")

    def next_event_at(self, now: float) -> float | None:
        """When to pump again although nothing happened: a lease ends while somebody waits."""
        if not len(self.queue):
            return None
        ends = [room.next_lease_end(now) for room in self.rooms.values() if room.capacity]
        return min((end for end in ends if end is not None), default=None)

    # -- inside

    def _try(self, waiting: Waiting, names: set[str], now: float, placed: list[Placement]) -> None:
        """A resident turn or a control request."""
        if waiting.rank is Rank.CONTROL:
            for name in self._roomiest(waiting, names, now):
                if self._fits_control(waiting, name):
                    self._place(waiting, name, "control", now, placed)
                    return
                if self._fits_set(waiting, name, now):
                    self._place(waiting, name, "new", now, placed)
                    return
            return
        session = waiting.session
        if session.residency is not Residency.IN or session.home is None:
            # Pushed out while it waited: it needs room like any other session now.
            self.queue.remove(waiting)
            waiting.rank = Rank.SESSION
            self.queue.add(waiting)
            return
        if session.home in names and self._fits_running(waiting, session.home, now):
            self._place(waiting, session.home, "resident", now, placed)

    def _try_session(self, waiting: Waiting, names: set[str], now: float, placed: list[Placement]) -> bool:
        """A session that is new or out; says whether it was placed."""
        session = waiting.session
        if session.residency is Residency.IN and session.home in waiting.candidates:
            # Another turn of it was admitted meanwhile.
            if session.home not in names or not self._fits_running(waiting, session.home, now):
                return False
            self._place(waiting, session.home, "resident", now, placed)
            return True
        for name in self._roomiest(waiting, names, now):
            if self._fits_set(waiting, name, now):
                admission = "new" if session.residency is Residency.NEW else "returning"
                self._place(waiting, name, admission, now, placed)
                return True
        return False

    def _roomiest(self, waiting: Waiting, names: set[str], now: float) -> list[str]:
        """Where to try: home first, then by room."""
        usable = [name for name in waiting.candidates if name in names]
        home = waiting.session.home
        if len(usable) < 2:
            return usable
        key = waiting.session.key
        # Between equals the session's own hash decides, so that idle backends share newcomers.
        return sorted(usable, key=lambda name: (name != home, -self._headroom_ratio(name, now), hash((key, name))))

    def _headroom_ratio(self, name: str, now: float) -> float:
        room = self.rooms[name]
        if room.capacity is None:
            return -float(room.inflight)
        return room.headroom_blocks(now) / room.capacity.total_blocks - 0.001 * room.inflight

    def _fits_running(self, waiting: Waiting, name: str, now: float) -> bool:
        room = self.rooms[name]
        if room.capacity is None:
            return True
        need, _ = self._need(waiting, name)
        waited_s = now - waiting.arrived_at
        fits = room.fits_running(waiting.session, need, self._uncached(waiting, name), now, waited_s=waited_s)
        return fits or self._passes_anyway(waiting, room, need)

    def _fits_set(self, waiting: Waiting, name: str, now: float) -> bool:
        room = self.rooms[name]
        if room.capacity is None:
            return True
        need, _ = self._need(waiting, name)
        slack = 0.1 if self._has_resident_parent(waiting) else 0.0
        fits = room.fits_set(waiting.session, need, self._uncached(waiting, name), now, slack=slack)
        return fits or self._passes_anyway(waiting, room, need)

    def _fits_control(self, waiting: Waiting, name: str) -> bool:
        room = self.rooms[name]
        return room.capacity is None or room.fits_control(self._need(waiting, name)[0])

    def _passes_anyway(self, waiting: Waiting, room: EngineRoom, need: float) -> bool:
        """In shadow mode nobody waits: it is only noted, and the engine's own eviction is followed."""
        if self.settings.is_enforcing:
            return False
        waiting.would_wait = True
        room.overfill(waiting.session, need)
        return True

    def _has_resident_parent(self, waiting: Waiting) -> bool:
        """A sub-agent whose parent is in may borrow a little: the parent waits for it and holds its place meanwhile."""
        key = waiting.turn.session
        parent = self.sessions.get(key._replace(agent="")) if key.agent else None
        return parent is not None and parent.residency is Residency.IN

    def _need(self, waiting: Waiting, name: str) -> tuple[float, int]:
        head_tokens = self.lessons.head_tokens(waiting)
        return self.rooms[name].need_blocks(waiting.prompt_tokens, waiting.turn.head, head_tokens), head_tokens

    def _expected(self, waiting: Waiting, name: str) -> int:
        """Prompt tokens that we believe cached: the session's own last prompt, if its blocks still lie there."""
        session, room = waiting.session, self.rooms[name]
        lies_there = session.home == name and (session.inflight > 0 or room.ledger.idle_of(session) > 0)
        if not lies_there or room.capacity is None or not self.lessons.extends(waiting.turn, session):
            return 0
        block_tokens = room.capacity.block_tokens
        return min(session.prompt_tokens, waiting.prompt_tokens) // block_tokens * block_tokens

    def _uncached(self, waiting: Waiting, name: str) -> int:
        expected = self._expected(waiting, name)
        if not expected and self.rooms[name].ledger.knows_head(waiting.turn.head):
            expected = self.lessons.head_tokens(waiting)
        return max(0, waiting.prompt_tokens - expected)

    def _place(self, waiting: Waiting, name: str, admission: str, now: float, placed: list[Placement]) -> None:
        """Take the room. Everything that was looked at is still true: nothing ran in between."""
        room, session, turn = self.rooms[name], waiting.session, waiting.turn
        self.queue.remove(waiting)
        expected, uncached = self._expected(waiting, name), self._uncached(waiting, name)
        placement = Placement(
            id=waiting.id,
            backend=name,
            waiting=waiting,
            admission=admission if room.capacity is not None else "unlimited",
            expected_tokens=expected,
            placed_at=now,
            was_alone=room.ledger.uncached_tokens == 0,
            uncached_tokens=uncached,
            would_wait=waiting.would_wait,
        )
        if room.capacity is not None:
            need, head_tokens = self._need(waiting, name)
            private = need - room.ledger.new_head_blocks(turn.head, head_tokens)
            room.ledger.evict(session)
            hold = Hold(session, turn.head, waiting.prompt_tokens, uncached, private, now)
            room.ledger.take(waiting.id, hold, head_tokens)
            if waiting.rank is Rank.CONTROL:
                placement.control_blocks = private
                room.control_blocks += private
        room.inflight += 1
        session.inflight += 1
        # On an engine of unknown size nobody is resident: each turn goes where the fewest are.
        if waiting.rank is not Rank.CONTROL and room.capacity is not None:
            if session.residency is not Residency.IN or session.home != name:
                self._leave_home(session)
                session.segment_at = now
            session.residency, session.home = Residency.IN, name
        if session.stamp is not None and session.stamp != now:
            self._count("tickets_redeemed")
        session.stamp = None
        placed.append(placement)

    def _leave_home(self, session: Session) -> None:
        if session.home is not None:
            self.rooms[session.home].ledger.evict(session)

    def _book(self, placement: Placement, context_tokens: int) -> None:
        room, turn = self.rooms[placement.backend], placement.waiting.turn
        if room.capacity is not None:
            head_tokens = self.lessons.head_tokens(placement.waiting)
            blocks = room.ledger.private_blocks(context_tokens, turn.head, head_tokens, is_running=True)
            room.ledger.grow(placement.id, context_tokens, blocks)

    def _note_turn(self, session: Session, turn: Turn, end: TurnEnd, estimated_tokens: int) -> None:
        """What the session is after this turn."""
        session.turns += 1
        if session.turns == 1:
            self.lessons.odds.on_first_turn(session.is_named)
        session.head = turn.head
        session.chain_length = len(turn.chain)
        session.chain_end = turn.chain[-1] if turn.chain else 0
        if end.prompt_tokens is not None:
            if session.prompt_tokens and session.home is not None:
                self.rooms[session.home].note_turn_growth(end.prompt_tokens - session.prompt_tokens)
            session.prompt_tokens = end.prompt_tokens
            session.text_bytes = turn.text_bytes
            session.context_tokens = end.prompt_tokens + (end.completion_tokens or 0)
        else:
            session.context_tokens = estimated_tokens
            session.prompt_tokens = 0

    def _settle(self, room: EngineRoom, placement: Placement, hold: Hold, now: float) -> None:
        """The session stays as an idle resident, unless its segment is over and somebody waits."""
        session, name = placement.waiting.session, placement.backend
        head_tokens = self.lessons.head_tokens(placement.waiting)
        if session.home != name or room.capacity is None or placement.placed_at < room.restarted_at:
            return
        blocks = room.ledger.private_blocks(session.context_tokens, session.head, head_tokens, is_running=False)
        room.ledger.rest(session, blocks, session.head, head_tokens)
        waiting = self.queue.count(Rank.SESSION)
        if session.residency is Residency.IN and waiting and not session.is_busy:
            segment_s = now - session.segment_at
            if segment_s > queueing.slice_s(self.settings.target_wait_s, room.ledger.resident_sessions, waiting):
                session.residency = Residency.OUT
                self._note_release(hold.blocks, now)
                self._count("segments_ended")

    def _note_release(self, blocks: float, now: float) -> None:
        if self._released_at is not None and now > self._released_at:
            rate = blocks / (now - self._released_at)
            self._released_blocks_per_s += 0.2 * (rate - self._released_blocks_per_s)
        self._released_at = now

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1
