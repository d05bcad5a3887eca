"""How much KV cache an engine has, in blocks, as requests see it. A value; `engines.capacity` makes it from labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique


@unique
class CapacityWarning(StrEnum):
    """What does not fit together in an engine's labels."""

    BLOCK_SIZE = "block_size"
    """Blocks times block size is not the capacity that the engine states; the block size was worked out from it."""
    FIXED_BLOCKS = "fixed_blocks"
    """More than half of the longest request would be fixed blocks, on no hybrid: alpha may not be 1 then, and short
    requests hold less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCapacity:
    """An engine's KV cache as requests see it.

    Attributes:
        total_blocks: blocks that requests can get.
        block_tokens: tokens in one attention block; also the grain of prefix hits.
        alpha: attention blocks for each block of context.
        beta_blocks: blocks for each request besides; the labels' figure is the worst case, usage teaches the real one.
        is_approximate: the labels did not suffice or contradict each other.
    """

    total_blocks: int
    block_tokens: int
    alpha: float = 1.0
    beta_blocks: float = 0.0
    is_approximate: bool = False
    warning: CapacityWarning | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens in all blocks; requests with fixed blocks fill fewer."""
        return self.total_blocks * self.block_tokens

    def blocks_for(self, context_tokens: int) -> float:
        """What a request with this context holds; at least one block."""
        blocks = -(-context_tokens // self.block_tokens) if context_tokens > 0 else 1  # rounded up
        held = self.alpha * blocks + self.beta_blocks
        return max(1.0, held)  # `max` costs more than all the rest, here and elsewhere on this way

    def max_concurrent(self, context_tokens: int, limit_ratio: float = 1.0) -> int:
        """How many requests with this context fit into a share of the cache."""
        return int(limit_ratio * self.total_blocks / self.blocks_for(context_tokens))


def together(capacities: Sequence[KvCapacity | None], share: float = 1.0) -> KvCapacity | None:
    """Several engines as one, unknown as soon as one of them is.

    Args:
        capacities: of each.
        share: how much of their sum counts where there are several.
    """
    known = [capacity for capacity in capacities if capacity is not None]
    if len(known) != len(capacities) or not known:
        return None
    if len(known) == 1:
        return known[0]
    return replace(known[0], total_blocks=int(share * sum(capacity.total_blocks for capacity in known)))
