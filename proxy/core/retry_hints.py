"""When a client should come back: whole seconds from 1 to 60, moved a little so that not all come back together. Pure.

Claude Code takes up to 60 s and gives up beyond; SDKs take whole seconds. Chance is drawn from the request's own id,
so that nothing has to be passed in and the same request gets the same answer.
"""

from typing import Final
from zlib import crc32

LONGEST_S: Final = 60
_SHARE: Final = 0.2


def hint_s(seconds: float, request_id: str) -> int:
    """A Retry-After for one request.

    Args:
        seconds: what it should be about. 1 and less means at once, and stays 1; else it is moved by up to a fifth,
            and by up to a second at least.
        request_id: decides which way.
    """
    if seconds <= 1:
        return 1
    reach = max(1.0, _SHARE * min(seconds, LONGEST_S))
    chance = crc32(request_id.encode("utf-8", "surrogatepass")) / 2**32
    # From half a second below to half above, so that every whole number in reach is as likely.
    moved = min(seconds, LONGEST_S - reach) - reach - 0.5 + chance * (2 * reach + 1)
    return max(1, min(LONGEST_S, round(moved)))
