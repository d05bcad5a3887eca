"""Prompts that begin with the same head, which nobody has computed yet: one goes, the others wait for it a moment.

An engine that gets two of them at once computes the head twice (field log L60). Whoever is kept waits for the first
token of the one that went, or two seconds, whatever comes first, and then goes to the same backend if it has room.
Residents are never kept. Called by the gate, while it looks where a request fits; nothing else is kept here than until
when somebody waits for which head. Bounded by backends times the heads of running prompts.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from proxy.gate.engine_room import EngineRoom
from proxy.gate.lessons import Lessons
from proxy.state.wait_queue import Waiting

HOLD_S: Final = 2.0
LEAST_TOKENS: Final = 1_024
"""A shorter head is computed in a fraction of a second."""


class Herd:
    """Who waits for which head.

    Args:
        rooms: the backends' rooms by name.
        lessons: for the size of heads.
        counters: what happened, by name.
        is_on: False keeps nobody.
    """

    def __init__(
        self, rooms: Mapping[str, EngineRoom], lessons: Lessons, counters: Counter[str], *, is_on: bool
    ) -> None:
        self._rooms = rooms
        self._lessons = lessons
        self._counters = counters
        self._is_on = is_on
        self._until: dict[tuple[str, int], float] = {}
        self._promised: dict[tuple[str, int], int] = {}

    def is_keeping(self, now: float) -> bool:
        """Whether somebody may be kept for some backend."""
        return bool(self._promised) and self.next_release_at(now) is not None

    def keeps_back(self, waiting: Waiting, name: str, now: float) -> bool:
        """Whether a request that would go to a backend had better wait a moment; it is kept for that one then."""
        head = waiting.turn.head
        if not self._is_on or not head:
            return False
        until = self._warm_at(name, head, now)
        if until is None or now >= until or self._rooms[name].prefixes.is_inert:
            return False
        head_tokens = self._lessons.head_tokens(waiting)
        if head_tokens < LEAST_TOKENS:
            return False
        if self._until.get((name, head)) != until:
            self._until[name, head], self._promised[name, head] = until, 0
        if waiting.kept_for is None:
            self._counters["herd_holds"] += 1
        if waiting.kept_for != name:
            waiting.kept_for = name
            self._promised[name, head] += waiting.prompt_tokens - head_tokens
        waiting.keep(now, until)
        return True

    def place_of(self, waiting: Waiting, now: float) -> str | None:
        """For which backend a request is kept, as long as it is; notes how long that was when it is no more."""
        name = waiting.kept_for
        if name is None:
            return None
        if name in waiting.candidates:
            until = self._warm_at(name, waiting.turn.head, now)
            if until is not None and now < until:
                return name
        if waiting.kept_since is not None:
            waiting.keep_no_more(now)
        return None

    def promised_tokens(self, name: str, head: int) -> int:
        """What those who are kept for a backend will compute there besides the head."""
        return self._promised.get((name, head), 0)

    def next_release_at(self, now: float) -> float | None:
        """When the first of those who are kept is kept no longer."""
        for key, until in list(self._until.items()):
            if until <= now or self._warm_at(*key, now) != until:
                del self._until[key], self._promised[key]
        return min(self._until.values(), default=None)

    def _warm_at(self, name: str, head: int, now: float) -> float | None:
        """Until when those with a head are kept at most; None when it is computed, or nobody computes it."""
        room = self._rooms[name]
        room.see_computed(now)
        since = room.ledger.warming_since(head)
        return None if since is None else since + HOLD_S
