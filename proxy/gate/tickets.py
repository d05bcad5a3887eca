"""The place in line that a session keeps while its client is away. Called by the gate alone.

One a session, written on it: since when it counts as waiting, and until when it may come back for that. Side calls
neither need nor spend it.
"""

from proxy.core.turns import Rank
from proxy.policy.queueing import LEFT_TICKET_TTL_S, TICKET_TTL_S
from proxy.state.wait_queue import Waiting


def issue(waiting: Waiting, now: float, *, has_left: bool) -> bool:
    """Keep a request's place; says whether there was one to keep.

    Args:
        waiting: it waits no longer, and was not served.
        now: monotonic seconds.
        has_left: its client closed the connection; else it was refused and told to come back, which may take longer.
    """
    if _is_beside(waiting):
        return False
    session = waiting.session
    until = now + (LEFT_TICKET_TTL_S if has_left else TICKET_TTL_S)
    if session.stamp is not None and now <= session.stamp_until:
        # Another turn of it is away too: the older place, for as long as either may take.
        session.stamp, session.stamp_until = min(session.stamp, waiting.stamp), max(session.stamp_until, until)
    else:
        session.stamp, session.stamp_until = waiting.stamp, until
    return True


def redeem(waiting: Waiting, now: float) -> bool:
    """Give a request the place that its session kept; says whether there was one."""
    session = waiting.session
    if session.stamp is None or _is_beside(waiting):
        return False
    stamp, session.stamp = session.stamp, None
    if now > session.stamp_until:
        return False
    waiting.stamp, waiting.has_ticket = stamp, True
    return True


def _is_beside(waiting: Waiting) -> bool:
    return waiting.rank is Rank.CONTROL or waiting.is_side
