"""The client's end of a request: writes one answer straight to its transport, and feels when it stops reading.

Created by `net.server` per request, written by a relay or by the server itself. Owns the framing towards the client:
an answer that the backend did not finish never ends as if it were complete.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from proxy.net.chunk_pipe import ChunkPipe
from proxy.net.connection import ClientConnection
from proxy.net.header_rules import header_lines

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing sends RST, which no client takes for a clean end."""


class ClientSide:
    """One answer to one client.

    Args:
        connection: the client's connection.
        is_http11: whether chunked framing may be used.
        is_head: the request was HEAD: its answer has headers only, whatever length they tell.
        keep_alive: whether the connection may serve another request afterwards.
        is_draining: asked when the answer begins; then the connection ends with it.
        write_stall_s: seconds without progress after which a client that does not read is cut off.
    """

    __slots__ = (
        "_as_event", "_connection", "_head", "_is_chunked", "_is_draining", "_is_head", "_is_http11", "_left_bytes",
        "_loop", "_stall_timer", "_transport", "_write_stall_s", "has_stalled", "is_complete", "is_started",
        "keep_alive", "on_pause", "on_resume",
    )  # fmt: skip

    def __init__(
        self,
        connection: ClientConnection,
        *,
        is_http11: bool,
        keep_alive: bool,
        write_stall_s: float,
        is_head: bool = False,
        is_draining: Callable[[], bool] = bool,
    ) -> None:
        transport = connection.transport
        if transport is None:
            raise asyncio.CancelledError
        self._connection = connection
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._is_http11 = is_http11
        self._is_head = is_head
        self._is_draining = is_draining
        self._write_stall_s = write_stall_s
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head: bytes | None = None
        self._is_chunked = False
        self._left_bytes: int | None = None
        self._as_event: Callable[[int, bytes], bytes] | None = None
        self.keep_alive = keep_alive
        self.is_started = False
        self.is_complete = False
        self.has_stalled = False
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    # `is_started` says whether bytes of an answer have been written; until then another one may be begun. The head of a
    # stream that was opened early, and pings in it, are none.

    @property
    def is_gone(self) -> bool:
        """Whether the client has left or been cut off."""
        return self._transport.is_closing()

    @property
    def is_open_early(self) -> bool:
        """Whether the client has a status and a stream already, before there is an answer."""
        return self._as_event is not None

    def open_early(
        self, headers: Iterable[tuple[bytes, bytes]], words: bytes, as_event: Callable[[int, bytes], bytes]
    ) -> bool:
        """Give the client 200 and an event stream before there is an answer; the next `start` goes on in it.

        Args:
            headers: end-to-end headers.
            words: the first event.
            as_event: makes an event of a whole answer that cannot have its status any more, given that and its body.

        Returns:
            Whether it could be done: not for HTTP/1.0, where the end of a stream cannot be told from a break.
        """
        has_begun = self.is_started or self._head is not None
        if has_begun or not self._is_http11 or self._is_head or self.is_gone:
            return False
        self.start(200, b"", headers, None)
        head, self._head = self._head or b"", None
        self._as_event = as_event
        self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(words), words))
        return True

    def ping(self, words: bytes) -> bool:
        """Write words that belong to no answer into a stream; says whether it takes any now.

        Args:
            words: a complete event; whoever calls this knows that one may stand here.
        """
        is_open = self._is_chunked and self._head is None and not self.is_complete
        if not is_open or self._stall_timer is not None or self._transport.is_closing():
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(words), words))
        return True

    def answer(self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Give a whole answer; in a stream that was opened early its last event, behind which the stream breaks.

        Args:
            status: HTTP status.
            reason: reason phrase; empty for the standard one.
            headers: end-to-end headers without framing ones, already safe to write.
            body: all of it.
        """
        if self._as_event is None:
            self.start(status, reason, headers, len(body))
            self.write(body, is_last=True)
        elif not self.is_gone:
            self.break_off(self._as_event(status, body))
            self.is_complete = True  # all that there is to say has been said

    def start(
        self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], content_length: int | None
    ) -> None:
        """Begin an answer; its head is written with the first `write`.

        Args:
            status: HTTP status.
            reason: reason phrase; empty for the standard one.
            headers: end-to-end headers without framing ones, already safe to write.
            content_length: body size in bytes, or None when only its end will tell.
        """
        if self._as_event is not None:
            return  # the client has a head; what comes now goes on in its stream
        has_body = status not in (204, 304) and not self._is_head
        self.keep_alive = self.keep_alive and not self._is_draining()
        self._is_chunked = has_body and content_length is None and self._is_http11
        self._left_bytes = content_length if has_body else 0
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, reason or _phrase(status)), header_lines(headers)]
        if self._is_chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        elif content_length is not None and (has_body or self._is_head):
            lines.append(b"Content-Length: %d\r\n" % content_length)
        elif has_body:
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"Connection: close\r\n")
        elif not self._is_http11:
            lines.append(b"Connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self._connection.attach(self)

    def write(self, body: bytes, *, is_last: bool = False) -> None:
        """Pass body bytes on, with the head if it has not been written yet.

        Args:
            body: bytes; empty is fine. Not written to a HEAD request.
            is_last: the answer is complete with them.
        """
        transport = self._transport
        if transport.is_closing():
            return
        head = self._head
        self._head = None
        if self._is_head:
            body = b""
        data = head or b""
        if self._is_chunked:
            if body:
                data = b"%b%x\r\n%b\r\n" % (data, len(body), body)
            if is_last:
                data += b"0\r\n\r\n"
        else:
            data = data + body if data else body
            if self._left_bytes is not None:
                self._left_bytes -= len(body)
        if data:
            self.is_started = True
            transport.write(data)
        if is_last:
            self._end()

    def pipe(self, pieces: list[bytes], times: list[float], look: Callable[[], None]) -> ChunkPipe | None:
        """The short way for chunks that come whole; None where this answer is not chunked, or has not begun.

        See `ChunkPipe` for the arguments.
        """
        if not self._is_chunked or self._head is not None:
            return None
        transport = self._transport
        return ChunkPipe(write=transport.write, is_closing=transport.is_closing, pieces=pieces, times=times, look=look)

    def break_off(self, last_words: bytes = b"") -> None:
        """End an answer that will not be completed, so that no client takes it for complete.

        Args:
            last_words: a complete event for the client to read first; only where one may stand.
        """
        self.keep_alive = False
        if self._transport.is_closing():
            return
        if last_words and self._is_chunked:
            self.write(last_words)
        if self._is_chunked or self._left_bytes is not None:
            self._transport.close()  # what is buffered still goes out; the missing last chunk or bytes tell the rest
        else:
            connected = self._transport.get_extra_info("socket")
            if connected is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def detach(self) -> None:
        """Stop listening to the connection; called once at the request's end."""
        self._stop_stall_timer()
        self.on_pause = self.on_resume = None
        self._connection.detach()
        self._connection.watch_flush(self._write_stall_s)

    def writing_paused(self) -> None:
        """The client reads more slowly than the backend writes: hold the backend, and give the client a deadline."""
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._write_stall_s, self._cut_off)
        if self.on_pause is not None:
            self.on_pause()

    def writing_resumed(self) -> None:
        """The client has taken what was buffered."""
        self._stop_stall_timer()
        if self.on_resume is not None:
            self.on_resume()

    def _end(self) -> None:
        if self._left_bytes:
            self.break_off()
            return
        self.is_complete = True

    def _cut_off(self) -> None:
        self._stall_timer = None
        self.has_stalled = True
        self._transport.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Status"
