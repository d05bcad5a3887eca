"""Pings into streams whose backend is silent: where they stand, and where they never do."""

import asyncio
import gzip
import json

import pytest

from proxy.net.client_side import ClientSide
from proxy.net.keepalive import KeepAlive
from tests.fakes.backend import STREAM_HEAD
from tests.fakes.clock import FakeClock
from tests.net.conftest import chat
from tests.net.test_relaying import body_of

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
COMMENT = b": keep-alive\n\n"
SHORT_S = 0.03
"""The interval of pings here."""
LONG_S = 8 * SHORT_S
OFTEN = {"keepalive_ping_s": SHORT_S}

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"
START = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'
BLOCK = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
MESSAGES = b"/v1/messages"
CHAT = b"/v1/chat/completions"


def playing(*steps, head=STREAM_HEAD, ending=b"0\r\n\r\n"):
    """A script that sends chunks, and is silent for as long as the numbers between them say."""

    async def script(_request, connection):
        await connection.send(head)
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await connection.chunk(step)
        await connection.send(ending)

    return script


def finished(gate):
    """The log line of the only request."""
    (line,) = [json.loads(line) for line in gate.log.getvalue().splitlines() if "request.finished" in line]
    return line


@pytest.mark.parametrize(
    ("path", "events", "ping"),
    [(MESSAGES, (START, BLOCK, STOP), PING), (CHAT, (EVENT, LAST, DONE), COMMENT)],
)
async def test_a_silent_prefill_is_pinged_again_and_again(rig, path, events, ping):
    """L23: after the backend's head, in the dialect; what the backend sent is all there, in order."""
    async with rig(playing(LONG_S, *events), timeouts=OFTEN) as gate:
        body = body_of(await gate.raw(chat(path=path)))

        pings = body.count(ping)
        assert pings >= 2
        assert body == pings * ping + b"".join(events)


async def test_pings_are_no_part_of_the_answer(rig):
    """Not in its bytes, its first token, its pauses or its usage."""
    async with rig(playing(LONG_S, EVENT, LONG_S, LAST + DONE), timeouts=OFTEN) as gate:
        body = body_of(await gate.raw(chat()))
        await gate.until(lambda: gate.outcomes() == {"completed": 1})

        assert body.replace(COMMENT, b"") == EVENT + LAST + DONE
        assert COMMENT + EVENT + COMMENT in body
        await gate.until(lambda: "request.finished" in gate.log.getvalue())
        line = finished(gate)
        assert line["response_bytes"] == len(EVENT + LAST + DONE)
        assert line["ttft_s"] >= 0.9 * LONG_S
        assert (line["prompt_tokens"], line["completion_tokens"]) == (9, 1)
        pauses = "tidegate_inter_token_latency_seconds"
        assert gate.metric(f"{pauses}_count", model="m") == 1
        assert gate.metric(f"{pauses}_sum", model="m") >= 0.9 * LONG_S


async def test_never_inside_an_event(rig):
    """L23: an event that is split over two reads stays whole, however long the second one takes."""
    half = len(EVENT) // 2
    async with rig(playing(EVENT[:half], LONG_S, EVENT[half:], DONE), timeouts=OFTEN) as gate:
        assert body_of(await gate.raw(chat())) == EVENT + DONE


async def test_never_between_the_two_newlines_that_end_an_event(rig):
    """The last one may be late."""
    async with rig(playing(EVENT[:-1], LONG_S, EVENT[-1:], DONE), timeouts=OFTEN) as gate:
        assert body_of(await gate.raw(chat())) == EVENT + DONE


@pytest.mark.parametrize(
    ("path", "events"),
    [(CHAT, (EVENT, DONE)), (MESSAGES, (START, STOP)), (CHAT, (EVENT, b'data: {"error":{"message":"x"}}\n\n'))],
)
async def test_never_after_the_last_event(rig, path, events):
    """L23: the stream is over, though the connection is not; the same after an error."""
    async with rig(playing(*events, LONG_S), timeouts=OFTEN) as gate:
        assert body_of(await gate.raw(chat(path=path))) == b"".join(events)


async def test_never_before_the_head(rig):
    """Until the backend answers its status is not known."""

    async def script(_request, connection):
        await asyncio.sleep(LONG_S)
        await playing(EVENT, DONE)(_request, connection)

    async with rig(script, timeouts=OFTEN) as gate:
        assert body_of(await gate.raw(chat())) == EVENT + DONE


def head_with(*lines):
    """The head of an answer in chunks."""
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%b\r\n" % b"".join(line + b"\r\n" for line in lines)


@pytest.mark.parametrize(
    ("head", "chunks"),
    [
        (head_with(b"Content-Type: application/json"), (b'{"a":', b"1}")),
        (head_with(b"Content-Type: text/event-stream", b"Content-Encoding: gzip"), (gzip.compress(EVENT), b"")),
    ],
    ids=["not an event stream", "compressed"],
)
async def test_never_into_what_takes_no_words(rig, head, chunks):
    """Only plain event streams have a place for a ping."""
    chunks = tuple(chunk for chunk in chunks if chunk)
    async with rig(playing(chunks[0], LONG_S, *chunks[1:], head=head), timeouts=OFTEN) as gate:
        assert body_of(await gate.raw(chat())) == b"".join(chunks)


async def test_never_into_an_answer_with_a_length(rig):
    """It would not fit."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(EVENT + DONE)

    async def script(_request, connection):
        await connection.send(head + EVENT)
        await asyncio.sleep(LONG_S)
        await connection.send(DONE)

    async with rig(script, timeouts=OFTEN) as gate:
        assert body_of(await gate.raw(chat())) == EVENT + DONE


async def test_never_to_a_client_without_chunks(rig):
    """HTTP/1.0: left as it was."""
    async with rig(playing(EVENT, LONG_S, DONE), timeouts=OFTEN) as gate:
        answer = await gate.raw(chat().replace(b"HTTP/1.1", b"HTTP/1.0"))

        assert body_of(answer) == EVENT + DONE


async def test_zero_turns_them_off(rig):
    """A silent stream stays silent."""
    async with rig(playing(EVENT, LONG_S, DONE), timeouts={"keepalive_ping_s": 0}) as gate:
        assert body_of(await gate.raw(chat())) == EVENT + DONE


async def test_an_engine_that_hangs_is_found_all_the_same(rig):
    """What the proxy writes is no sign of life of the backend."""
    async with rig(playing(EVENT, 5.0), timeouts={**OFTEN, "idle_s": LONG_S}) as gate:
        answer = await gate.raw(chat(), timeout_s=2)

        assert COMMENT in answer
        assert b"fell silent" in answer
        await gate.until(lambda: gate.outcomes() == {"upstream_error_timeout": 1})


async def test_pings_stand_beside_chunks_that_go_the_short_way(rig):
    """After the first token whole chunks pass unseen; what is between them is known nevertheless."""
    tokens = [EVENT, EVENT, LONG_S, EVENT, LONG_S, EVENT]
    async with rig(playing(*tokens, DONE), timeouts=OFTEN) as gate:
        body = body_of(await gate.raw(chat()))

        assert body.replace(COMMENT, b"") == 4 * EVENT + DONE
        assert body.startswith(2 * EVENT + COMMENT)
        assert COMMENT + EVENT + COMMENT in body


async def test_what_has_ended_is_not_looked_at(rig, monkeypatch):
    """Nothing of a request is kept by what looks after streams."""
    made = []

    class Kept(KeepAlive):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr("proxy.app.KeepAlive", Kept)
    async with rig(playing(EVENT, LONG_S, DONE), timeouts=OFTEN) as gate:
        request = asyncio.get_running_loop().create_task(gate.raw(chat()))
        await gate.until(lambda: len(made[0]))
        await request
        await gate.until(lambda: not len(made[0]))


class Listener:
    """A stream that notes when it is looked at."""

    def __init__(self):
        self.looks = []

    def keep_alive(self, now, quiet_since):
        """Called by what is tested."""
        self.looks.append((now, quiet_since))


def test_every_stream_learns_the_time_and_how_long_is_too_long():
    """And one that was taken out learns nothing any more."""
    clock = FakeClock(100.0)
    keep_alive = KeepAlive(15.0, clock)
    one, other = Listener(), Listener()
    keep_alive.add(one)
    keep_alive.add(other)

    keep_alive.look()
    keep_alive.discard(other)
    clock.advance(2.0)
    keep_alive.look()

    assert one.looks == [(100.0, 85.0), (102.0, 87.0)]
    assert other.looks == [(100.0, 85.0)]


class Pipe:
    """A client's connection and its transport in one."""

    def __init__(self):
        self.transport = self
        self.written = b""
        self.is_gone = False

    def attach(self, listener):
        """Take back-pressure."""

    def is_closing(self):
        """Whether the client has gone."""
        return self.is_gone

    def write(self, data):
        """Keep what is written."""
        self.written += data


async def test_a_client_that_does_not_read_or_is_gone_gets_none():
    """Its buffer is full already."""
    pipe = Pipe()
    client = ClientSide(pipe, is_http11=True, keep_alive=True, write_stall_s=60.0)  # type: ignore[arg-type]
    assert not client.ping(COMMENT)
    client.start(200, b"", (), None)
    assert not client.ping(COMMENT)
    client.write(b"")

    client.writing_paused()
    assert not client.ping(COMMENT)
    client.writing_resumed()
    assert client.ping(COMMENT)
    pipe.is_gone = True
    assert not client.ping(COMMENT)

    assert pipe.written.endswith(b"\r\n\r\n" + b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT))
