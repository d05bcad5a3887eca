"""What placed turns take from the rooms, and what they leave there when they end.

Called by the gate, which decides who is placed. The books are right between any two calls: what runs is pinned, what
has ended lies idle at its session's home, and nothing is counted twice.
"""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final

from proxy.core.turns import Rank, TurnEnd
from proxy.gate.engine_room import EngineRoom
from proxy.gate.fitting import Footprint
from proxy.gate.lessons import Lessons
from proxy.gate.placement import Placement
from proxy.policy import queueing
from proxy.state.kv_ledger import Hold
from proxy.state.sessions import Residency, Session
from proxy.state.wait_queue import Waiting, WaitQueue

_CONTROL: Final = Rank.CONTROL
_IN: Final = Residency.IN
_REGROW_TOKENS: Final = 256
"""A running answer is booked anew each time it has grown by so much."""


class Bookings:
    """The lives of placed turns.

    Args:
        rooms: the backends' rooms by name.
        lessons: what ended turns teach.
        queue: who waits, for the end of segments.
        counters: what happened, by name.
        target_wait_s: the wait of a session to aim for.
    """

    def __init__(
        self,
        rooms: Mapping[str, EngineRoom],
        lessons: Lessons,
        queue: WaitQueue,
        counters: Counter[str],
        *,
        target_wait_s: float,
    ) -> None:
        self._rooms = rooms
        self._lessons = lessons
        self._queue = queue
        self._counters = counters
        self._target_wait_s = target_wait_s

    def place(self, waiting: Waiting, admission: str, took: Footprint, now: float) -> Placement:
        """Take the room. Everything that was looked at is still true: nothing ran in between."""
        name, session = took.backend, waiting.session
        room = self._rooms[name]
        ledger = room.ledger
        is_known = ledger.capacity is not None
        self._queue.remove(waiting)
        self._lessons.begin(waiting.fairness_key)
        is_apart = waiting.is_side or waiting.rank is _CONTROL
        placement = Placement(
            id=waiting.id,
            backend=name,
            waiting=waiting,
            admission=admission if is_known else "unlimited",
            expected_tokens=took.expected_tokens,
            placed_at=now,
            was_alone=ledger.uncached_tokens == 0,
            uncached_tokens=took.uncached_tokens,
            would_wait=waiting.would_wait,
        )
        if is_known:
            placement.prefix = _prefix(waiting, took)
            if not is_apart:
                self._move_in(session, name, now)
            private = took.private_blocks
            hold = Hold(session, waiting.turn.head, waiting.prompt_tokens, took.uncached_tokens, private, now)
            if ledger.uncached_tokens:
                room.see_computed(now)
            ledger.take(waiting.id, hold, took.head_tokens)
            if waiting.rank is _CONTROL:
                placement.control_blocks = private
                room.control_blocks += private
        elif not is_apart:
            self._settle_unmeasured(session, name)
        room.inflight += 1
        if is_apart:
            session.asides += 1
            self.come_back(session)
        else:
            session.inflight += 1
        return placement

    def _move_in(self, session: Session, name: str, now: float) -> None:
        """A session is at home where its turn runs: what lay idle there is in use now, what lay elsewhere is left.

        On an engine of unknown size nobody is resident, see `_settle_unmeasured`.
        """
        if session.home != name:
            self._counters["moves"] += session.home is not None
            self.leave_home(session)
            session.has_blocks = False
        elif self._rooms[name].ledger.evict(session) > 0:
            session.has_blocks = True
        if session.residency is not _IN or session.home != name:
            session.segment_at = now
        session.residency, session.home = _IN, name

    def _settle_unmeasured(self, session: Session, name: str) -> None:
        """Its turns go to one engine though nobody knows what lies there; what lies elsewhere for certain stays."""
        if session.home is None or self._rooms[session.home].ledger.capacity is None:
            self._counters["moves"] += session.home not in (None, name)
            session.home = name

    def come_back(self, session: Session) -> None:
        """A turn of it waits or runs: it does not lose its place by that, though its lease may be over."""
        if session.home is not None:
            self._rooms[session.home].ledger.idle.come_back(session)

    def leave_home(self, session: Session) -> None:
        """What lies idle of a session is not counted any more: it is forgotten, or goes elsewhere."""
        if session.home is not None:
            self._rooms[session.home].ledger.evict(session)

    def lose(self, name: str, now: float, idle_since_before: float = inf) -> int:
        """An engine has lost what was last used before then; says of how many sessions.

        If it has lost all, nobody is resident there, and what running turns found there is gone.
        """
        room = self._rooms[name]
        if idle_since_before < inf:
            return room.forget_idle_since_before(idle_since_before, now)
        for hold in room.ledger.holds.values():
            if hold.session.home == name:
                hold.session.has_blocks = False
        return room.forget_residents(now)

    def first_token(self, placement: Placement, now: float) -> None:
        """A turn's prompt is computed."""
        if placement.has_first_token:
            return
        placement.has_first_token = True
        room = self._rooms[placement.backend]
        room.ledger.computed(placement.id)
        is_pure = placement.was_alone and not room.prefill.was_held_back(placement.placed_at)
        if is_pure and room.ledger.uncached_tokens == 0:
            placement.prefill_s = now - placement.placed_at

    def generated(self, placement: Placement, tokens: int) -> bool:
        """A running answer has so many tokens now; says whether that was booked, as it is once in a while."""
        placement.generated_tokens = tokens
        if tokens - placement.booked_tokens < _REGROW_TOKENS:
            return False
        placement.booked_tokens = tokens
        self._book(placement, placement.waiting.prompt_tokens + tokens)
        return True

    def end(self, placement: Placement, end: TurnEnd, now: float) -> None:
        """A turn has ended, however it did: its room is given back, its session stays resident or not, we learn."""
        room = self._rooms[placement.backend]
        waiting, session = placement.waiting, placement.waiting.session
        is_apart = waiting.is_side or waiting.rank is _CONTROL
        room.inflight -= 1
        if is_apart:
            session.asides -= 1
        else:
            session.inflight -= 1
        room.control_blocks -= placement.control_blocks
        hold = room.ledger.give_back(placement.id)
        if room.ledger.uncached_tokens:
            room.see_computed(now)
        room.last_end_at = now
        if hold is not None:
            room.note_freed(hold.blocks)
        self._lessons.learn(room, placement, end, now)
        self._lessons.charge(placement, end, now)
        if not room.ledger.holds:
            room.control_blocks = 0.0  # sums of floats drift
        if is_apart:
            return
        if hold is not None and (end.has_first_token or placement.has_first_token):
            overlaps = session.inflight > 0 or placement.placed_at <= session.idle_since
            tokens = waiting.prompt_tokens + placement.generated_tokens
            self._lessons.note_turn(room, session, waiting, end, estimated_tokens=tokens, overlaps=overlaps)
            # What it computed went with an engine that restarted meanwhile, and is of no use where it lives no more.
            if session.home == placement.backend and placement.placed_at >= room.restarted_at:
                session.has_blocks = True
        session.last_stop = end.stop
        session.idle_since = now
        if not session.inflight and session.home is not None:
            home = self._rooms[session.home]
            self._settle(session, home, now, given_back=hold if home is room else None)

    def _book(self, placement: Placement, context_tokens: int) -> None:
        room, turn = self._rooms[placement.backend], placement.waiting.turn
        if room.capacity is not None:
            head_tokens = self._lessons.head_tokens(placement.waiting)
            blocks = room.ledger.private_blocks(context_tokens, turn.head, head_tokens, is_running=True)
            room.ledger.grow(placement.id, context_tokens, blocks)

    def _settle(self, session: Session, home: EngineRoom, now: float, *, given_back: Hold | None) -> None:
        """The last turn of a session has ended, wherever: what lies at its home is idle now.

        It stays resident unless nothing lies there, or its segment is over and somebody waits.

        Args:
            session: whose turns have ended.
            home: where it lives.
            now: monotonic seconds.
            given_back: what its last turn held there, which counts as room that came free but for what stays; None
                when that ran elsewhere, and it was an earlier one.
        """
        if home.ledger.idle_of(session):
            return  # the turn ran on an engine of unknown size, and took nothing of this
        if not session.has_blocks:
            session.residency = Residency.OUT if session.turns else Residency.NEW
            return
        head_tokens = session.head_tokens
        blocks = home.ledger.private_blocks(session.context_tokens, session.head, head_tokens, is_running=False)
        home.ledger.rest(session, blocks, session.head, head_tokens)
        home.note_freed(-blocks if given_back is None else -min(blocks, given_back.blocks))
        session.has_blocks = False
        waiting = self._queue.count(Rank.SESSION)
        segment_s = now - session.segment_at
        # No slice is shorter; most ends need not ask every backend for the length of theirs.
        if session.residency is _IN and waiting and not session.is_busy and segment_s > queueing.MIN_SLICE_S:
            residents = sum(other.ledger.resident_sessions for other in self._rooms.values())
            slice_s = queueing.slice_s(self._target_wait_s, residents, waiting)
            if segment_s <= slice_s and self._has_too_much(home, session.key.credential):
                slice_s = queueing.MIN_SLICE_S
            if segment_s > slice_s:
                home.ledger.idle.give_up_place(session)
                self._counters["segments_ended"] += 1

    def _has_too_much(self, room: EngineRoom, mine: str) -> bool:
        """Whether a key holds more of a backend than its share while another key waits."""
        if all(key == mine for key in self._queue.keys):
            return False
        assert room.capacity is not None
        kept_by, holds = room.ledger.idle.kept_by, room.ledger.holds.values()
        keys = {hold.session.key.credential for hold in holds} | kept_by.keys() | self._queue.keys.keys()
        running = sum(hold.blocks for hold in holds if hold.session.key.credential == mine)
        return running + kept_by.get(mine, (0, 0.0))[1] > room.capacity.total_blocks / len(keys)


def _prefix(waiting: Waiting, took: Footprint) -> str:
    """What of a turn's prompt we believe cached where it goes, before it moves in there; see `Placement.prefix`."""
    session = waiting.session
    # How much of it that is, nobody knows where the engine does not count.
    is_uncounted = session.turns > 0 and not session.prompt_tokens
    if is_uncounted and session.residency is _IN and session.home == took.backend:
        return "warm"
    if took.expected_tokens:
        return "warm" if waiting.relative in (None, session) else "shared"
    if session.turns and session.home is not None and session.home != took.backend:
        return "moved"
    return "shared" if took.uncached_tokens < waiting.prompt_tokens else "cold"
