"""What a client does with a refusal or an error: Claude Code's rules. Pure."""

from typing import Final

REFUSALS: Final = frozenset({429, 503, 529})
"""Statuses that mean "later"; other ones from 500 up are errors that are tried again all the same."""
RETRIES: Final = 10
FIRST_BYTE_S: Final = 300.0
"""Silence after which the client drops a request."""
_LONGEST_HINT_S: Final = 60.0
"""A Retry-After beyond it makes the client give up at once."""
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 32.0
_JITTER: Final = 0.25


def wait_before_retry(retries_done: int, retry_after: str | None, draw: float) -> float | None:
    """Seconds until the next attempt; None: give up.

    Args:
        retries_done: attempts after the first one so far.
        retry_after: the header as it came; only seconds are understood.
        draw: in [0, 1), spreads clients.
    """
    if retries_done >= RETRIES:
        return None
    hint_s = _seconds(retry_after)
    if hint_s > _LONGEST_HINT_S:
        return None
    own_s = min(_FIRST_BACKOFF_S * 2.0**retries_done, _LONGEST_BACKOFF_S)
    return max(hint_s, own_s) * (1 + _JITTER * draw)


def _seconds(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0
