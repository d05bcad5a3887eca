"""Whether a waiting request fits on a backend: what it needs there, what of it lies there, what the room says.

Called by the gate before it places anything; changes nothing but what a room gives away to make a turn fit.
"""

from collections.abc import Mapping

from msgspec import Struct

from proxy.gate.engine_room import AGENT_SLACK, EngineRoom
from proxy.gate.herd import Herd
from proxy.gate.lessons import Lessons
from proxy.state.kv_ledger import KvLedger
from proxy.state.sessions import Session, SessionTable
from proxy.state.wait_queue import Waiting


class Footprint(Struct, frozen=True, gc=False):
    """What a request takes on one backend: looked at once, and booked as it was looked at.

    Attributes:
        backend: which one.
        private_blocks: its own.
        new_head_blocks: those of a head that nobody uses there yet.
        head_tokens: the part of its prompt that it shares with others.
        expected_tokens: prompt tokens that we believe cached: its session's own.
        uncached_tokens: prompt tokens that would have to be computed.
    """

    backend: str
    private_blocks: float
    new_head_blocks: float
    head_tokens: int
    expected_tokens: int
    uncached_tokens: int


class Fitting:
    """Looks at rooms with one request in hand.

    Args:
        rooms: the backends' rooms by name.
        lessons: for sizes.
        sessions: for a sub-agent's parent.
        herd: who had better wait for a head that is being computed.
        is_enforcing: False lets everything pass, and notes it on the request.
    """

    def __init__(
        self,
        rooms: Mapping[str, EngineRoom],
        lessons: Lessons,
        sessions: SessionTable,
        herd: Herd,
        *,
        is_enforcing: bool,
    ) -> None:
        self._rooms = rooms
        self._lessons = lessons
        self._sessions = sessions
        self._herd = herd
        self._is_enforcing = is_enforcing

    def head_tokens(self, waiting: Waiting) -> int:
        """Prompt tokens that it shares with all that have its head."""
        return self._lessons.head_tokens(waiting)

    def hit_tokens(self, waiting: Waiting, name: str) -> int:
        """Prompt tokens that we believe cached on a backend: its own, or a head that others use there."""
        if self._rooms[name].prefixes.is_inert:
            return 0
        ledger = self._rooms[name].ledger
        expected = self._expected(waiting, name, ledger)
        if not expected and ledger.knows_head(waiting.turn.head):
            return self._lessons.head_tokens(waiting)
        return expected

    def own_tokens(self, waiting: Waiting, name: str) -> int:
        """Those of its session, or of the one that it branches off from."""
        room = self._rooms[name]
        return 0 if room.prefixes.is_inert else self._expected(waiting, name, room.ledger)

    def need_blocks(self, waiting: Waiting, name: str) -> float:
        """Blocks that it would add on a backend of known size, what lies there of it not counted twice."""
        took = self._look(waiting, name)
        return took.private_blocks + took.new_head_blocks - self._rooms[name].ledger.idle_of(waiting.session)

    def fits_running(self, waiting: Waiting, name: str, now: float) -> Footprint | None:
        """What a resident session's turn takes on a backend, or None if it may not start there."""
        room, took = self._rooms[name], self._look(waiting, name)
        if room.ledger.capacity is None:
            return took
        need, head = took.private_blocks + took.new_head_blocks, waiting.turn.head
        waited_s = now - waiting.arrived_at
        fits = room.fits_running(waiting.session, need, took.uncached_tokens, now, head=head, waited_s=waited_s)
        return self._after(waiting, name, took) if fits or self._passes_anyway(waiting, room, need) else None

    def fits_set(self, waiting: Waiting, name: str, now: float) -> Footprint | None:
        """What a session takes on a backend, or None if it may not become resident there, or not yet."""
        room, took = self._rooms[name], self._look(waiting, name)
        if room.ledger.capacity is None:
            return took
        need, head = took.private_blocks + took.new_head_blocks, waiting.turn.head
        waited_s = now - waiting.arrived_at
        # A sub-agent may borrow a little.
        slack = AGENT_SLACK if self._sessions.has_resident_parent(waiting.turn.session) else 0.0
        fits = room.fits_set(
            waiting.session,
            need,
            took.uncached_tokens,
            now,
            head=head,
            waited_s=waited_s,
            slack=slack,
            keeps_back=lambda: self._herd.keeps_back(waiting, name, now),
        )
        return self._after(waiting, name, took) if fits or self._passes_anyway(waiting, room, need) else None

    def fits_control(self, waiting: Waiting, name: str) -> Footprint | None:
        """What a request that passes beside the others takes on a backend, or None if it may not pass."""
        took, room = self._look(waiting, name), self._rooms[name]
        fits = waiting.is_hopeless or room.fits_control(took.private_blocks + took.new_head_blocks)
        return took if fits else None

    def is_hopeless(self, waiting: Waiting) -> bool:
        """Whether no engine that it may go to could hold its prompt even if nobody else were there."""
        session = waiting.session
        prompt_tokens = waiting.prompt_tokens
        for name in waiting.candidates:  # as most often, the first that is asked could
            capacity = self._rooms[name].ledger.capacity
            if capacity is None or capacity.blocks_for(prompt_tokens) <= capacity.total_blocks:
                return False
        # What the engine has counted is certain; what was guessed from bytes may be twice too much.
        is_counted = session.prompt_tokens > 0 and self._lessons.extends(waiting.turn, session)
        tokens = waiting.prompt_tokens if is_counted else waiting.prompt_tokens // 2
        capacities = [self._rooms[name].capacity for name in waiting.candidates]
        return all(it is not None and it.blocks_for(tokens) > it.total_blocks for it in capacities)

    def _passes_anyway(self, waiting: Waiting, room: EngineRoom, need: float) -> bool:
        """In shadow mode nobody waits: it is only noted, and the engine's own eviction is followed."""
        if self._is_enforcing:
            return False
        waiting.would_wait = True
        room.overfill(waiting.session, need)
        return True

    def _look(self, waiting: Waiting, name: str) -> Footprint:
        ledger = self._rooms[name].ledger
        head, prompt_tokens = waiting.turn.head, waiting.prompt_tokens
        if ledger.capacity is None:
            return Footprint(name, 0.0, 0.0, 0, 0, prompt_tokens)
        head_tokens = self._lessons.head_tokens(waiting) if head else 0
        private = ledger.private_blocks(prompt_tokens, head, head_tokens, is_running=True)
        cached = expected = self._expected(waiting, name, ledger)
        new_head = 0.0
        if head and not ledger.knows_head(head):
            new_head = ledger.shared_blocks(head, head_tokens)
        elif not expected:
            cached = head_tokens
        uncached = prompt_tokens - cached if prompt_tokens > cached else 0
        return Footprint(name, private, new_head, head_tokens, expected, uncached)

    def _after(self, waiting: Waiting, name: str, took: Footprint) -> Footprint:
        """What it takes now that room was made for it: its head may have gone with the last one that used it."""
        head = waiting.turn.head
        had_head = head and not took.new_head_blocks
        return self._look(waiting, name) if had_head and not self._rooms[name].ledger.knows_head(head) else took

    def _expected(self, waiting: Waiting, name: str, ledger: KvLedger) -> int:
        """Prompt tokens that we believe cached: its session's last prompt, or what it shares with a relative's."""
        session, capacity = waiting.session, ledger.capacity
        if capacity is None:
            return 0
        if _lies_there(session, name, ledger) and self._lessons.extends(waiting.turn, session):
            tokens = session.prompt_tokens
        elif waiting.relative is not None and _lies_there(waiting.relative, name, ledger):
            tokens = waiting.shared_tokens
        else:
            return 0
        return min(tokens, waiting.prompt_tokens) // capacity.block_tokens * capacity.block_tokens


def _lies_there(session: Session, name: str, ledger: KvLedger) -> bool:
    """Whether the prefix of a session still lies on a backend, used or not."""
    return session.home == name and (session.inflight > 0 or ledger.idle_of(session) > 0)
