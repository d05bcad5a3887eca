"""The lean client's protocol against a transport and a loop that only note what is asked of them."""

import asyncio
import dataclasses
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Retry
from proxy.core.outcomes import Outcome
from proxy.net.chunk_pipe import ChunkPipe
from proxy.net.upstream import UpstreamConnection, UpstreamTimeouts
from tests.fakes.clock import FakeClock

TIMEOUTS = UpstreamTimeouts(connect_s=2.0, first_byte_s=60.0, idle_s=10.0, keepalive_s=4.0, max_age_s=300.0)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n"
)


class FakeTransport:
    """Notes what the protocol does with it."""

    def __init__(self):
        self.written = b""
        self.is_aborted = False
        self.is_reading = True

    def write(self, data):
        """Take bytes."""
        self.written += data

    def writelines(self, pieces):
        """Take several pieces."""
        self.written += b"".join(pieces)

    def abort(self):
        """Close at once."""
        self.is_aborted = True

    def is_closing(self):
        """Whether it was closed."""
        return self.is_aborted

    def pause_reading(self):
        """Read no more."""
        self.is_reading = False

    def resume_reading(self):
        """Read on."""
        self.is_reading = True


class FakeTimer:
    """One armed timer."""

    def __init__(self, at, callback):
        self.at = at
        self.callback = callback

    def cancel(self):
        """Never fire."""
        self.callback = None


class FakeLoop:
    """Timers that fire when the test says that time has passed."""

    def __init__(self, clock):
        self._clock = clock
        self.timers = []

    def call_later(self, delay_s, callback):
        """Arm a timer."""
        timer = FakeTimer(self._clock() + delay_s, callback)
        self.timers.append(timer)
        return timer

    @property
    def armed(self):
        """How many timers are armed."""
        return sum(timer.callback is not None for timer in self.timers)

    def pass_time(self, seconds):
        """Let time pass, and fire what falls due on the way at its own moment."""
        end = self._clock.now + seconds
        while due := [timer for timer in self.timers if timer.callback is not None and timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            callback, timer.callback = timer.callback, None
            self._clock.now = max(self._clock.now, timer.at)
            callback()
        self._clock.now = end


class FakeSink:
    """Keeps what it was given."""

    def __init__(self):
        self.heads = []
        self.body = b""
        self.endings = 0
        self.errors = []
        self.chunks = []
        self.on_piece = lambda: None
        self.pipe: ChunkPipe | None = ChunkPipe(
            write=self._take_chunk, is_closing=lambda: False, pieces=[], times=[], look=lambda: None
        )

    def _take_chunk(self, chunk):
        self.chunks.append(chunk)
        self.body += chunk[chunk.index(b"\n") + 1 : -2]
        self.on_piece()

    def on_received(self, head, body, has_ended, now):  # noqa: ARG002
        """One read's worth."""
        self.heads += [head] if head is not None else []
        self.body += body
        self.endings += has_ended
        self.on_piece()

    def on_failed(self, error):
        """The answer will not be completed."""
        self.errors.append(error)


class Wire:
    """A connection with fakes on every side."""

    def __init__(self, timeouts=TIMEOUTS):
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.transport = FakeTransport()
        self.connection = UpstreamConnection(cast("asyncio.AbstractEventLoop", self.loop), timeouts, self.clock)
        self.connection.connection_made(cast("Any", self.transport))

    def ask(self, body=b""):
        """Start an exchange."""
        sink = FakeSink()
        self.connection.send(b"POST / HTTP/1.1\r\n\r\n", body, sink)
        return sink

    def answer(self, *pieces):
        """Bytes from the backend, a read each."""
        for piece in pieces:
            self.connection.data_received(piece)


def outcome_of(sink):
    """The only failure that the sink was told of."""
    (error,) = sink.errors
    return error.outcome


@pytest.mark.parametrize(("raw", "body"), [(WHOLE, b"hello"), (CHUNKED, b"hello world")], ids=["length", "chunked"])
@given(data=st.data())
def test_an_answer_is_the_same_however_it_is_cut(raw, body, data):
    """Head, body and end arrive once each, whatever the packets; the connection may then serve again."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=8)))
    wire = Wire()
    for _ in range(2):
        sink = wire.ask()
        wire.answer(*(raw[a:b] for a, b in pairwise([0, *cuts, len(raw)])))

        assert ([200], body, 1, []) == ([head.status for head in sink.heads], sink.body, sink.endings, sink.errors)
        assert wire.connection.is_reusable
        assert wire.loop.armed == 1, "one timer a connection, however many exchanges"
    wire.connection.connection_lost(None)
    assert wire.loop.armed == 0


def test_a_read_that_is_one_chunk_is_handed_on_with_its_framing():
    """Nearly every read of a stream: nothing is taken apart and put together again."""
    wire = Wire()
    sink = wire.ask()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for read in (head, b"5\r\nhello\r\n", b"06\r\n world\r\n", b"A\r\n, of tides\r\n", b"1\r\n!\r\n", b"0\r\n\r\n"):
        wire.connection.data_received(read)

    assert sink.chunks == [b"5\r\nhello\r\n", b"1\r\n!\r\n"]
    assert sink.body == b"hello world, of tides!"
    assert sink.endings == 1
    assert wire.connection.is_reusable


@pytest.mark.parametrize(
    "reads",
    [
        [b"1", b"5\r\n\r\n345678901234567890\r\n"],
        [b"c\r\n", b"2\r\nab\r\n12345\r\n"],
        [b"9\r\n0\r\n", b"2\r\nab\r\n"],
        [b"4;a=2\r\nab\r\n\r\n", b"2\r\nab\r\n"],
        [b"+2\r\nab\r\n"],
        [b"0x2\r\nab\r\n"],
    ],
)
def test_what_only_looks_like_a_whole_chunk_is_left_to_the_parser(reads):
    """A size line or a chunk that is still open, or a size that only Python would read."""
    wire, plain = Wire(), Wire()
    sink, expected = wire.ask(), plain.ask()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    plain.connection.data_received(head + b"".join(reads))
    for read in (head, *reads):
        wire.connection.data_received(read)

    assert sink.body == expected.body
    assert len(sink.errors) == len(expected.errors)


def test_a_body_with_a_length_may_look_like_chunks():
    """Framing is what the head says, not what the bytes look like."""
    wire = Wire()
    sink = wire.ask()
    for read in (b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n", b"2\r\nab\r\n", b"2\r\ncd\r\n"):
        wire.connection.data_received(read)

    assert sink.body == b"2\r\nab\r\n2\r\ncd\r\n"
    assert sink.chunks == []
    assert sink.endings == 1


def test_a_trailer_never_becomes_a_header():
    """What follows the last chunk is dropped."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(CHUNKED)

    assert sink.heads[0].headers == ()


@pytest.mark.parametrize("body", [b"{}", b"x" * 200_000], ids=["small", "large"])
def test_a_request_is_written_whole(body):
    """Head and body go out as they are, joined or not."""
    wire = Wire()
    wire.ask(body)

    assert b"POST / HTTP/1.1\r\n\r\n" + body == wire.transport.written


@pytest.mark.parametrize(
    "extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", b"garbage", b"\r\n\r\nHTTP/1.1 200 OK\r\n"]
)
def test_what_follows_an_answer_belongs_to_nobody(extra):
    """Row 90: bytes after the end, in the same read or a later one, reach no sink and cost the connection."""
    for pieces in ((WHOLE + extra,), (WHOLE, extra)):
        wire = Wire()
        sink = wire.ask()
        wire.answer(*pieces)

        assert (b"hello", 1, []) == (sink.body, sink.endings, sink.errors)
        assert not wire.connection.is_reusable


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_a_backend_that_will_close_is_not_asked_again(head):
    """An answer that says so is the connection's last."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(head + b"Content-Length: 0\r\n\r\n")

    assert 1 == sink.endings
    assert not wire.connection.is_reusable


def test_an_answer_without_length_ends_with_its_connection_and_only_with_a_clean_close():
    """Row 89: a close completes it, a reset does not."""
    for error, endings, failures in ((None, 1, 0), (ConnectionResetError(), 0, 1)):
        wire = Wire()
        sink = wire.ask()
        wire.answer(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")
        wire.connection.connection_lost(error)

        assert (b"hello", endings, failures) == (sink.body, sink.endings, len(sink.errors))


def test_only_a_reused_connection_that_gave_no_byte_may_be_replaced():
    """Row 74: anything else may have been worked on."""
    retries = {}
    for name, is_reused, pieces in (
        ("fresh", False, ()),
        ("reused", True, ()),
        ("reused, a byte came", True, (b"H",)),
        ("reused, interim", True, (b"HTTP/1.1 100 Continue\r\n\r\n",)),
    ):
        wire = Wire()
        if is_reused:
            wire.connection.mark_reused()
        sink = wire.ask()
        wire.answer(*pieces)
        wire.connection.connection_lost(None)
        (error,) = sink.errors
        assert error.outcome is Outcome.UPSTREAM_ERROR_RESET
        retries[name] = error.retry

    assert {
        "fresh": Retry.NEVER,
        "reused": Retry.FRESH_CONNECTION,
        "reused, a byte came": Retry.NEVER,
        "reused, interim": Retry.NEVER,
    } == retries


def test_the_first_byte_has_its_own_deadline():
    """Silence up to the limit is patience, beyond it a timeout that is told once; nothing stays armed."""
    wire = Wire()
    sink = wire.ask()

    wire.loop.pass_time(59.9)
    assert [] == sink.errors
    wire.loop.pass_time(0.2)

    assert outcome_of(sink) is Outcome.UPSTREAM_ERROR_TIMEOUT
    assert (True, 0) == (wire.transport.is_aborted, wire.loop.armed)
    wire.connection.connection_lost(None)
    assert 1 == len(sink.errors)


@pytest.mark.parametrize(("first_byte_s", "idle_s"), [(60.0, 10.0), (10.0, 60.0)])
@pytest.mark.parametrize("gap_s", [0.0, 3.0, 9.9, 55.0, 200.0])
def test_a_timer_that_is_left_from_the_last_exchange_does_not_make_the_next_one_wait(first_byte_s, idle_s, gap_s):
    """Whichever limit is the shorter one, and wherever in its time the timer stands."""
    wire = Wire(dataclasses.replace(TIMEOUTS, first_byte_s=first_byte_s, idle_s=idle_s))
    wire.ask()
    wire.answer(WHOLE[:-1])
    wire.loop.pass_time(9.0)
    wire.answer(WHOLE[-1:])
    wire.loop.pass_time(gap_s)
    sink = wire.ask()

    wire.loop.pass_time(first_byte_s - 0.1)
    assert [] == sink.errors
    wire.loop.pass_time(0.2)

    assert outcome_of(sink) is Outcome.UPSTREAM_ERROR_TIMEOUT


def test_an_idle_connection_has_no_timer_for_long():
    """What is left of the last exchange's goes off once, and says nothing."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(WHOLE)
    wire.loop.pass_time(TIMEOUTS.first_byte_s)

    assert (0, []) == (wire.loop.armed, sink.errors)
    assert wire.connection.is_reusable


def test_silence_in_the_middle_is_measured_from_the_last_piece():
    """A stream may last for ever as long as no pause is too long."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20):
        wire.loop.pass_time(9.0)
        wire.answer(b"1\r\nx\r\n")
    assert [] == sink.errors

    wire.loop.pass_time(9.9)
    assert [] == sink.errors
    wire.loop.pass_time(0.2)

    assert outcome_of(sink) is Outcome.UPSTREAM_ERROR_TIMEOUT


def test_silence_that_we_asked_for_is_not_the_backends():
    """While its reader is full the backend is not blamed; afterwards it has its whole time again."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
    wire.connection.pause_reading()
    wire.loop.pass_time(100.0)
    assert (False, []) == (wire.transport.is_reading, sink.errors)

    wire.connection.resume_reading()
    wire.loop.pass_time(9.0)
    assert (True, []) == (wire.transport.is_reading, sink.errors)
    wire.loop.pass_time(12.0)

    assert outcome_of(sink) is Outcome.UPSTREAM_ERROR_TIMEOUT


def test_a_connection_whose_reader_filled_up_with_the_last_bytes_reads_again():
    """A slow client's full buffer outlives its answer; the next answer on the connection must not wait for it."""
    wire = Wire()
    sink = wire.ask()
    sink.on_piece = wire.connection.pause_reading
    wire.answer(WHOLE)
    assert 1 == sink.endings

    if wire.connection.is_reusable:
        second = wire.ask()
        assert wire.transport.is_reading
        wire.loop.pass_time(1_000.0)
        assert outcome_of(second) is Outcome.UPSTREAM_ERROR_TIMEOUT


def test_an_abandoned_exchange_says_nothing_more():
    """After `abort` neither bytes nor the close reach the sink, and no timer is left."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n")
    wire.connection.abort()
    wire.answer(b"late")
    wire.connection.connection_lost(None)
    wire.loop.pass_time(1_000.0)

    assert (b"", 0, []) == (sink.body, sink.endings, sink.errors)
    assert (True, 0) == (wire.transport.is_aborted, wire.loop.armed)


@pytest.mark.parametrize(
    "start",
    [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nX"],
    ids=["reason", "value", "name"],
)
def test_a_head_without_end_is_cut_off(start):
    """Row 75: a backend gone mad fills no memory, even if it never ends its line."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(start, *[b"x" * 65_536] * 8)

    assert outcome_of(sink) is Outcome.UPSTREAM_ERROR_PROTOCOL


def test_many_headers_are_cut_off():
    """Row 75: a bounded number of fields."""
    wire = Wire()
    sink = wire.ask()
    wire.answer(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n")

    assert outcome_of(sink) is Outcome.UPSTREAM_ERROR_PROTOCOL
