"""Which session's prompts began like this one: a dictionary from the digests of prompts' beginnings to sessions.

A digest covers a whole prompt up to the end of one message, head, model, cache salt and credential included
(`core.turns.Turn.chain`), so its place in the prompt need not be kept. Written by the gate alone.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from proxy.core.turns import SessionKey

MAX_ENTRIES: Final = 50_000
"""Of 100 to 150 bytes each: 7.5 MB at most (measured, CPython 3.11).

The last 25,000 turns of agents, which add two messages each.
"""
KEPT_OF_PROMPT: Final = 200
"""Of a prompt that comes all at once, its last so many messages can be found again."""
_MAX_TWINS: Final = 64


class PrefixIndex:
    """Bounded by `capacity` entries; the one that came first goes first, but for those that were asked to stay.

    That is as good as least recently used, and costs nothing: whoever goes on adds new entries with each turn, and only
    its latest ones are looked for.

    Args:
        capacity: most entries.
    """

    def __init__(self, *, capacity: int = MAX_ENTRIES) -> None:
        self._capacity = capacity
        self._owners: dict[int, SessionKey] = {}
        self._order: deque[int] = deque()
        self._stay: set[int] = set()
        self._twins: dict[int, list[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def match(self, chain: Sequence[int]) -> tuple[SessionKey | None, int]:
        """The session whose prompts have the longest beginning in common with this one, and of how many messages."""
        owners, depth = self._owners, len(chain)
        for digest in reversed(chain):
            if digest in owners:
                return owners[digest], depth
            depth -= 1
        return None, 0

    def add(self, chain: Sequence[int], depth: int, key: SessionKey) -> None:
        """Remember a prompt of a session.

        Args:
            chain: its digests.
            depth: how many of them are known already, see `match`; they stay whose they are.
            key: the session.
        """
        owners, order = self._owners, self._order
        for digest in chain[max(depth, len(chain) - KEPT_OF_PROMPT) :]:
            owners[digest] = key
            order.append(digest)
        while len(owners) > self._capacity:
            self._drop_oldest()

    def keep(self, digest: int) -> None:
        """Something branches off here: it counts as new once more when it would have to go."""
        if digest in self._owners:
            self._stay.add(digest)

    def add_twin(self, digest: int, key: SessionKey) -> None:
        """Another session's last prompt is the very same."""
        twins = self._twins.setdefault(digest, [])
        twins.append(key)
        del twins[:-_MAX_TWINS]

    def twins(self, digest: int) -> Sequence[SessionKey]:
        """Other sessions that had this very prompt, in the order in which they came."""
        return self._twins.get(digest, ())

    def _drop_oldest(self) -> None:
        digest = self._order.popleft()
        if digest in self._stay:
            self._stay.discard(digest)
            self._order.append(digest)
            return
        del self._owners[digest]
        self._twins.pop(digest, None)

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self)}/{self._capacity}>"
