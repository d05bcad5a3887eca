"""What stands in an event stream that is not the engine's: pings, and refusals after a stream was opened early. Pure.

A stream that is opened before there is an answer has given its status away: from then on everything that would have
been a status must be an event.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import orjson

from proxy.core.requests import Dialect, Route, StreamEnd
from proxy.dialects.errors import error_body, stream_error_event
from proxy.dialects.turns import CLAUDE_CODE

EarlyMode = Literal["auto", "on", "off"]
"""For which clients a stream is opened early: those that were seen to bear it, all, none."""

_PINGS: Final[Mapping[Dialect, bytes]] = MappingProxyType(
    {
        # A comment did not count as a sign of life with Claude Code; an event did.
        Dialect.ANTHROPIC: b'event: ping\ndata: {"type": "ping"}\n\n',
        # OpenAI's streams have no such event; the empty line keeps clients that split at it from seeing half of one.
        Dialect.OPENAI: b": keep-alive\n\n",
    }
)
_OVERLOADED: Final = 529
"""Anthropic's own status for it. Inside a stream Claude Code comes back for this word and for no other, so that it
stands for everything that would have been worth another try as a status."""
_WORTH_ANOTHER_TRY: Final = frozenset({408, 409, 429})
"""Below 500; of those above all are."""


def ping(dialect: Dialect) -> bytes:
    """A complete event that says nothing, for between two others."""
    return _PINGS[dialect]


def may_open_early(mode: EarlyMode, route: Route, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a waiting client may be answered before there is an answer.

    Args:
        mode: what is configured.
        route: what it asks; only what ends with a terminal event can be told apart from an answer that is cut short.
        headers: the client's, names in any case.
    """
    if mode == "off" or not route.generates or route.stream_end is StreamEnd.NONE:
        return False
    return mode == "on" or (route.dialect is Dialect.ANTHROPIC and is_claude_code(headers))


def is_claude_code(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a client says that it is Claude Code."""
    return any(name.lower() == b"user-agent" and value.startswith(CLAUDE_CODE.encode()) for name, value in headers)


def refusal_event(route: Route, status: int, body: bytes) -> bytes:
    """An answer that is no stream, as the last event of a stream that was opened before it was known.

    Args:
        route: whose dialect to speak.
        status: the status that it would have had.
        body: the body that it would have had; the error's own words are taken from it where they can be found.
    """
    error = _error_of(body)
    message = error.get("message")
    if not isinstance(message, str) or not message:
        message, error = f"The backend answered {status} and no stream.", {}
    kind, code = error.get("type"), error.get("code")
    if route.dialect is Dialect.ANTHROPIC:
        if status in _WORTH_ANOTHER_TRY or status >= 500:
            status, kind = _OVERLOADED, None
        if isinstance(kind, str):
            said = orjson.dumps({"type": "error", "error": {**error, "type": kind, "message": message}})
        else:
            said = error_body(route.dialect, status, message, "")
        return b"event: error\ndata: %b\n\n" % said
    if route.stream_end is StreamEnd.RESPONSE_COMPLETED or not error:
        return stream_error_event(route.dialect, route.stream_end, message, str(code or status))
    return b"data: %b\n\n" % orjson.dumps({"error": error})


def _error_of(body: bytes) -> dict[str, Any]:
    """The error object of an error answer in any dialect's shape; empty when there is none."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = said.get("error", said) if isinstance(said, dict) else None
    return error if isinstance(error, dict) else {}
