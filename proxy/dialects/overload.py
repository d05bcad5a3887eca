"""With which status a route's clients are told that there is no room. Pure."""

from proxy.core.requests import Dialect, Route, StreamEnd


def overload_status(route: Route, configured: int) -> int:
    """The status of a refusal for want of room.

    Args:
        route: the route asked for.
        configured: 429 or 503, for the routes whose clients take either.
    """
    if route.stream_end is StreamEnd.RESPONSE_COMPLETED:
        return 503  # Codex takes a 429 for final, and tries again after a 503
    return 429 if route.dialect is Dialect.ANTHROPIC else configured
