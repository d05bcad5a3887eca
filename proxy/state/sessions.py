"""Agents' threads of turns: how large each one is, where its prefix lies, and whether we believe it is still there.

Written by the gate alone. Bounded: the session that was quiet longest goes when the table is full or after its time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final

from proxy.core.turns import UNNAMED, SessionKey, StopReason

MAX_SESSIONS: Final = 50_000
TTL_S: Final = 7_200.0


@unique
class Residency(StrEnum):
    """Whether a session's prefix holds a place on its backend."""

    NEW = "new"
    IN = "in"
    OUT = "out"


@dataclass(slots=True, eq=False)
class Session:
    """One thread of turns.

    Attributes:
        home: the backend that served its last turn.
        context_tokens: prompt and answer of its last turn, as counted by the engine.
        prompt_tokens: the prompt of its last turn, as counted by the engine; 0 until it was.
        text_bytes: prompt text of that turn.
        chain_length: messages of that turn; `chain_end` is the digest over them.
        scope: see `core.turns.Turn`, of that turn, like `tools` and `client`.
        latest: the digest over all messages of the turn that came last, computed or not.
        turns: turns whose prompt was computed.
        head_tokens: the part of that turn's prompt that other sessions share.
        has_blocks: blocks of it lie at home that are not booked as idle: found there by a running turn, or computed.
        inflight: turns of its thread in flight.
        asides: side calls and one-shot requests in flight under its name.
        segment_at: when it became resident.
        idle_since: when its last turn ended.
        stamp: when the oldest of its waiting or refused turns arrived; None when it has none.
        stamp_until: until when a refused turn may come back for its stamp.
        seen_at: when a turn of it last arrived.
    """

    key: SessionKey
    residency: Residency = Residency.NEW
    home: str | None = None
    head: int = 0
    head_tokens: int = 0
    context_tokens: int = 0
    prompt_tokens: int = 0
    text_bytes: int = 0
    chain_length: int = 0
    chain_end: int = 0
    scope: int = 0
    tools: int = 0
    client: int = 0
    latest: int = 0
    turns: int = 0
    has_blocks: bool = False
    inflight: int = 0
    asides: int = 0
    waiting: int = 0
    waiting_as_resident: int = 0
    segment_at: float = 0.0
    idle_since: float = 0.0
    last_stop: StopReason = StopReason.OTHER
    stamp: float | None = None
    stamp_until: float = 0.0
    seen_at: float = 0.0

    @property
    def is_named(self) -> bool:
        """Whether its client names its sessions, or we told it from others by its prompt."""
        return not self.key.session.startswith(UNNAMED)

    @property
    def has_come_back(self) -> bool:
        """Whether a turn runs, or waits as a resident's. Who waits for a place keeps none: two could wait for ever."""
        return self.inflight > 0 or self.asides > 0 or self.waiting_as_resident > 0

    @property
    def is_busy(self) -> bool:
        """Whether it has turns in flight or waiting, and must not be forgotten."""
        return self.inflight > 0 or self.asides > 0 or self.waiting > 0


class SessionTable:
    """Sessions by key, least recently seen first."""

    def __init__(self, *, capacity: int = MAX_SESSIONS, ttl_s: float = TTL_S) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()

    def touch(self, key: SessionKey, now: float) -> tuple[Session, list[Session]]:
        """The session of a key, made if it is not known, and those that had to go for it."""
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(key)
        else:
            self._sessions.move_to_end(key)
        session.seen_at = now
        oldest = next(iter(self._sessions.values()))
        is_tidy = now - oldest.seen_at <= self._ttl_s and len(self._sessions) <= self._capacity
        return session, [] if is_tidy else self._forget(now)

    def get(self, key: SessionKey) -> Session | None:
        """The session of a key, if it is known."""
        return self._sessions.get(key)

    def has_resident_parent(self, key: SessionKey) -> bool:
        """Whether a sub-agent's parent is in: that waits for it, and holds its place meanwhile."""
        parent = self._sessions.get(SessionKey(key.credential, key.session)) if key.agent else None
        return parent is not None and parent.residency is Residency.IN

    def count(self) -> int:
        """Sessions known."""
        return len(self._sessions)

    def of_backend(self, name: str) -> list[Session]:
        """Sessions at home on a backend; walks them all, for restarts only."""
        return [session for session in self._sessions.values() if session.home == name]

    def _forget(self, now: float) -> list[Session]:
        """Look at two at most: the cost of a request does not grow with the sessions known."""
        gone: list[Session] = []
        surplus = len(self._sessions) - self._capacity
        for _ in range(2):
            session = next(iter(self._sessions.values()))
            if surplus <= 0 and now - session.seen_at <= self._ttl_s:
                break
            surplus -= 1
            if session.is_busy:
                self._sessions.move_to_end(session.key)
            else:
                gone.append(session)
                del self._sessions[session.key]
        return gone

    def __repr__(self) -> str:
        return f"<SessionTable {len(self._sessions)}>"
