"""How much fits into an engine, in blocks, from its own labels alone. Pure.

A request with a context of L tokens holds alpha * ceil(L / B) + beta blocks: B is the size of an attention block, alpha
the number of full-attention groups (1 in the models seen), beta what a hybrid or sliding-window model holds for each
request besides. The engine says how many requests of the longest context M fit (K), so beta = blocks / K - ceil(M / B).
"""

import math
from typing import Final

from proxy.core.capacity import CapacityWarning, KvCapacity
from proxy.core.reports import CapacityFacts

_USUAL_BLOCK_TOKENS: Final = 16
_TOLERANCE: Final = 0.10
"""Labels that differ by less mean the same (L51)."""


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


def capacity_of_tokens(tokens: int) -> KvCapacity:
    """What somebody who knows an engine says of its size, in blocks as most engines have them."""
    blocks = max(1, tokens // _USUAL_BLOCK_TOKENS)
    return KvCapacity(total_blocks=blocks, block_tokens=_USUAL_BLOCK_TOKENS, is_approximate=True)
