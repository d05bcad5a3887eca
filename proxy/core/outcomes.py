"""How a request can end. One enum is the metric label, the log field and the reason a client is told.

Called by everybody; decides nothing. A new member needs a row in docs/metrics.md, which a test compares.
"""

from enum import StrEnum, unique


@unique
class Outcome(StrEnum):
    """The ending of one request, or of one reservation."""

    COMPLETED = "completed"
    """The backend's whole answer reached the client (any 2xx or 3xx)."""
    BACKEND_REJECTED = "backend_rejected"
    """The backend answered 4xx and the client got that answer; no fault of the backend."""
    CLIENT_CLOSED = "client_closed"
    """The client left before its answer was complete."""
    CLIENT_STALLED = "client_stalled"
    """The client stopped reading and was cut off."""

    REFUSED_BAD_REQUEST = "refused_bad_request"
    REFUSED_UNAUTHENTICATED = "refused_unauthenticated"
    REFUSED_NOT_FOUND = "refused_not_found"
    REFUSED_TOO_LARGE = "refused_too_large"
    REFUSED_BODY_TIMEOUT = "refused_body_timeout"
    REFUSED_NO_BACKEND = "refused_no_backend"
    """Every backend that could serve this is down."""
    REFUSED_OVERLOADED = "refused_overloaded"
    """A limit of the proxy itself is reached."""

    UPSTREAM_ERROR_CONNECT = "upstream_error_connect"
    UPSTREAM_ERROR_STATUS = "upstream_error_status"
    """The backend answered 5xx and the client got that answer."""
    UPSTREAM_ERROR_RESET = "upstream_error_reset"
    """The backend's connection broke before the answer was complete."""
    UPSTREAM_ERROR_PROTOCOL = "upstream_error_protocol"
    """The backend sent something that is not HTTP."""
    UPSTREAM_ERROR_TIMEOUT = "upstream_error_timeout"
    """No first byte, or silence in the middle, for longer than allowed."""
    UPSTREAM_ERROR_STREAM = "upstream_error_stream"
    """The backend reported an error inside a stream that had begun well."""
    TRUNCATED = "truncated"
    """A stream ended cleanly but without its terminal event."""

    ABORTED = "aborted"
    """A reservation left without an ending (cancellation, proxy shutdown)."""
    INTERNAL_ERROR = "internal_error"
    """A fault of the proxy."""

    @property
    def is_refusal(self) -> bool:
        """Whether the proxy itself turned the request away."""
        return self.startswith("refused_")

    @property
    def is_backend_fault(self) -> bool:
        """Whether this ending counts against the backend's health."""
        return self.startswith("upstream_error_")
