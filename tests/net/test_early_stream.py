"""Streams that are opened while their request waits for room: what the client hears, and what is recorded of it."""

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.fakes.backend import STREAM_HEAD, json_answer
from tests.net.test_admission import Client, Engine, admitting, asking, header, started, waiting
from tests.net.test_keepalive import BLOCK, COMMENT, MESSAGES, PING, START, STOP
from tests.net.test_relaying import body_of
from tests.net.test_upstream_faults import status_of

CLAUDE_CODE = b"User-Agent: claude-cli/2.1.197 (external, cli)\r\n"
AFTER_S = 0.05
PINGS = {"keepalive_ping_s": 0.05}
CHAT, RESPONSES = b"/v1/chat/completions", b"/v1/responses"


def early(engine, *, mode="auto", timeouts=None, **queue):
    """A proxy that opens streams after a twentieth of a second, before an engine for two sessions."""
    chosen = {"early_stream": mode, "early_stream_after_s": AFTER_S, **queue}
    return admitting(engine, queue=chosen, timeouts=timeouts or PINGS)


class Messages(Engine):
    """Answers sessions that begin with a capital letter in the Messages dialect, or with what it is told to send."""

    def __init__(self, *answer):
        super().__init__()
        self.answer = answer or (STREAM_HEAD, *map(chunk, (START, BLOCK, STOP)), b"0\r\n\r\n")

    async def __call__(self, request, connection):
        """One request."""
        if not request.header("x-session-id")[0].isupper():
            await super().__call__(request, connection)
            return
        self.begun.append(request.header("x-session-id"))
        for piece in self.answer:
            if piece is None:
                connection.reset()
            else:
                await connection.send(piece)


def chunk(data):
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def claude(session, *, path=MESSAGES, extra=CLAUDE_CODE, **more):
    """A request of Claude Code, of forty of the engine's hundred blocks."""
    return asking(session, path=path, extra=extra, **more)


@asynccontextmanager
async def opened(gate, request):
    """A connection whose request waits and whose stream has been opened, and what came until then."""
    parts = urlsplit(gate.proxy.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\n\n\r\n")
        yield reader, writer, head
    finally:
        writer.close()


def words_of(answer):
    """What stands in a stream that broke, chunk framing and pings taken off."""
    body, rest = b"", answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body.replace(PING, b"").replace(COMMENT, b"")


def error_in(answer):
    """The error that a stream broke with."""
    words = words_of(answer)
    assert b"0\r\n\r\n" not in answer[-7:]
    assert words.count(b"data: ") == 1
    said = json.loads(words.partition(b"data: ")[2])
    return said.get("error") or said


async def finished(gate, **wanted):
    """The log line of a request that ended so."""

    def lines():
        logged = [json.loads(line) for line in gate.log.getvalue().splitlines() if "request.finished" in line]
        return [line for line in logged if wanted.items() <= line.items()]

    await gate.until(lines)
    return lines()[0]


async def test_who_waits_hears_pings_and_then_the_answer():
    """Its status is there at once, and behind the pings the engine's events are whole and end well."""
    engine = Messages()
    async with early(engine) as gate:
        await started(gate, engine, "one", "two")
        async with opened(gate, claude("Third")) as (reader, _, head):
            assert status_of(head) == 200
            assert header(head, b"content-type") == b"text/event-stream; charset=utf-8"
            assert header(head, b"request-id") == header(head, b"x-request-id") is not None
            more = await reader.readuntil(PING)
            assert "Third" not in engine.begun

            engine.end("one")
            rest = await reader.read()

            body = body_of(head + more + rest)
            assert body.replace(PING, b"") == START + BLOCK + STOP
            assert body.startswith(PING)
            line = await finished(gate, route="messages")
            assert (line["outcome"], line["status"], line["early_stream"]) == ("completed", 200, True)
            assert line["queue_wait_s"] >= AFTER_S
            assert line["response_bytes"] == len(START + BLOCK + STOP)


async def test_who_waits_for_long_is_told_in_the_stream_and_comes_back_to_its_place():
    """Refused inside, and recorded as refused; the next time it is told by a status, since it bears few of these."""
    engine = Messages()
    async with early(engine, max_hold_s=0.5) as gate:
        await started(gate, engine, "one", "two")

        first = await gate.raw(claude("Third"))
        again = await gate.raw(claude("Third"))

        assert status_of(first) == 200
        assert error_in(first)["type"] == "overloaded_error"
        assert "keeps its place" in error_in(first)["message"]
        line = await finished(gate, early_stream=True)
        assert (line["outcome"], line["status"]) == ("refused_overloaded", 200)
        assert status_of(again) == 429
        assert gate.metric("tidegate_refusals_total", reason="refused_overloaded") == 2
        assert gate.proxy.waiting_room.gate.counters["tickets_redeemed"] == 1


@pytest.mark.parametrize(
    ("mode", "request_"),
    [
        ("auto", claude("Third", extra=b"User-Agent: Anthropic/Python 0.70\r\n")),
        ("auto", claude("Third", path=CHAT)),
        ("auto", claude("Third", stream=False)),
        ("on", claude("Third", stream=False)),
        ("off", claude("Third")),
    ],
)
async def test_everybody_else_is_answered_with_a_status(mode, request_):
    """As without all this."""
    engine = Messages()
    async with early(engine, mode=mode, max_hold_s=0.2) as gate:
        await started(gate, engine, "one", "two")

        answer = await gate.raw(request_)

        assert status_of(answer) == 429
        assert header(answer, b"retry-after") == b"1"
        assert "early_stream" not in await finished(gate, outcome="refused_overloaded")


async def test_without_pings_no_stream_is_opened():
    """It would only be silent in another way."""
    engine = Messages()
    async with early(engine, timeouts={"keepalive_ping_s": 0}, mode="on", max_hold_s=0.2) as gate:
        await started(gate, engine, "one", "two")

        assert status_of(await gate.raw(claude("Third"))) == 429


async def test_an_http_1_0_client_is_answered_with_a_status():
    """Without chunks a break cannot be told from an end."""
    engine = Messages()
    async with early(engine, mode="on", max_hold_s=0.2) as gate:
        await started(gate, engine, "one", "two")

        assert status_of(await gate.raw(claude("Third").replace(b"HTTP/1.1", b"HTTP/1.0"))) == 429


async def test_a_short_wait_keeps_its_receipt():
    """Who is placed before its stream is opened sees how it was let in."""
    engine = Messages()
    async with admitting(engine, timeouts=PINGS) as gate:
        await started(gate, engine, "one", "two")
        third = Client(gate, claude("Third"))
        await gate.until(lambda: waiting(gate) == 1)
        engine.end("one")

        answer = await third.answer

        assert header(answer, b"x-tidegate-admission") == b"new"
        assert words_of(answer) == START + BLOCK + STOP


@pytest.mark.parametrize(
    ("path", "ping", "begins"),
    [(CHAT, COMMENT, b"data: "), (RESPONSES, COMMENT, b"event: error\ndata: "), (MESSAGES, PING, b"event: error\n")],
)
async def test_for_everybody_if_wanted_in_their_dialect(path, ping, begins):
    """Pings and the refusal alike."""
    engine = Messages()
    async with early(engine, mode="on", max_hold_s=0.5) as gate:
        await started(gate, engine, "one", "two")

        answer = await gate.raw(claude("Third", path=path, extra=b""))

        assert status_of(answer) == 200
        assert answer.count(ping) >= 2
        assert words_of(answer).startswith(begins)
        assert "No room came free" in error_in(answer)["message"]


LONG = json_answer(b'{"x":"%b"}' % (b"y" * 300_000), 400)
INVALID = b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'


@pytest.mark.parametrize(
    ("answer", "kind", "words", "outcome"),
    [
        ((json_answer(INVALID, 400),), "invalid_request_error", "prompt is too long", "backend_rejected"),
        ((json_answer(INVALID, 503),), "overloaded_error", "prompt is too long", "upstream_error_status"),
        ((json_answer(b"<html>", 500),), "overloaded_error", "answered 500", "upstream_error_status"),
        ((json_answer(b'{"id":"msg_1"}'),), "overloaded_error", "without an event", "upstream_error_protocol"),
        ((LONG,), "overloaded_error", "a very long body", "upstream_error_protocol"),
        ((None,), "overloaded_error", "closed the connection", "upstream_error_reset"),
        ((STREAM_HEAD, None), "overloaded_error", "closed the connection", "upstream_error_reset"),
    ],
    ids=["400", "503", "500", "no stream", "long", "reset", "reset after its head"],
)
async def test_what_would_have_been_a_status_is_an_event(answer, kind, words, outcome):
    """The engine's answer, or its failure: one event, a broken stream, and the true ending in the record."""
    engine = Messages(*answer)
    limits = {"answer_buffer_bytes": 65_536}
    queue = {"early_stream_after_s": AFTER_S}
    async with admitting(engine, queue=queue, timeouts=PINGS, limits=limits) as gate:
        await started(gate, engine, "one", "two")
        async with opened(gate, claude("Third")) as (reader, _, head):
            engine.end("one")

            error = error_in(head + await reader.read())

            assert error["type"] == kind
            assert words in error["message"]
            line = await finished(gate, route="messages")
            assert (line["outcome"], line["status"]) == (outcome, 200)
            await gate.until(lambda: gate.inflight() == 1)


async def test_a_silent_prefill_behind_an_early_stream_is_pinged_too():
    """Placed, but the engine has not begun: first without its head, then with it."""
    engine = Messages()

    async def slow(request, connection):
        if request.header("x-session-id") != "Third":
            await engine(request, connection)
            return
        await asyncio.sleep(0.3)
        await connection.send(STREAM_HEAD)
        await asyncio.sleep(0.3)
        await connection.send(chunk(START) + chunk(STOP) + b"0\r\n\r\n")

    async with early(slow) as gate:
        await started(gate, engine, "one", "two")
        async with opened(gate, claude("Third")) as (reader, _, head):
            engine.end("one")

            body = body_of(head + await reader.read())

            assert body.replace(PING, b"") == START + STOP
            assert body.count(PING) >= 4


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_who_leaves_an_early_stream_is_gone_at_once_and_keeps_its_place(how):
    """L66: it never reaches the engine."""
    engine = Messages()
    async with early(engine) as gate:
        await started(gate, engine, "one", "two")
        async with opened(gate, claude("Third")) as (_, writer, _):
            writer.close() if how == "close" else writer.transport.abort()
            await gate.until(lambda: waiting(gate) == 0, timeout_s=1)

            line = await finished(gate, route="messages")
            assert (line["outcome"], line["status"]) == ("client_closed", 200)
            assert gate.proxy.waiting_room.gate.counters["tickets_issued"] == 1
            engine.end("one")
            assert status_of(await gate.raw(claude("Third"))) == 200
            assert engine.begun.count("Third") == 1


async def test_a_proxy_that_stops_says_so_in_the_stream():
    """Who still waits hears it, so that it asks another one."""
    engine = Messages()
    async with early(engine, timeouts={**PINGS, "drain_s": 0}) as gate:
        await started(gate, engine, "one", "two")
        async with opened(gate, claude("Third")) as (reader, _, head):
            await gate.proxy.drain()

            error = error_in(head + await reader.read())
            assert (error["type"], error["message"]) == ("overloaded_error", "The proxy is stopping.")
            assert (await finished(gate, route="messages"))["outcome"] == "aborted"


async def test_a_second_engine_may_take_over_behind_an_early_stream():
    """Nothing of an answer has been written, so an engine that is full is left for another one, or asked no more."""
    engine = Messages(json_answer(INVALID, 503))
    async with admitting(engine, queue={"early_stream_after_s": AFTER_S}, timeouts=PINGS) as other:
        healthy = Messages()
        listed = [{"url": other.backend.url, "name": "full"}]
        async with admitting(healthy) as spare:
            listed.append({"url": spare.backend.url, "name": "spare"})
            queue = {"early_stream_after_s": AFTER_S}
            async with admitting(engine, backends=listed, queue=queue, timeouts=PINGS) as gate:
                for session in ("one", "two", "three", "four"):
                    Client(gate, asking(session))
                await gate.until(lambda: len(engine.begun) + len(healthy.begun) == 4)
                async with opened(gate, claude("Fifth")) as (reader, _, head):
                    for session in engine.begun[:1]:
                        engine.end(session)
                    await gate.until(lambda: "Fifth" in engine.begun)
                    for session in healthy.begun[:1]:
                        healthy.end(session)

                    assert words_of(head + await reader.read()) == START + BLOCK + STOP
                    assert healthy.begun[-1] == "Fifth"
