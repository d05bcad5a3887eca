"""How far back one engine's prefix cache reaches, learned from the blocks that it stores and gives away.

An engine gives away whatever was released longest ago. So when it gives away a block, everything that was released
before that block is gone, and a block is released no earlier than it was stored. Hence one number is enough: the
latest time at which any block that has been given away was stored. What has not been used since before then is gone as
a whole. No token and no prompt has to be known for it.

Written by `gate.evictions`. Bounded: beyond `MAX_BLOCKS` the older half is forgotten, and blocks that are not known
tell nothing when they go.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

MAX_BLOCKS: Final = 262_144
"""4 million tokens in blocks of 16: more than one engine holds. Takes 21 MB when full (measured, Python 3.11)."""


class CacheHorizon:
    """One engine's.

    Attributes:
        stored_at: monotonic seconds at which the youngest block that was given away had been stored.
    """

    def __init__(self, *, capacity: int = MAX_BLOCKS) -> None:
        self.stored_at = float("-inf")
        self._capacity = capacity
        self._block_tokens = 0
        self._since: dict[int | bytes, float] = {}
        self._copies: dict[int | bytes, int] = {}

    def __len__(self) -> int:
        return len(self._since)

    def stored(self, blocks: Iterable[int | bytes], block_tokens: int, at: float) -> None:
        """Blocks are in the cache now.

        Args:
            blocks: their hashes.
            block_tokens: of each. An engine also announces blocks that are not full yet, and takes these back when they
                are, which is no eviction: only the largest size counts.
            at: monotonic seconds, no later than it happened by more than the way of a message.
        """
        if block_tokens < self._block_tokens:
            return
        if block_tokens > self._block_tokens:
            self._since.clear()
            self._copies.clear()
            self._block_tokens = block_tokens
        since, copies = self._since, self._copies
        for block in blocks:
            # Of two sequences that compute the same block at once each owns a copy, and the older one may go first.
            if block in since:
                copies[block] = copies.get(block, 1) + 1
            else:
                since[block] = at
        if len(since) > self._capacity:
            for block in list(islice(since, len(since) - self._capacity // 2)):
                del since[block]
                copies.pop(block, None)

    def removed(self, blocks: Iterable[int | bytes]) -> None:
        """Blocks were given away."""
        since, copies = self._since, self._copies
        for block in blocks:
            at = since.get(block)
            if at is None:
                continue
            self.stored_at = max(self.stored_at, at)
            left = copies.pop(block, 1) - 1
            if left == 0:
                del since[block]
            elif left > 1:
                copies[block] = left

    def forget(self) -> None:
        """Nothing is known of what is in the cache: it was cleared, or something was missed."""
        self._since.clear()
        self._copies.clear()
        self.stored_at = float("-inf")

    def __repr__(self) -> str:
        return f"<CacheHorizon: {len(self._since)} blocks, gone up to {self.stored_at:.1f}>"
