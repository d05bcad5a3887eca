"""How many tokens a request will hold, estimated before it is sent. Pure; calibration comes in as values.

A returning session is hardly an estimate: the engine has counted its last prompt, and only what was added since is
guessed from bytes (p50 646 tokens a turn in recorded sessions, so an error of 20 % there is 1 % of the context).
"""

import math
from typing import Final

from proxy.core.turns import OutputStats, StopReason

MIN_LEASE_S: Final = 2.0
LEASE_FACTOR: Final = 1.1
"""Of the usual gap; at 1.5, sessions that had finished held back 4 % of the turns a minute (16 agents, 243k tokens)."""
FETCH_COST: Final = 0.5
"""Of computing it: what a token costs that is brought in from outside, as LMCache or offload do (admission brief 5.8).
Nobody has measured it here; from host memory it is probably less.
"""
RISK: Final = 4.0
"""Deviations reserved for the sum of outputs: 2.33 would be 99 % of a normal tail, but this tail is heavy."""


def prompt_tokens(
    text_bytes: int,
    extra_tokens: int,
    bytes_per_token: float,
    *,
    last_text_bytes: int = 0,
    last_prompt_tokens: int = 0,
) -> int:
    """The prompt's size: the last counted one and what was added since, or everything from bytes.

    Args:
        text_bytes: bytes of prompt text now.
        extra_tokens: fixed cost of what is not text.
        bytes_per_token: calibrated ratio.
        last_text_bytes: bytes of the session's last prompt that the engine counted; 0 for none.
        last_prompt_tokens: what the engine counted for it.
    """
    if last_prompt_tokens and text_bytes >= last_text_bytes:
        return last_prompt_tokens + math.ceil((text_bytes - last_text_bytes) / bytes_per_token)
    return math.ceil(text_bytes / bytes_per_token) + extra_tokens or 1


def growth_tokens(requests: int, stats: OutputStats) -> float:
    """What the answers of so many running requests may still add, together.

    The risk is pooled: reserving each one's 99th percentile would reserve three times too much at eight requests.
    """
    return requests * stats.mean_tokens + RISK * stats.deviation_tokens * math.sqrt(requests)


def miss_cost(external_ratio: float | None) -> float:
    """What a token that is not in the engine's own cache costs, by what computing it would: 1 - e + e/2.

    Args:
        external_ratio: e, the share of such tokens that is brought in from outside; None, unknown, counts as none.
    """
    return 1.0 - (1.0 - FETCH_COST) * (external_ratio or 0.0)


def refill_tokens_per_s(prefill_tokens_per_s: float, external_ratio: float | None) -> float:
    """How fast lost prefixes come back: R / (1 - e/2), so the lease's break-even C/R shrinks by half at most.

    Args:
        prefill_tokens_per_s: R, computed tokens a second. It is measured to the first token, a fetch before included,
            and so is rather too low than too high.
        external_ratio: e, see `miss_cost`.
    """
    return prefill_tokens_per_s / miss_cost(external_ratio)


def lease_s(
    stop: StopReason, capacity_tokens: float, prefill_tokens_per_s: float, usual_gap_s: float | None = None
) -> float:
    """How long an idle session keeps its place while others want it.

    Holding s tokens for d seconds displaces work worth s*d; losing them costs s/R seconds of the whole engine, so the
    break-even C/R does not depend on the session's size. After a tool call 82 % of agents are back within 30 s; after
    the end of an answer 19 % are.

    Args:
        stop: how its last turn ended.
        capacity_tokens: C.
        prefill_tokens_per_s: R, or what stands for it where prefixes come back from outside (`refill_tokens_per_s`).
        usual_gap_s: nineteen of twenty that come back after such an end are back by then. Who is away for longer has
            probably finished: no client says that it has.
    """
    break_even_s = capacity_tokens / prefill_tokens_per_s
    longest = min(300.0, max(15.0, 0.7 * break_even_s))
    if usual_gap_s is not None and LEASE_FACTOR * usual_gap_s < longest:
        return max(MIN_LEASE_S, LEASE_FACTOR * usual_gap_s)
    return min(30.0, max(5.0, 0.1 * break_even_s)) if stop is StopReason.END_TURN else longest
