"""What can go wrong, whose fault it is, and whether trying again is safe.

Two families: `Refusal` (we will not do it; the client's dialect says so) and `UpstreamError` (a backend failed us).
"""

from enum import Enum, unique
from typing import Final

from proxy.core.outcomes import Outcome

OVERLOAD_STATUSES: Final = frozenset({429, 503})
"""With these a backend says that it has no room now, and has not begun: vLLM's full queue (503), gateways (either)."""


@unique
class Retry(Enum):
    """Whether a failed attempt may be repeated."""

    NEVER = "never"
    """The backend may have begun to work on it, or bytes have reached the client."""
    ELSEWHERE = "elsewhere"
    """Nothing was sent, or the backend said that it has not begun: another backend may try."""
    FRESH_CONNECTION = "fresh_connection"
    """A reused connection closed before any response byte: the same backend, once, on a new connection."""


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not an error of ours
    """The proxy turns a request away.

    Attributes:
        outcome: the reason: one of the refusals, or what a backend did when no attempt is left.
        status: HTTP status.
        message: one sentence for a person; never contains a secret or a prompt.
        retry_after_s: seconds after which to come back, or None when coming back is pointless.
        close: whether the connection must be closed afterwards (an unread body may follow).
        allow: methods for a 405's Allow header.
    """

    def __init__(
        self,
        outcome: Outcome,
        status: int,
        message: str,
        *,
        retry_after_s: int | None = None,
        close: bool = False,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.close = close
        self.allow = allow


class RouteMissing(Refusal):
    """No backend that serves the model has the route; another try changes nothing until an engine is replaced."""


class ModelUnknown(Refusal):
    """No backend lists the model; one of them may have it since it was asked last."""


class UpstreamError(Exception):
    """One attempt on one backend failed.

    Attributes:
        outcome: which ending the request gets if nothing better follows.
        retry: whether and where it may be repeated.
        is_refused: the backend's address refused the connection, so nobody listens there. Slowness proves nothing.
        is_overloaded: the backend answered that it has no room.
        is_without_route: the backend answered that it has no such route.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        retry: Retry = Retry.NEVER,
        is_refused: bool = False,
        is_overloaded: bool = False,
        is_without_route: bool = False,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.retry = retry
        self.is_refused = is_refused
        self.is_overloaded = is_overloaded
        self.is_without_route = is_without_route
