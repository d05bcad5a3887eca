"""Whose turn a request is, and whose prompts it began like: named by its client, or told from the prompt alone.

Called by the gate for each arrival, before anything is decided. The rules for clients that name no session:

- A prompt that goes on from a session's latest one is that session's next turn.
- One that leaves an earlier point of it is a session of its own, so that many chats with one opening stay many. It is
  related to the one that it leaves: what they share lies where that one is at home.
- An equal prompt is the same turn sent again, unless the first is still being served: then they are two.

A named session is what its client says. Its relative is found in the same way.
"""

from itertools import count
from typing import Final

from msgspec import Struct

from proxy.core.turns import UNNAMED, PrefixBreak, SessionKey, Turn
from proxy.gate.lessons import Lessons
from proxy.state.prefix_index import PrefixIndex
from proxy.state.sessions import Session, SessionTable


class Kin(Struct, frozen=True, gc=False):
    """What a turn has in common with others that is not simply its session's next one.

    Attributes:
        relative: see `Waiting.relative`; None where nothing is shared.
        depth: messages that it has in common with the relative.
    """

    relative: Session | None = None
    depth: int = 0


_ALONE: Final = Kin()


class Lineage:
    """Finds sessions.

    Args:
        sessions: those that are known.
        index: how their prompts began.
        lessons: tells whether a turn extends a session's last one.
    """

    def __init__(self, sessions: SessionTable, index: PrefixIndex, lessons: Lessons) -> None:
        self._sessions = sessions
        self._index = index
        self._lessons = lessons
        self._ids = count(1)

    def find(self, turn: Turn, now: float) -> tuple[Session, list[Session], Kin | None]:
        """The session of a turn, made if it is not known, and the sessions that had to go for it.

        Last comes its kin: None if it is its session's next turn.
        """
        chain = turn.chain
        if not chain:
            return *self._sessions.touch(turn.session, now), _ALONE
        owner, depth = self._index.match(chain)
        is_twin = False
        key = turn.session
        if key.session.startswith(UNNAMED):
            key = self._key_of(turn, owner, depth)
            is_twin = depth == len(chain) and key != owner
        session, forgotten = self._sessions.touch(key, now)
        if depth < len(chain):
            self._index.add(chain, depth, session.key)
        session.latest = chain[-1]
        if session.chain_length and self._lessons.extends(turn, session):
            return session, forgotten, None
        if owner is None or (owner == session.key and not session.chain_length):
            return session, forgotten, _ALONE
        if is_twin and not session.turns:
            self._index.add_twin(chain[-1], session.key)
        relative = session if owner == session.key else self._sessions.get(owner)
        if relative is not session:
            self._index.keep(chain[depth - 1])
        return session, forgotten, Kin(relative, depth)

    def _key_of(self, turn: Turn, owner: SessionKey | None, depth: int) -> SessionKey:
        """The key of the session that a turn of a client belongs to which names none."""
        chain, key = turn.chain, turn.session
        if owner is not None:
            point = chain[depth - 1]
            for known in (owner, *self._index.twins(point)):
                session = self._sessions.get(known)
                if session is None or session.is_named or session.latest != point:
                    continue
                # Whoever goes on has had the answer, though its end may not have been seen here yet.
                if depth < len(chain) or not session.is_busy:
                    return known
        namesake = self._sessions.get(key)
        if namesake is not None and self._goes_on(turn, namesake):
            return key  # the index has forgotten it
        if owner is not None:
            # The first message of its own names a branch, alike in every process.
            key = key._replace(session=f"{UNNAMED}{chain[min(depth, len(chain) - 1)]:016x}")
            namesake = self._sessions.get(key)
            if namesake is not None and self._goes_on(turn, namesake):
                return key
        # Whoever has the name already is somebody else.
        return key if namesake is None else key._replace(session=f"{key.session}:{next(self._ids)}")

    def _goes_on(self, turn: Turn, session: Session) -> bool:
        if session.is_busy and session.latest == turn.chain[-1]:
            return False
        return session.chain_length > 0 and self._lessons.extends(turn, session)


def why_broken(turn: Turn, session: Session, depth: int) -> PrefixBreak:
    """Why a turn does not extend its session's last one.

    Args:
        turn: the turn.
        session: as its last turn left it.
        depth: messages that the two have in common.
    """
    if turn.scope != session.scope:
        return PrefixBreak.MODEL
    if turn.head != session.head:
        if turn.client != session.client:
            return PrefixBreak.CLIENT_UPGRADE
        return PrefixBreak.TOOLS if turn.tools != session.tools else PrefixBreak.SYSTEM
    return PrefixBreak.COMPACTION if 2 * depth < session.chain_length else PrefixBreak.EDITED
