"""A lean HTTP/1.1 client for backends: an asyncio protocol around llhttp.

aiohttp's own client costs more than twice as much per request (docs/decisions/0003). One exchange at a time a
connection; whoever sends hands in a sink that gets head, body and end as they arrive, without a task switch.
"""

import asyncio
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol, cast

import httptools

from proxy.core.chunks import NO_SIZE_LINE, SIZE_LINES
from proxy.core.errors import Retry, UpstreamError
from proxy.core.outcomes import Outcome
from proxy.core.ports import Clock
from proxy.net.chunk_pipe import LOOK_AFTER, ChunkPipe
from proxy.net.header_rules import ResponseHead, response_head

_MAX_HEADERS: Final = 256
_MAX_HEADER_BYTES: Final = 65_536
_MAX_HEAD_READ_BYTES: Final = 2 * _MAX_HEADER_BYTES + 262_144
"""Read before the head was complete: the parser keeps an unfinished line to itself. One read brings 256 kB at most."""
_JOIN_BELOW_BYTES: Final = 65_536
"""Up to here one copy costs less than a second system call."""


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    """Limits of one exchange, in seconds.

    Attributes:
        connect_s: until the connection stands.
        first_byte_s: from sending to the first byte of the answer.
        idle_s: between two pieces of the answer, while its reader takes them.
        keepalive_s: how long an idle connection is kept; below the backend's own limit (uvicorn: 5 s).
        max_age_s: how long any connection is reused, so that address changes are noticed.
    """

    connect_s: float
    first_byte_s: float
    idle_s: float
    keepalive_s: float
    max_age_s: float


class ResponseSink(Protocol):
    """Takes an answer as it arrives. Neither method may raise or wait.

    Attributes:
        pipe: where a read goes that is exactly one chunk of a chunked body; None while everything must come here.
    """

    pipe: ChunkPipe | None

    def on_received(self, head: ResponseHead | None, body: bytes, has_ended: bool, now: float) -> None:
        """One read's worth, at `now` in monotonic seconds; positional, since every chunk of every stream comes here.

        Args:
            head: the answer's head if it was completed by this read.
            body: body bytes, maybe none.
            has_ended: whether the answer is complete with them.
            now: when they were read.
        """

    def on_failed(self, error: UpstreamError) -> None:
        """The answer will not be completed. Called at most once, and never after `has_ended`."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a backend."""

    __slots__ = (
        "_clock", "_ends_with_connection", "_has_bytes", "_has_ended", "_has_head", "_head", "_head_size",
        "_headers", "_is_chunk_over", "_is_interim", "_is_read_paused", "_is_reused", "_is_spoiled",
        "_last_activity_at", "_loop", "_parser", "_pieces", "_pieces_of_message", "_pipe", "_reason", "_sink",
        "_timeouts", "_timer", "_transport", "created_at", "idle_since", "on_body",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: UpstreamTimeouts, clock: Clock) -> None:
        self._loop = loop
        self._timeouts = timeouts
        self._clock = clock
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """Body bytes, chunk framing already taken off: llhttp appends them itself, without a call into Python code."""
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sink: ResponseSink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_activity_at = 0.0
        self._has_bytes = False
        self._is_read_paused = False
        self._is_reused = False
        self._is_spoiled = False
        self.created_at = clock()
        self.idle_since = self.created_at
        self._reset_message()

    def _reset_message(self) -> None:
        self._reason = b""
        self._head_size = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: ResponseHead | None = None
        self._pieces.clear()
        self._pieces_of_message: int | None = None
        self._is_interim = False
        self._has_head = False
        self._has_ended = False
        self._ends_with_connection = False
        self._is_chunk_over = False
        """Of a chunked body, and no chunk of it is open."""
        self._pipe: ChunkPipe | None = None

    # -- what the sender does

    @property
    def last_activity_at(self) -> float:
        """When the last byte came, or the request was sent, in monotonic seconds."""
        return self._last_activity_at

    @property
    def is_reusable(self) -> bool:
        """Whether another exchange may be started: the last one is complete and the backend keeps the connection."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._sink is None and not self._is_spoiled

    def send(self, head: bytes, body: bytes, sink: ResponseSink) -> None:
        """Start an exchange. Its answer goes to `sink` until the end, a failure, or `abort`."""
        assert self._transport is not None
        self._sink = sink
        self._has_bytes = False
        self._last_activity_at = self._clock()
        if self._timer is None:
            self._arm_timer(self._timeouts.first_byte_s)
        if len(body) < _JOIN_BELOW_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def pause_reading(self) -> None:
        """The reader of the answer is full: read no more, so that the backend feels it."""
        is_needed = self._sink is not None and not self._is_read_paused
        if self._transport is not None and is_needed and not self._transport.is_closing():
            self._is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The reader of the answer takes more."""
        if self._transport is not None and self._is_read_paused and not self._transport.is_closing():
            self._is_read_paused = False
            self._last_activity_at = self._clock()
            self._transport.resume_reading()

    def mark_reused(self) -> None:
        """The connection has served before: it may turn out to be closed at the other end."""
        self._is_reused = True

    def abort(self) -> None:
        """Close at once; a running exchange is given up without another word to its sink."""
        self._sink = self._pipe = None
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes from the backend: parse them all, then tell the sink once."""
        pipe = self._pipe
        # A read that is one whole chunk leaves the parser where it is, between two of them: it need not see it.
        if pipe is not None and data.startswith(SIZE_LINES.get(len(data), NO_SIZE_LINE)) and data.endswith(b"\r\n"):
            if not pipe.is_closing():
                pipe.write(data)
            self._last_activity_at = now = self._clock()
            pipe.times.append(now)
            pipe.pieces.append(data)
            if len(pipe.pieces) >= LOOK_AFTER:
                pipe.look()
            return
        if self._sink is None:
            # Bytes that nobody asked for: never let them become the next request's answer.
            self._spoil()
            return
        self._has_bytes = True
        self._last_activity_at = self._clock()
        if not self._has_head:
            self._head_size += len(data)
            if self._head_size > _MAX_HEAD_READ_BYTES:
                self._fail(Outcome.UPSTREAM_ERROR_PROTOCOL, "the head of the backend's answer has no end")
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._deliver()
            self._fail(Outcome.UPSTREAM_ERROR_PROTOCOL, f"the backend's answer is not valid HTTP: {_cause(error)}")
            return
        self._deliver()
        # An unfinished size line is no chunk yet either; only a finished one ends like this.
        is_between_chunks = self._is_chunk_over and data.endswith(b"\r\n")
        self._pipe = self._sink.pipe if is_between_chunks and self._sink is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: for some answers that is their end, for others a fault."""
        self._transport = None
        if self._sink is None:
            self._stop_timer()
            return
        if exc is None and self._has_head and self._ends_with_connection:
            self._has_ended = True
            self._deliver()
            self._stop_timer()
            return
        is_stale = self._is_reused and not self._has_bytes
        retry = Retry.FRESH_CONNECTION if is_stale else Retry.NEVER
        what = "before any answer" if not self._has_bytes else "in the middle of its answer"
        self._fail(Outcome.UPSTREAM_ERROR_RESET, f"the backend closed the connection {what}", retry)

    # -- what llhttp calls

    def on_message_begin(self) -> None:
        """A response begins; one that begins after the end of ours is not ours."""
        if self._has_ended:
            self._is_spoiled = True

    def on_status(self, status: bytes) -> None:
        """The reason phrase, perhaps in pieces."""
        if not self._has_ended:
            self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers come here too, after the head, and are dropped."""
        if not self._has_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: 100 and 103 are steps on the way, anything else is the answer."""
        if self._has_ended:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._is_interim = True
            return
        headers = self._headers
        is_long = (
            self._head_size > _MAX_HEADER_BYTES and sum(map(len, chain.from_iterable(headers))) > _MAX_HEADER_BYTES
        )
        if is_long or len(headers) > _MAX_HEADERS:
            raise ValueError("too many response headers")
        self._has_head = True
        self._head = head = response_head(status, self._reason, headers)
        self._is_chunk_over = head.is_chunked
        has_body = status not in (204, 304)
        self._ends_with_connection = has_body and not head.is_chunked and head.content_length is None
        if not self._parser.should_keep_alive():
            self._is_spoiled = True

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._is_chunk_over = False

    def on_chunk_complete(self) -> None:
        """A chunk is over."""
        self._is_chunk_over = True

    def on_message_complete(self) -> None:
        """A response is complete."""
        if self._is_interim:
            self._reset_message()
        elif not self._ends_with_connection and not self._has_ended:
            self._has_ended = True
            self._pieces_of_message = len(self._pieces)

    # -- inside

    def _deliver(self) -> None:
        sink, head, has_ended = self._sink, self._head, self._has_ended
        # What follows the end of our answer in the same read belongs to nobody.
        body = b"".join(self._pieces[: self._pieces_of_message])
        if sink is None or (head is None and not body and not has_ended):
            return
        self._head = None
        self._pieces.clear()
        if has_ended:
            self._sink = None
            self._reset_message()
        sink.on_received(head, body, has_ended, self._last_activity_at)

    def _fail(self, outcome: Outcome, message: str, retry: Retry = Retry.NEVER) -> None:
        sink, self._sink, self._pipe = self._sink, None, None
        self._stop_timer()
        self._spoil()
        if sink is not None:
            sink.on_failed(UpstreamError(outcome, message, retry=retry))

    def _spoil(self) -> None:
        self._is_spoiled = True
        if self._transport is not None:
            self._transport.abort()

    def _on_timer(self) -> None:
        self._timer = None
        if self._sink is None:
            return
        limit_s = self._timeouts.idle_s if self._has_bytes else self._timeouts.first_byte_s
        left_s = self._last_activity_at + limit_s - self._clock()
        if self._is_read_paused:
            left_s = limit_s
        if left_s > 0:
            self._arm_timer(left_s)
            return
        what = "fell silent in the middle of its answer" if self._has_bytes else "sent no answer"
        self._fail(Outcome.UPSTREAM_ERROR_TIMEOUT, f"the backend {what} for {limit_s:g} s")

    def _arm_timer(self, left_s: float) -> None:
        # One timer a connection that looks at the last activity when it fires, instead of one re-armed at every chunk
        # and every exchange. Never later than either limit: the other one counts as soon as the first byte has come, or
        # the next request is sent.
        timeouts = self._timeouts
        self._timer = self._loop.call_later(min(left_s, timeouts.idle_s, timeouts.first_byte_s), self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _cause(error: Exception) -> str:
    """The parser's reason, without the bytes that it may quote."""
    return type(error.__context__ or error).__name__
