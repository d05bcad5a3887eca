"""How much could enter each backend now, whoever it is: who is larger need not be looked at.

A bound and no promise. Hundreds wait while most rooms are full; looking at each of them for each event would cost
milliseconds. Held by the gate for the length of one pump; nothing in here changes anything.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

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
        longest_agent_tokens: the same of a sub-agent.
    """

    turn_blocks: float = inf
    session_blocks: float = inf
    agent_blocks: float = inf
    prefill_tokens: float = inf
    longest_tokens: float = inf
    longest_agent_tokens: float = inf


_FEW_LOOKS: Final = 8
"""A bound costs as much as a closer look; so few are had without."""
_OPEN = Opening()
_CLOSED = Opening(0.0, 0.0, 0.0, 0.0, -1.0, -1.0)


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
        self._is_bounding = is_enforcing
        self._now = 0.0
        self._seen: dict[str, Opening] = {}

    def begin(self, now: float, *, looks: float = inf) -> None:
        """Something has happened: look anew.

        Args:
            now: monotonic seconds.
            looks: how often somebody would be tried on a backend, at most.
        """
        self._now = now
        self._is_bounding = self._is_enforcing and looks > _FEW_LOOKS
        self._seen.clear()

    def forget(self, name: str, left: str | None = None) -> None:
        """Something is placed at one backend, and leaves another."""
        if self._seen:
            self._seen.pop(name, None)
            if left is not None:
                self._seen.pop(left, None)

    def of(self, name: str) -> Opening:
        """The opening of one backend."""
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = self._look(self._rooms[name]) if self._is_bounding else _OPEN
        return seen

    def usable(self, waiting: Waiting, names: Collection[str]) -> list[str]:
        """Those of a request's backends that are not certainly too full for it."""
        if len(names) > 1:
            return [name for name in waiting.candidates if name in names and self.may_fit(waiting, name)]
        # A lone newcomer at one backend is looked at closely at once; the bound pays where many wait.
        return [
            name
            for name in names
            if name in waiting.candidates and (name not in self._seen or self.may_fit(waiting, name))
        ]

    def may_run(self, waiting: Waiting, name: str) -> bool:
        """Whether a resident's turn is not certainly too large for a backend."""
        if not self._is_bounding:
            return True
        opening = self._seen.get(name) or self.of(name)
        return opening is _OPEN or self._least_blocks(waiting, name) <= opening.turn_blocks

    def may_fit(self, waiting: Waiting, name: str) -> bool:
        """Whether a session is not certainly too large for a backend."""
        opening = self._seen.get(name) or self.of(name)
        if opening is _OPEN or opening is _CLOSED:
            return opening is _OPEN
        if waiting.session.home == name:  # what lies there of it is not needed twice
            return self._least_blocks(waiting, name) <= opening.turn_blocks
        most = opening.agent_blocks if waiting.turn.session.agent else opening.session_blocks
        if self._least_blocks(waiting, name) > most:
            return False
        if self._now - waiting.arrived_at > LONG_WAIT_S:
            return True
        return waiting.prompt_tokens - self._lessons.head_tokens(waiting) <= opening.prefill_tokens

    def worth_a_look(self, entries: Sequence[Waiting], names: Collection[str]) -> list[tuple[int, Waiting]]:
        """Those that could fit on one of these backends, with their place among the entries."""
        seen = [self.of(name) for name in names]
        longest = max((opening.longest_tokens for opening in seen), default=-1.0)
        longest_agent = max((opening.longest_agent_tokens for opening in seen), default=-1.0)
        prefill = max((opening.prefill_tokens for opening in seen), default=-1.0)
        since, tokens_per_byte = self._now - LONG_WAIT_S, self._lessons.most_tokens_per_byte()
        return [
            (number, entry)
            for number, entry in enumerate(entries)
            if entry.session.home in names
            or (
                entry.prompt_tokens <= (longest_agent if entry.turn.session.agent else longest)
                and (
                    entry.arrived_at < since or entry.prompt_tokens - entry.turn.head_bytes * tokens_per_byte <= prefill
                )
            )
        ]

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
        apart = room.ledger.largest_head_blocks - capacity.beta_blocks
        tokens_per_block = capacity.block_tokens / capacity.alpha
        return Opening(
            turn_blocks=turn,
            session_blocks=session,
            agent_blocks=agent,
            prefill_tokens=prefill_tokens,
            longest_tokens=(session + apart) * tokens_per_block if session >= 1.0 else -1.0,
            longest_agent_tokens=(agent + apart) * tokens_per_block if agent >= 1.0 else -1.0,
        )
