"""What becomes of an answer that is no success before its client gets it: shape, status, when to come back. Pure.

Called by the relay, which holds such an answer until it is whole; what flows never comes here.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from proxy.core.errors import OVERLOAD_STATUSES
from proxy.core.requests import RequestView, StreamEnd
from proxy.core.retry_hints import LONGEST_S, hint_s
from proxy.dialects import backend_errors

Header = tuple[bytes, bytes]

_OVERLOADED: Final = OVERLOAD_STATUSES | {529}
_WORTH_ANOTHER_TRY: Final = frozenset({408, 409, 425, 429})
"""The statuses below 500 that SDKs repeat a request on."""
_USUAL_WAIT_S: Final = 2
"""For a backend that has no room and does not say when it will."""
_SECONDS: Final = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_BYTES_PER_TOKEN: Final = 3.7
"""Agents' prompts have 3.95 to 4.11: a guess made with this is a little too large rather than too small."""
_OF_THE_OLD_BODY: Final = frozenset({b"content-type", b"content-encoding", b"etag", b"content-md5"})


class HeldAnswer(NamedTuple):
    """An answer with its whole body; `reason` is the phrase on its status line."""

    status: int
    reason: bytes
    headers: list[Header]
    body: bytes


def for_client(view: RequestView, answer: HeldAnswer) -> HeldAnswer:
    """A backend's whole answer as its client is to have it; unchanged below status 400.

    Args:
        view: the request.
        answer: what came, its headers already those that pass.
    """
    if answer.status < 400:
        return answer
    status = _status_for(view, answer.status)
    reason = answer.reason if status == answer.status else b""
    headers, body, is_final = list(answer.headers), answer.body, status not in _WORTH_ANOTHER_TRY
    if _is_readable(headers):
        mended = backend_errors.in_dialect(view.route.dialect, status, body, _estimate_tokens(view))
        if mended is not None:
            body = mended.body
            is_final = is_final and not mended.is_overflow  # Claude Code tries again, with less
            headers = [header for header in headers if header[0].lower() not in _OF_THE_OLD_BODY]
            headers.append((b"Content-Type", b"application/json"))
    return HeldAnswer(status, reason, _with_advice(view, status, headers, is_final=is_final), body)


def is_without_route(answer: HeldAnswer) -> bool:
    """Whether it says that the backend has no such route."""
    return _is_readable(answer.headers) and backend_errors.lacks_route(answer.status, answer.body)


def _status_for(view: RequestView, status: int) -> int:
    if status == 429 and view.route.stream_end is StreamEnd.RESPONSE_COMPLETED:
        return 503  # Codex takes a 429 for final
    return status if status < 600 else 502


def _with_advice(view: RequestView, status: int, headers: list[Header], *, is_final: bool) -> list[Header]:
    """The headers that say whether and when to come back."""
    given = _value(headers, b"retry-after")
    in_ms = _value(headers, b"retry-after-ms")
    kept = [header for header in headers if header[0].lower() not in (b"retry-after", b"retry-after-ms")]
    if given is not None or status in _OVERLOADED:
        kept.append((b"Retry-After", b"%d" % _wait_s(given, view.request_id)))
        if in_ms is not None and _SECONDS.fullmatch(in_ms) and 0 < float(in_ms) <= 1_000 * LONGEST_S:
            kept.append((b"retry-after-ms", in_ms))
    elif status < 500 and is_final and _value(headers, b"x-should-retry") is None:
        kept.append((b"x-should-retry", b"false"))
    return kept


def _wait_s(given: bytes | None, request_id: str) -> int:
    """A backend's own wait where clients can use it as it is; else one that they can."""
    if given is None or not _SECONDS.fullmatch(given):
        return hint_s(_USUAL_WAIT_S, request_id)  # a date would need a clock that agrees with the backend's
    seconds = float(given)
    is_usable = seconds == int(seconds) and 1 <= seconds <= LONGEST_S
    return int(seconds) if is_usable else hint_s(seconds, request_id)


def _estimate_tokens(view: RequestView) -> int:
    turn = view.turn
    return int(turn.text_bytes / _BYTES_PER_TOKEN) + turn.extra_tokens if turn is not None else 0


def _is_readable(headers: Iterable[Header]) -> bool:
    encoding = _value(headers, b"content-encoding")
    return encoding is None or encoding.lower() in (b"identity", b"")


def _value(headers: Iterable[Header], name: bytes) -> bytes | None:
    return next((value.strip() for given, value in headers if given.lower() == name), None)
