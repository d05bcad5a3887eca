"""Refusals and faults in the words and shapes that each client family understands.

Pure: a status and a sentence in, bytes out. Bodies that a backend made are never touched here.
"""

from typing import Final

import orjson

from proxy.core.requests import Dialect, StreamEnd

_ANTHROPIC_TYPES: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_OPENAI_TYPES: Final[dict[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(dialect: Dialect, status: int, message: str, code: str) -> bytes:
    """An error answer's JSON body.

    Args:
        dialect: whose shape.
        status: the HTTP status that it goes with; chooses the error type.
        message: one sentence for a person.
        code: the outcome's name, for programs (OpenAI shape only; Anthropic's has no place for it).
    """
    kind = error_type(dialect, status)
    if dialect is Dialect.ANTHROPIC:
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_type(dialect: Dialect, status: int) -> str:
    """What a dialect calls the errors of a status."""
    if dialect is Dialect.ANTHROPIC:
        return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def stream_error_event(
    dialect: Dialect, stream_end: StreamEnd, message: str, code: str, *, has_begun: bool = True
) -> bytes:
    """An event that says inside a running stream that it broke. The stream must not end cleanly after it.

    Args:
        dialect: whose shape.
        stream_end: how the route's streams end.
        message: one sentence for a person.
        code: the outcome's name, for programs.
        has_begun: whether anything generated has passed. Until then asking again loses nothing, and Claude Code does so
            by itself when it is told `overloaded_error`; any other error ends its turn.
    """
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: %b\n\n" % error_body(dialect, 502 if has_begun else 529, message, code)
    if stream_end is StreamEnd.RESPONSE_COMPLETED:
        event = {"type": "error", "code": "server_error", "message": message, "param": None}
        return b"event: error\ndata: %b\n\n" % orjson.dumps(event)
    return b"data: %b\n\n" % error_body(dialect, 502, message, code)
