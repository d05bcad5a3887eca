"""The paged pool of KV blocks and the prefix cache over it, with vLLM's order of eviction.

Called by the scheduler only. A block is used while any running sequence refers to it; every other block is free and,
while its content is still known by its key, findable.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """Blocks numbered from 0, how many sequences refer to each, and which content each still holds.

    The free list is kept in the order of eviction. On release blocks with a key go to its tail, a sequence's last
    block first, so that its tail is evicted before its head; blocks without a key go to the front, since nobody can
    find them.

    Attributes:
        releases: how many releases there were; a scheduler that failed to place a request need not try again before
            this number moves.
    """

    __slots__ = ("_by_key", "_free", "_keys", "_references", "n_blocks", "releases")

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 1:
            raise ValueError("a block pool needs at least one block")
        self.n_blocks = n_blocks
        self.releases = 0
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_blocks))
        self._references = [0] * n_blocks
        self._keys: list[Hashable | None] = [None] * n_blocks
        # Two sequences that compute the same prefix at once each own a copy; both stay findable, as in vLLM.
        self._by_key: dict[Hashable, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks no sequence refers to, whether or not their content is still findable."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks at least one sequence refers to."""
        return self.n_blocks - len(self._free)

    @property
    def cached_keys(self) -> int:
        """How many distinct contents can be found now."""
        return len(self._by_key)

    def references(self, block: int) -> int:
        """How many sequences refer to `block`."""
        return self._references[block]

    def match(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        """The blocks that hold the longest known prefix of `keys`, at most `limit` of them. Changes nothing."""
        by_key = self._by_key
        found: list[int] = []
        for index in range(min(limit, len(keys))):
            blocks = by_key.get(keys[index])
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def idle_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free: taking them up again uses as much room as new ones would."""
        references = self._references
        return sum(1 for block in blocks if references[block] == 0)

    def take_up(self, blocks: Iterable[int]) -> None:
        """One more sequence refers to each of `blocks`, which `match` has just found."""
        references, free = self._references, self._free
        for block in blocks:
            if references[block] == 0:
                del free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the front of the free list; what they held can no longer be found.

        Raises:
            ValueError: fewer than `count` blocks are free; the caller must look first.
        """
        free = self._free
        if count > len(free):
            raise ValueError(f"{count} blocks asked, {len(free)} free")
        references, keys = self._references, self._keys
        taken: list[int] = []
        for _ in range(count):
            block, _ = free.popitem(last=False)
            if keys[block] is not None:
                self._forget(block)
            references[block] = 1
            taken.append(block)
        return taken

    def publish(self, block: int, key: Hashable) -> None:
        """`block` is full and holds the content named by `key`: from now on it can be found."""
        if self._keys[block] is None:
            self._keys[block] = key
            self._by_key.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """A sequence lets go of `blocks`, given in the order of its tokens."""
        self.releases += 1
        references, keys, free = self._references, self._keys, self._free
        unknown: list[int] = []
        for block in reversed(blocks):
            count = references[block] - 1
            if count < 0:
                raise ValueError(f"block {block} released more often than taken")
            references[block] = count
            if count == 0:
                if keys[block] is None:
                    unknown.append(block)
                else:
                    free[block] = None
        for block in reversed(unknown):
            free[block] = None
            free.move_to_end(block, last=False)

    def forget_all(self) -> None:
        """Drop every known content, as a reset of the prefix cache does; used blocks stay used."""
        self._keys = [None] * self.n_blocks
        self._by_key.clear()
        self.releases += 1

    def eviction_order(self) -> list[int]:
        """The free blocks, the next to be taken first."""
        return list(self._free)

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is None:
            raise ValueError(f"block {block} holds nothing that is known")
        self._keys[block] = None
        holders = self._by_key[key]
        if len(holders) == 1:
            del self._by_key[key]
        else:
            holders.remove(block)
