"""How much could enter each backend now, whoever it is: who is larger need not be looked at.

A bound and no promise. Hundreds wait while most rooms are full; looking at each of them for each event would cost
milliseconds. Held by the gate for the length of one pump; nothing in here changes anything.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

from proxy.gate.engine_room import LONG_WAIT_S, EngineRoom
from proxy.gate.lessons import Lessons
from proxy.state.wait_queue import Waiting


class Opening(NamedTuple):
    """The most that may be let in at one backend.

    Attributes:
        turn_blocks: what anybody may add, a turn of a resident too.
        session_blocks: what a session may add that has nothing there yet.
        agent_blocks: the same for a sub-agent, which may borrow.
        prefill_tokens: prompt tokens to compute, of a request that has not waited long.
        longest_tokens: the longest prompt that could fit, whatever of it is shared.
    """

    turn_blocks: float = inf
    session_blocks: float = inf
    agent_blocks: float = inf
    prefill_tokens: float = inf
    longest_tokens: float = inf

    def is_wider(self, other: "Opening") -> bool:
        """Whether somebody may enter here who might not enter there."""
        return any(mine > others for mine, others in zip(self, other, strict=True))


_OPEN = Opening()
_CLOSED = Opening(0.0, 0.0, 0.0, 0.0, -1.0)


class Openings:
    """Looks at each room once, and again when something was placed there.

    Args:
        rooms: the backends' rooms by name.
        lessons: for sizes.
        is_enforcing: False lets everything pass.
    """

    def __init__(self, rooms: Mapping[str, EngineRoom], lessons: Lessons, *, is_enforcing: bool) -> None:
        self._rooms = rooms
        self._lessons = lessons
        self._is_enforcing = is_enforcing
        self._now = 0.0
        self._seen: dict[str, Opening] = {}

    def begin(self, now: float) -> None:
        """Something has happened: look anew."""
        self._now = now
        self._seen.clear()

    def look_again(self, name: str | None) -> bool:
        """Something was placed there, or left for elsewhere; says whether more may enter now than before."""
        before = self._seen.pop(name, None) if name is not None else None
        return before is not None and name is not None and self.of(name).is_wider(before)

    def of(self, name: str) -> Opening:
        """The opening of one backend."""
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = self._look(self._rooms[name]) if self._is_enforcing else _OPEN
        return seen

    def usable(self, waiting: Waiting, names: Collection[str]) -> list[str]:
        """Those of a request's backends that are not certainly too full for it."""
        return [name for name in waiting.candidates if name in names and self.may_fit(waiting, name)]

    def may_run(self, waiting: Waiting, name: str) -> bool:
        """Whether a resident's turn is not certainly too large for a backend."""
        opening = self._seen.get(name) or self.of(name)
        return opening is _OPEN or self._least_blocks(waiting, name) <= opening.turn_blocks

    def may_fit(self, waiting: Waiting, name: str) -> bool:
        """Whether a session is not certainly too large for a backend."""
        opening = self._seen.get(name) or self.of(name)
        if opening is _OPEN or opening is _CLOSED:
            return opening is _OPEN
        if waiting.session.home == name:  # what lies there of it is not needed twice
            return self._least_blocks(waiting, name) <= opening.turn_blocks
        if waiting.prompt_tokens > opening.longest_tokens:
            return False
        most = opening.agent_blocks if waiting.turn.session.agent else opening.session_blocks
        if self._least_blocks(waiting, name) > most:
            return False
        if self._now - waiting.arrived_at > LONG_WAIT_S:
            return True
        return waiting.prompt_tokens - self._lessons.head_tokens(waiting) <= opening.prefill_tokens

    def may_fit_anywhere(self, waiting: Waiting, names: Collection[str]) -> bool:
        """Whether it is worth while to look closer."""
        if len(names) == 1:
            return any(name in waiting.candidates and self.may_fit(waiting, name) for name in names)
        return waiting.session.home in names or waiting.prompt_tokens <= self.longest_tokens(names)

    def longest_tokens(self, names: Collection[str]) -> float:
        """The longest prompt that could fit on one of these backends, of a session that has nothing there."""
        return max((self.of(name).longest_tokens for name in names), default=0.0)

    def _least_blocks(self, waiting: Waiting, name: str) -> float:
        ledger = self._rooms[name].ledger
        capacity = ledger.capacity
        assert capacity is not None
        blocks = capacity.blocks_for(waiting.prompt_tokens)
        if waiting.turn.head:
            blocks -= ledger.booked_head_blocks(waiting.turn.head)
        return max(1.0, blocks)

    def _look(self, room: EngineRoom) -> Opening:
        capacity = room.ledger.capacity
        if capacity is None or not room.ledger.holds:
            return _OPEN
        prefill_tokens = room.opening_tokens(self._now)
        if prefill_tokens < 0 or not room.knee.has_room:
            return _CLOSED
        turn, session, agent = room.opening_blocks(self._now)
        if turn < 1.0:
            return _CLOSED
        most = max(session, agent) + room.ledger.head_blocks - capacity.beta_blocks
        return Opening(
            turn_blocks=turn,
            session_blocks=session,
            agent_blocks=agent,
            prefill_tokens=prefill_tokens,
            longest_tokens=most * capacity.block_tokens / capacity.alpha if session >= 1.0 or agent >= 1.0 else -1.0,
        )
