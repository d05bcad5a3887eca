"""How much could enter each backend now, whoever it is: who is larger need not be looked at.

A bound and no promise. Hundreds wait while most rooms are full; looking at each of them for each event would cost
milliseconds. Kept by the gate until something happens at a backend, or time makes more room there; one for each backend
at most. Nothing in here changes anything.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple

from proxy.gate.engine_room import LONG_WAIT_S, EngineRoom
from proxy.gate.lessons import Lessons
from proxy.state.sessions import Residency, SessionTable
from proxy.state.wait_queue import Sized, Waiting


class Opening(NamedTuple):
    """The most that may be let in at one backend.

    Attributes:
        turn_blocks: what anybody may add, a turn of a resident too.
        session_blocks: what a session may add that has nothing there yet.
        agent_blocks: the same for a sub-agent whose parent is in, which may borrow.
        prefill_tokens: prompt tokens to compute, of a request that has not waited long.
        longest_tokens: the longest prompt that could fit, whatever of it is shared.
        longest_agent_tokens: the same of a sub-agent.
        until: when to look again though nothing has happened: a lease ends, a prompt counts as computed.
    """

    turn_blocks: float = inf
    session_blocks: float = inf
    agent_blocks: float = inf
    prefill_tokens: float = inf
    longest_tokens: float = inf
    longest_agent_tokens: float = inf
    until: float = inf


class Widest(NamedTuple):
    """The most of what several openings let in. Who exceeds it fits on none of them.

    Attributes:
        longest_tokens: the longest prompt.
        longest_agent_tokens: the same of a sub-agent.
        prefill_tokens: prompt tokens to compute, of a request that has not waited long.
    """

    longest_tokens: float
    longest_agent_tokens: float
    prefill_tokens: float

    def is_within(self, other: "Widest") -> bool:
        """Whether whoever exceeds the other exceeds this one."""
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))


_FEW_LOOKS: Final = 8
"""A bound costs as much as a closer look; so few are had without."""
_OPEN = Opening()
_SHUT = -1.0
"""No prompt is so short."""


class Openings:
    """Looks at each room once, and again when something has happened there.

    Args:
        rooms: the backends' rooms by name.
        lessons: for sizes.
        sessions: for a sub-agent's parent.
        is_enforcing: False lets everything pass.

    Attributes:
        changed: backends where something has happened, or was looked at, for whoever keeps something of them besides.
    """

    def __init__(
        self, rooms: Mapping[str, EngineRoom], lessons: Lessons, sessions: SessionTable, *, is_enforcing: bool
    ) -> None:
        self._rooms = rooms
        self._lessons = lessons
        self._sessions = sessions
        self.changed = set(rooms)
        self._is_enforcing = is_enforcing
        self._is_bounding = is_enforcing
        self._now = 0.0
        self._seen: dict[str | None, Opening] = {}

    def begin(self, now: float, *, looks: float = inf) -> None:
        """Somebody is to be tried on some backends.

        Args:
            now: monotonic seconds.
            looks: how often that would be, at most.
        """
        self._now = now
        self._is_bounding = self._is_enforcing and looks > _FEW_LOOKS

    def forget(self, name: str | None) -> None:
        """Something has happened at a backend; None for a session's home that it has not yet."""
        self._seen.pop(name, None)
        if name is not None:
            self.changed.add(name)

    def take_changed(self) -> Collection[str]:
        """The backends in `changed`, which begins anew."""
        taken, self.changed = self.changed, set()
        return taken

    def of(self, name: str) -> Opening:
        """The opening of one backend."""
        if not self._is_bounding:
            return _OPEN
        seen = self._seen.get(name)
        if seen is None or self._now > seen.until:
            seen = self._look(self._rooms[name])
            self.changed.add(name)
            if seen.until < self._now:
                seen = seen._replace(until=self._now)  # once a moment is enough
            self._seen[name] = seen
        return seen

    def usable(self, waiting: Waiting, names: Collection[str]) -> list[str]:
        """Those of a request's backends that are not certainly too full for it."""
        if len(names) > 1:
            return [name for name in waiting.candidates if name in names and self.may_fit(waiting, name)]
        # A lone newcomer at one backend is looked at closely at once; the bound pays where many wait.
        return [
            name
            for name in names
            if name in waiting.candidates and (not self._is_known(name) or self.may_fit(waiting, name))
        ]

    def may_run(self, waiting: Waiting, name: str) -> bool:
        """Whether a resident's turn is not certainly too large for a backend."""
        opening = self.of(name)
        return opening.turn_blocks == inf or self._least_blocks(waiting, name) <= opening.turn_blocks

    def may_fit(self, waiting: Waiting, name: str) -> bool:
        """Whether a session is not certainly too large for a backend."""
        opening = self.of(name)
        if opening.turn_blocks == inf or opening.turn_blocks < 1.0:
            return opening.turn_blocks == inf
        least = self._least_blocks(waiting, name)
        session = waiting.session
        if session.home == name:
            if least > opening.turn_blocks or session.residency is Residency.IN or session.has_come_back:
                return least <= opening.turn_blocks  # places others again, or its own
            least -= self._rooms[name].ledger.idle_of(session)  # what lies there of it is not needed twice
            return least <= opening.session_blocks or self._may_borrow(waiting, least, opening)
        if least > opening.session_blocks and not self._may_borrow(waiting, least, opening):
            return False
        if self._now - waiting.arrived_at > LONG_WAIT_S:
            return True
        cached_tokens = max(self._lessons.head_tokens(waiting), waiting.shared_tokens)
        return waiting.prompt_tokens - cached_tokens <= opening.prefill_tokens

    def widest(self, names: Iterable[str]) -> Widest:
        """The most that any of these backends lets in."""
        seen = [self.of(name) for name in names]
        return Widest(
            max((opening.longest_tokens for opening in seen), default=_SHUT),
            max((opening.longest_agent_tokens for opening in seen), default=_SHUT),
            max((opening.prefill_tokens for opening in seen), default=_SHUT),
        )

    def worth_a_look(
        self, entries: Iterable[Sized], widest: Widest, at_home: Container[int] = frozenset()
    ) -> list[Sized]:
        """Those that could fit on one of some backends.

        Args:
            entries: who waits for a place.
            widest: the most that those backends let in.
            at_home: numbers of those that are at home there, where their size says little.
        """
        longest, longest_agent, prefill = widest
        since, tokens_per_byte = self._now - LONG_WAIT_S, self._lessons.most_tokens_per_byte()
        return [
            one
            for one in entries
            # A name for each, at no cost.
            for tokens, number, _, arrived_at, head_bytes, shared_tokens, is_agent in (one,)
            # What rules out most of them comes first: nobody may be larger than a sub-agent.
            if (
                tokens <= longest_agent
                and (
                    tokens - head_bytes * tokens_per_byte <= prefill
                    or tokens - shared_tokens <= prefill
                    or arrived_at < since
                )
                and (tokens <= longest or is_agent)
            )
            or number in at_home
        ]

    def _may_borrow(self, waiting: Waiting, blocks: float, opening: Opening) -> bool:
        key = waiting.turn.session
        return bool(key.agent) and blocks <= opening.agent_blocks and self._sessions.has_resident_parent(key)

    def _is_known(self, name: str) -> bool:
        seen = self._seen.get(name)
        return seen is not None and self._now <= seen.until

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
        prefill_tokens, until = room.opening_tokens(self._now)
        if prefill_tokens < 0 or not room.knee.has_room:
            return _closed(until)
        turn, session, agent, room_until = room.opening_blocks(self._now)
        until = min(until, room_until)
        if turn < 1.0:
            return _closed(until)
        apart = room.ledger.largest_head_blocks - capacity.beta_blocks
        tokens_per_block = capacity.block_tokens / capacity.alpha
        return Opening(
            turn_blocks=turn,
            session_blocks=session,
            agent_blocks=agent,
            prefill_tokens=prefill_tokens,
            longest_tokens=(session + apart) * tokens_per_block if session >= 1.0 else _SHUT,
            longest_agent_tokens=(agent + apart) * tokens_per_block if agent >= 1.0 else _SHUT,
            until=until,
        )


def _closed(until: float) -> Opening:
    return Opening(0.0, 0.0, 0.0, 0.0, _SHUT, _SHUT, until)
