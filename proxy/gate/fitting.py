"""Whether a waiting request fits on a backend: what it needs there, what of it lies there, what the room says.

Called by the gate before it places anything; changes nothing but what a room gives away to make a turn fit.
"""

from collections.abc import Mapping

from proxy.gate.engine_room import EngineRoom
from proxy.gate.lessons import Lessons
from proxy.state.sessions import Residency, SessionTable
from proxy.state.wait_queue import Waiting


class Fitting:
    """Looks at rooms with one request in hand.

    Args:
        rooms: the backends' rooms by name.
        lessons: for sizes.
        sessions: for a sub-agent's parent.
        is_enforcing: False lets everything pass, and notes it on the request.
    """

    def __init__(
        self, rooms: Mapping[str, EngineRoom], lessons: Lessons, sessions: SessionTable, *, is_enforcing: bool
    ) -> None:
        self._rooms = rooms
        self._lessons = lessons
        self._sessions = sessions
        self._is_enforcing = is_enforcing

    def roomiest(self, waiting: Waiting, names: set[str], now: float) -> list[str]:
        """Where to try: home first, then by room."""
        usable = [name for name in waiting.candidates if name in names]
        home = waiting.session.home
        if len(usable) < 2:
            return usable
        key = waiting.session.key
        # Between equals the session's own hash decides, so that idle backends share newcomers.
        return sorted(usable, key=lambda name: (name != home, -self._headroom_ratio(name, now), hash((key, name))))

    def _headroom_ratio(self, name: str, now: float) -> float:
        room = self._rooms[name]
        if room.capacity is None:
            return -float(room.inflight)
        return room.headroom_blocks(now) / room.capacity.total_blocks - 0.001 * room.inflight

    def fits_running(self, waiting: Waiting, name: str, now: float) -> bool:
        """Whether a resident session's turn may start on a backend."""
        room = self._rooms[name]
        if room.capacity is None:
            return True
        need, _ = self.need(waiting, name)
        waited_s = now - waiting.arrived_at
        fits = room.fits_running(
            waiting.session, need, self.uncached(waiting, name), now, head=waiting.turn.head, waited_s=waited_s
        )
        return fits or self._passes_anyway(waiting, room, need)

    def fits_set(self, waiting: Waiting, name: str, now: float) -> bool:
        """Whether a session may become resident on a backend."""
        room = self._rooms[name]
        if room.capacity is None:
            return True
        need, _ = self.need(waiting, name)
        slack = 0.1 if self._has_resident_parent(waiting) else 0.0
        waited_s = now - waiting.arrived_at
        uncached = self.uncached(waiting, name)
        fits = room.fits_set(
            waiting.session, need, uncached, now, head=waiting.turn.head, waited_s=waited_s, slack=slack
        )
        return fits or self._passes_anyway(waiting, room, need)

    def fits_control(self, waiting: Waiting, name: str) -> bool:
        """Whether a small one-shot request may pass on a backend."""
        room = self._rooms[name]
        return room.capacity is None or room.fits_control(self.need(waiting, name)[0])

    def _passes_anyway(self, waiting: Waiting, room: EngineRoom, need: float) -> bool:
        """In shadow mode nobody waits: it is only noted, and the engine's own eviction is followed."""
        if self._is_enforcing:
            return False
        waiting.would_wait = True
        room.overfill(waiting.session, need)
        return True

    def _has_resident_parent(self, waiting: Waiting) -> bool:
        """A sub-agent whose parent is in may borrow a little: the parent waits for it and holds its place meanwhile."""
        key = waiting.turn.session
        parent = self._sessions.get(key._replace(agent="")) if key.agent else None
        return parent is not None and parent.residency is Residency.IN

    def need(self, waiting: Waiting, name: str) -> tuple[float, int]:
        """Blocks that a request adds on a backend, and the tokens of the head that it shares."""
        head_tokens = self._lessons.head_tokens(waiting)
        return self._rooms[name].need_blocks(waiting.prompt_tokens, waiting.turn.head, head_tokens), head_tokens

    def expected(self, waiting: Waiting, name: str) -> int:
        """Prompt tokens that we believe cached: the session's own last prompt, if its blocks still lie there."""
        session, room = waiting.session, self._rooms[name]
        lies_there = session.home == name and (session.inflight > 0 or room.ledger.idle_of(session) > 0)
        if not lies_there or room.capacity is None or not self._lessons.extends(waiting.turn, session):
            return 0
        block_tokens = room.capacity.block_tokens
        return min(session.prompt_tokens, waiting.prompt_tokens) // block_tokens * block_tokens

    def uncached(self, waiting: Waiting, name: str) -> int:
        """Prompt tokens that would have to be computed on a backend."""
        expected = self.expected(waiting, name)
        if not expected and self._rooms[name].ledger.knows_head(waiting.turn.head):
            expected = self._lessons.head_tokens(waiting)
        return max(0, waiting.prompt_tokens - expected)
