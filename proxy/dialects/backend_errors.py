"""Reads what a backend answered instead of a success, and puts it into the shape that the caller's dialect has. Pure.

vLLM alone has three shapes for errors, its web framework a fourth, and gateways in front of it answer in HTML. A body
that has the caller's shape already is not touched.
"""

import html
import re
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.requests import Dialect
from proxy.dialects.context_overflow import anthropic_words
from proxy.dialects.errors import error_type

_MAX_CHARS: Final = 4_000
"""Of a backend's text that is put into a message; what is longer is no sentence for a person."""
_ANTHROPIC_TYPES: Final = frozenset(
    {
        "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error",
        "request_too_large", "rate_limit_error", "api_error", "timeout_error", "overloaded_error",
    }
)  # fmt: skip
_TOO_LONG_STATUSES: Final = frozenset({400, 413, 422})
_NO_ROUTE_STATUSES: Final = frozenset({404, 405})
_NO_ROUTE_WORDS: Final = frozenset({"not found", "method not allowed"})
_UNSEEN: Final = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_TAG: Final = re.compile(r"<[^<>]{0,2000}>")
_LOOKS_LIKE_HTML: Final = re.compile(rb"\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)


class _Said(NamedTuple):
    """An error as a backend gave it.

    Attributes:
        message: its sentence, or None where none was found.
        fields: the object that the sentence stood in.
        is_error: the body is JSON that names an `error`, in whatever form.
        shape: the dialect whose shape it has, or None.
    """

    message: str | None
    fields: dict[str, Any]
    is_error: bool = False
    shape: Dialect | None = None


class Mended(NamedTuple):
    """A body in the caller's shape; `is_overflow` where it says that the context is full, so that less may be asked."""

    body: bytes
    is_overflow: bool = False


def lacks_route(status: int, body: bytes) -> bool:
    """Whether an answer means that the engine has no such route.

    Its web framework says so in two words. A model or a stored response that is not found is said in a sentence; a
    page of HTML, or nothing, comes from a server in between that may know better in a moment, and is not remembered.
    """
    if status not in _NO_ROUTE_STATUSES:
        return False
    message = _said(body).message
    return message is not None and message.strip().lower() in _NO_ROUTE_WORDS


def in_dialect(dialect: Dialect, status: int, body: bytes, estimate_tokens: int) -> Mended | None:
    """The error in the caller's shape.

    Args:
        dialect: the caller's.
        status: HTTP status, 400 or more; chooses the type where the backend's is not one of the dialect's.
        body: what the backend answered, not compressed.
        estimate_tokens: our guess of the prompt's size, see `context_overflow.anthropic_words`.

    Returns:
        The new body; None when the old one is as it should be.
    """
    said = _said(body)
    if dialect is Dialect.ANTHROPIC:
        return _anthropic(status, said, body, estimate_tokens)
    if said.shape is dialect:
        return None
    kind = said.fields.get("type")
    error = {
        "message": _message(said, status, body),
        "type": kind if isinstance(kind, str) else error_type(dialect, status),
        "param": said.fields.get("param"),
        "code": said.fields.get("code"),
    }
    return Mended(orjson.dumps({"error": error}))


def _anthropic(status: int, said: _Said, body: bytes, estimate_tokens: int) -> Mended | None:
    message = said.message
    is_too_long = message is not None and status in _TOO_LONG_STATUSES
    worded = anthropic_words(message, lambda: estimate_tokens) if message is not None and is_too_long else None
    kind = said.fields.get("type")
    if said.shape is Dialect.ANTHROPIC and worded is None:
        if kind in _ANTHROPIC_TYPES:
            return None
        # vLLM's envelope with vLLM's type: the type alone is changed, what else stands in it stays.
        whole = orjson.loads(body)
        whole["error"]["type"] = error_type(Dialect.ANTHROPIC, status)
        return Mended(orjson.dumps(whole))
    error = {
        "type": "invalid_request_error" if worded is not None else error_type(Dialect.ANTHROPIC, status),
        "message": worded if worded is not None else _message(said, status, body),
    }
    return Mended(orjson.dumps({"type": "error", "error": error}), is_overflow=worded is not None)


def _said(body: bytes) -> _Said:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    fields: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    error = fields.get("error")
    if isinstance(error, dict):
        message = error.get("message")
        if not isinstance(message, str) or not message.strip():
            return _Said(None, error, is_error=True)
        shape = Dialect.ANTHROPIC if fields.get("type") == "error" else Dialect.OPENAI
        return _Said(message, error, is_error=True, shape=shape)
    if isinstance(error, str) and error.strip():
        return _Said(error, {}, is_error=True)
    texts = [fields[name] for name in ("message", "detail") if isinstance(fields.get(name), str)]
    return _Said(texts[0], fields) if texts else _Said(None, {})


def _message(said: _Said, status: int, body: bytes) -> str:
    """One text for a person: the backend's own, bounded and printable."""
    if said.message is not None:
        text = said.message
    elif _LOOKS_LIKE_HTML.match(body):
        text = _text_of_html(body[: 16 * _MAX_CHARS].decode("utf-8", "replace"))
    else:
        text = body[: 4 * _MAX_CHARS].decode("utf-8", "replace").strip()
    text = _printable(text)
    if said.fields:
        return text or f"The engine answered {status} and said no more."
    # Not an engine's own sentence: say who it is from.
    return (
        f"The engine, or a server in front of it, answered {status}: {text}"
        if text
        else (f"The engine answered {status} and said no more.")
    )


def _text_of_html(page: str) -> str:
    title = _TITLE.search(page)
    text = html.unescape(_TAG.sub(" ", _UNSEEN.sub(" ", page)))
    parts = [" ".join(part.split()) for part in (html.unescape(title[1]) if title else "", text)]
    return ": ".join(part for part in dict.fromkeys(parts) if part)


def _printable(text: str) -> str:
    """Without control characters other than line breaks, and not longer than a message may be."""
    cut = text[:_MAX_CHARS]
    safe = "".join(char if char.isprintable() or char in "\n\t" else " " for char in cut)
    return safe if len(text) <= _MAX_CHARS else f"{safe} [...]"
