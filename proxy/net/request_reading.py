"""Reads one request off aiohttp's parser within limits: head checks, then the body, then a `RequestView`.

Called by `net.server`. Every refusal here leaves the connection in a state that cannot be mistaken: where an unread
body may follow, the connection closes.
"""

import asyncio
import random
import re
from types import TracebackType
from typing import Final, Self

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web

from proxy.core.errors import Refusal
from proxy.core.outcomes import Outcome
from proxy.net.connection import BodyFramingError
from proxy.net.header_rules import connection_options, names_protected

_TARGET: Final = re.compile(r"/[!-~]*")
_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._~\-:\[\]%]*")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_random: Final = random.Random()  # noqa: S311 - names requests, guards nothing
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyBudget:
    """Bytes of request bodies held at once, over all requests. Owned by the server; bounded by `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def account(self) -> "BodyAccount":
        """One request's share; use it as a context manager."""
        return BodyAccount(self)

    def take(self, size_bytes: int) -> None:
        """Hold more.

        Raises:
            Refusal: 503 when all bodies together would be too much.
        """
        if self.held_bytes + size_bytes > self._limit_bytes:
            message = "The proxy holds as many request bodies as it may; come back in a moment."
            raise Refusal(Outcome.REFUSED_OVERLOADED, 503, message, retry_after_s=2, close=True)
        self.held_bytes += size_bytes


class BodyAccount:
    """What one request holds of the budget; given back on leaving, whatever happened."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._budget.held_bytes -= self.held_bytes

    def take(self, size_bytes: int) -> None:
        """Hold more; see `BodyBudget.take`."""
        self._budget.take(size_bytes)
        self.held_bytes += size_bytes


def request_id_of(request: web.BaseRequest) -> str:
    """The client's request id when it is harmless, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if given and _REQUEST_ID.fullmatch(given) else f"{_random.getrandbits(128):032x}"


def check_head(request: web.BaseRequest) -> frozenset[bytes]:
    """Check what the parser lets pass and a proxy must not.

    Returns:
        The names of the headers that the client declares to be hop-by-hop, in lower case.

    Raises:
        Refusal: 400, 415, 501 or 505.
    """
    headers = request.headers
    if request.version not in (HttpVersion10, HttpVersion11):
        raise _bad("Only HTTP/1.0 and HTTP/1.1 are spoken here.", 505)
    if not _TARGET.fullmatch(request.raw_path):
        raise _bad("The request target must be a path.")
    if not _AUTHORITY.fullmatch(headers.get(hdrs.HOST, "")):
        raise _bad("The Host header is not a host.")
    if headers.get(hdrs.TRANSFER_ENCODING, "chunked").lower() != "chunked":
        raise _bad("The only transfer coding taken is chunked.", 501)
    if headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise _bad("Compressed request bodies are not taken.", 415)
    options = connection_options(
        [value.encode("utf-8", "surrogateescape") for value in headers.getall(hdrs.CONNECTION, ())]
    )
    if names_protected(options):
        raise _bad("The Connection header names a header that is not hop-by-hop.")
    return options


async def read_body(request: web.BaseRequest, account: BodyAccount, *, limit_bytes: int, timeout_s: float) -> bytes:
    """Read the whole body.

    Raises:
        Refusal: 413 beyond the limit (at once when the head announces it), 408 when it takes too long, 400 when its
            framing breaks, 503 when all bodies together are too much.
    """
    announced = request.content_length or 0
    if announced > limit_bytes:
        raise _too_large(limit_bytes)
    if not request.can_read_body:
        return b""
    account.take(announced)
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(_CONTINUE)
    try:
        if request.content.is_eof():
            return _whole(request, account, announced, limit_bytes)
        async with asyncio.timeout(timeout_s):
            return await _read_pieces(request, account, announced, limit_bytes)
    except TimeoutError:
        message = f"The request body did not arrive within {timeout_s:g} s."
        raise Refusal(Outcome.REFUSED_BODY_TIMEOUT, 408, message, close=True) from None
    except (BodyFramingError, web.RequestPayloadError):
        raise _bad("The request body's framing is broken.") from None


def _whole(request: web.BaseRequest, account: BodyAccount, announced: int, limit_bytes: int) -> bytes:
    """A body that came with its head, as small ones do: no waiting, no timer."""
    error = request.content.exception()
    if error is not None:
        raise error
    body = request.content.read_nowait()
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    if len(body) > announced:
        account.take(len(body) - announced)
    return body


async def _read_pieces(request: web.BaseRequest, account: BodyAccount, announced: int, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await request.content.readany():
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if size > announced:
            account.take(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _bad(message: str, status: int = 400) -> Refusal:
    return Refusal(Outcome.REFUSED_BAD_REQUEST, status, message, close=True)


def _too_large(limit_bytes: int) -> Refusal:
    message = f"The request body is larger than the {limit_bytes} bytes that this proxy takes (limits.body_bytes)."
    return Refusal(Outcome.REFUSED_TOO_LARGE, 413, message, close=True)
