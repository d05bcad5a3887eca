"""How much fits into an engine, in blocks, from its own labels alone. Pure.

A request with a context of L tokens holds alpha * ceil(L / B) + beta blocks: B is the size of an attention block, alpha
the number of full-attention groups (1 in the models seen), beta what a hybrid or sliding-window model holds for each
request besides. The engine says how many requests of the longest context M fit (K), so beta = blocks / K - ceil(M / B).
"""

import math
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final

from proxy.core.reports import CapacityFacts

_TOLERANCE: Final = 0.10
"""Labels that differ by less mean the same (L51)."""


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
        return max(1.0, self.alpha * math.ceil(max(1, context_tokens) / self.block_tokens) + self.beta_blocks)

    def max_concurrent(self, context_tokens: int, limit_ratio: float = 1.0) -> int:
        """How many requests with this context fit into a share of the cache."""
        return int(limit_ratio * self.total_blocks / self.blocks_for(context_tokens))


def capacity_of(facts: CapacityFacts, *, max_model_len_tokens: int | None = None) -> KvCapacity | None:
    """What the labels amount to, or None when they do not say how many tokens there are.

    Args:
        facts: one engine's labels.
        max_model_len_tokens: the longest context as `/v1/models` lists it, for labels that leave it out.
    """
    blocks, block_tokens = facts.num_gpu_blocks, facts.attention_block_tokens or facts.block_tokens
    if blocks is None and facts.size_tokens and block_tokens:
        blocks = facts.size_tokens // block_tokens
    if not blocks or not block_tokens or blocks <= facts.reserved_blocks:
        return None
    usable = blocks - facts.reserved_blocks
    if facts.size_tokens is None:
        return KvCapacity(total_blocks=usable, block_tokens=block_tokens, is_approximate=True)

    is_known = facts.attention_block_tokens is not None
    longest = facts.max_model_len_tokens or max_model_len_tokens
    fills_ratio = facts.size_tokens / (blocks * block_tokens)
    if fills_ratio > 1 + _TOLERANCE or (not is_known and fills_ratio < 1 - _TOLERANCE):
        return KvCapacity(
            total_blocks=usable,
            block_tokens=max(1, round(facts.size_tokens / blocks)),
            is_approximate=True,
            warning=CapacityWarning.BLOCK_SIZE,
        )
    if not facts.max_concurrency or not longest:
        return KvCapacity(total_blocks=usable, block_tokens=block_tokens, is_approximate=not is_known)
    attention_blocks = math.ceil(longest / block_tokens)
    beta = max(0, round(blocks / facts.max_concurrency) - attention_blocks)
    is_odd = beta > attention_blocks and not facts.has_state
    return KvCapacity(
        total_blocks=usable,
        block_tokens=block_tokens,
        beta_blocks=beta,
        is_approximate=is_odd or not is_known,
        warning=CapacityWarning.FIXED_BLOCKS if is_odd else None,
    )
