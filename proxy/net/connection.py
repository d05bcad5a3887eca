"""aiohttp's server connection with the traps closed that matter to a proxy. Made by `net.server`, one a client.

What is added: a deadline for request heads as a whole, an error for a body whose framing breaks late (aiohttp's C
parser loses it and the reader would wait for ever), write back-pressure handed to the answer in progress, and refusals
in JSON for what the parser does not take.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_protocol import _ErrInfo

from proxy.core.requests import Dialect
from proxy.dialects.errors import error_body

_HEADERS_LATE_BODY: Final = error_body(Dialect.OPENAI, 408, "The request head did not arrive in time.", "timeout")
_HEADERS_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_HEADERS_LATE_BODY), _HEADERS_LATE_BODY)
)


class WriteListener(Protocol):
    """Who is told that the client's buffer is full, or has room again."""

    def writing_paused(self) -> None:
        """The buffer is above its high-water mark."""

    def writing_resumed(self) -> None:
        """The buffer is below its low-water mark."""


class BodyFramingError(Exception):
    """The request body broke the framing that its head announced."""


class ClientConnection(web.RequestHandler):
    """One client's connection.

    Args:
        refuse_head: answers a request whose head the parser refused, given status and reason.
        headers_s: seconds from a head's first byte (or from connecting) to its last.
    """

    __slots__ = ("_head_timer", "_headers_s", "_heads_seen", "_refuse_head", "_writer_in_charge")

    def __init__(
        self,
        manager: web.Server,
        *,
        refuse_head: Callable[[web.BaseRequest, int, str], web.StreamResponse],
        headers_s: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(manager, **kwargs)
        self._refuse_head = refuse_head
        self._headers_s = headers_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._heads_seen = 0
        self._writer_in_charge: WriteListener | None = None

    def attach(self, listener: WriteListener) -> None:
        """Hand back-pressure to the answer that is being written."""
        self._writer_in_charge = listener
        if self._paused:
            listener.writing_paused()

    def detach(self) -> None:
        """The answer is written."""
        self._writer_in_charge = None

    def close_if_idle(self) -> None:
        """Close when no request is running, arriving or waiting to be read."""
        if self._waiter is not None and not self._messages and self._head_timer is None:
            self.force_close()

    def cancel_request(self) -> None:
        """End the running request; whoever serves it may still write a last word."""
        if self._task_handler is not None:
            self._task_handler.cancel()

    def watch_flush(self, stall_s: float) -> None:
        """An answer is complete for us; cut the client off when it does not read the rest of it either."""
        transport = self.transport
        left_bytes = transport.get_write_buffer_size() if transport is not None else 0
        if transport is not None and left_bytes:
            self._loop.call_later(stall_s, self._check_flush, transport, left_bytes, stall_s)

    def _check_flush(self, transport: asyncio.Transport, left_bytes: int, stall_s: float) -> None:
        if self._writer_in_charge is not None:
            return  # the next answer watches over itself
        now_left_bytes = transport.get_write_buffer_size()
        if now_left_bytes >= left_bytes:
            transport.abort()
        elif now_left_bytes:
            self._loop.call_later(stall_s, self._check_flush, transport, now_left_bytes, stall_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; its first head must arrive in time."""
        super().connection_made(transport)
        self._head_timer = self._loop.call_later(self._headers_s, self._head_is_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client left."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        super().data_received(data)
        if self._request_count != self._heads_seen:
            self._heads_seen = self._request_count
            self._stop_head_timer()
            self._report_late_framing_error()
        elif self._head_timer is None and self._waiter is not None and not self._messages:
            # Idle until now: these are the first bytes of another head, not the rest of a body.
            self._head_timer = self._loop.call_later(self._headers_s, self._head_is_late)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """The answer is on the wire already; only what followed an offer to change protocols is still to be read."""
        if self._upgraded:
            return await super().finish_response(request, resp, start_time)
        return resp, False

    def resume_reading(self, resume_parser: bool = True) -> None:
        """A body has been read: nothing to do, and the parser not to be asked again, unless reading was paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        super().pause_writing()
        if self._writer_in_charge is not None:
            self._writer_in_charge.writing_paused()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._writer_in_charge is not None:
            self._writer_in_charge.writing_resumed()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - the parser's words quote what the client sent
    ) -> web.StreamResponse:
        """Answer what the parser refused; nothing of what was sent is repeated."""
        if isinstance(exc, LineTooLong):
            return self._refuse_head(request, 431, "A line of the request head is too long.")
        if isinstance(exc, BadHttpMessage) and exc.message.startswith("Too many headers"):
            return self._refuse_head(request, 431, f"The request has more than {self.max_headers} header fields.")
        return self._refuse_head(request, status, "The request is not valid HTTP.")

    def _report_late_framing_error(self) -> None:
        message = self._messages[-1][0] if self._messages else None
        request = self._current_request
        if isinstance(message, _ErrInfo) and request is not None and not request.content.is_eof():
            request.content.set_exception(BodyFramingError())
            request.content.feed_eof()  # nothing more can come: aiohttp would wait for it otherwise

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._current_request is None and not self._messages and self.transport is not None:
            self.transport.write(_HEADERS_LATE)
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
