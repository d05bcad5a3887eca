"""In which order waiting sessions start, how long a segment lasts, when to come back. Pure.

Between keys: least service first (virtual token counters). Within a key: small first, aged by waiting, so that a whale
is not overtaken for ever; and once the oldest has waited a minute, nobody may enter its backend before it.
"""

from typing import Final

AGING_S: Final = 30.0
HEAD_RESERVATION_S: Final = 60.0
"""Turns a minute with both 12.2, without the reservation 11.6, without either 11.3."""
MIN_SLICE_S: Final = 60.0
PATIENCE_SHARE: Final = 0.8
TICKET_TTL_S: Final = 90.0
"""Claude Code's tenth refusal brings it back after 35 s."""
LEFT_TICKET_TTL_S: Final = 30.0
"""Who closed the connection and wants to go on sends again at once; most were interrupted by their user."""


def score(prompt_tokens: int, waited_s: float) -> float:
    """Lower starts earlier: size, shrunk by waiting."""
    return prompt_tokens / (1.0 + max(0.0, waited_s) / AGING_S)


def slice_s(target_wait_s: float, residents: int, waiting: int) -> float:
    """How long a residency may last while others wait, so that nobody waits much longer than the target.

    Args:
        target_wait_s: the wait to aim for.
        residents: sessions that are in.
        waiting: sessions that are out and want in; at least one.
    """
    return max(MIN_SLICE_S, target_wait_s * residents / max(1, waiting))


def hold_limit_s(patience_s: float | None, configured_s: float) -> float:
    """How long a request may wait before it is answered with a refusal that its client understands.

    Args:
        patience_s: the client's own timeout, if it said one.
        configured_s: the longest hold allowed.
    """
    return min(configured_s, PATIENCE_SHARE * patience_s) if patience_s else configured_s


def retry_after_s(expected_wait_s: float, spread: float) -> int:
    """When a refused client should come back, in 1 to 60 s: half the expected wait, spread over clients.

    Args:
        expected_wait_s: until it would be its turn.
        spread: chance in [0, 1); moves the answer by up to a fifth, so that clients do not come back together.
    """
    return max(1, min(60, round(0.5 * expected_wait_s * (0.8 + 0.4 * spread))))


def charge(uncached_tokens: int, completion_tokens: int, context_tokens: int, held_s: float) -> float:
    """The service of one turn, in tokens: what was computed, twice what was written, and the room it took meanwhile."""
    return uncached_tokens + 2.0 * completion_tokens + context_tokens * held_s / 60.0
