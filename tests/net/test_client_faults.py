"""What a client can do: leave, stop reading, dawdle, send what is not HTTP. Nothing is leaked, nobody else suffers."""

import asyncio
import json

import pytest

from tests.fakes.backend import STREAM_HEAD, answering, json_answer
from tests.net.conftest import chat
from tests.net.test_upstream_faults import error_of, status_of

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
OK = json_answer(b"{}")


async def silent(_request, connection):
    """Answer nothing, and wait for the proxy to give up."""
    await connection.until_closed()
    raise ConnectionError


async def silent_after_head(_request, connection):
    """Send the head of a stream and no event."""
    await connection.send(STREAM_HEAD)
    await silent(_request, connection)


async def silent_after_event(_request, connection):
    """Send one event and then nothing."""
    await connection.send(STREAM_HEAD)
    await connection.chunk(EVENT)
    await silent(_request, connection)


async def ended_but_open(_request, connection):
    """Send a whole stream up to its last event, and leave out the last chunk."""
    await connection.send(STREAM_HEAD)
    await connection.chunk(EVENT)
    await connection.chunk(b"data: [DONE]\n\n")
    await silent(_request, connection)


async def test_a_client_that_hangs_up_after_the_last_event_has_its_answer(rig):
    """Codex closes when it has the terminal event; it need not wait for the last chunk."""
    async with rig(ended_but_open) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat(b'{"model":"m","stream":true}'))
        await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()

        await gate.until(lambda: gate.outcomes() == {"completed": 1})
        assert gate.inflight() == 0


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    ("phase", "body"),
    [
        (silent, b'{"model":"m","stream":true}'),
        (silent_after_head, b'{"model":"m","stream":true}'),
        (silent_after_event, b'{"model":"m","stream":true}'),
        (silent, b'{"model":"m"}'),
    ],
    ids=["before head", "before first token", "mid-stream", "not streamed"],
)
async def test_a_client_that_leaves_is_seen_at_the_backend(rig, phase, body, how):
    """L66: in every phase the backend's connection closes within a second, and nothing stays counted."""
    async with rig(phase) as gate:
        _, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat(body))
        await gate.until(lambda: len(gate.backend.seen) == 1)
        await asyncio.sleep(0.02)
        assert gate.inflight() == 1

        writer.close() if how == "close" else writer.transport.abort()

        async with asyncio.timeout(1):
            await gate.backend.closed_early.wait()
        await gate.until(lambda: gate.outcomes() == {"client_closed": 1}, timeout_s=1)
        assert gate.inflight() == 0
        assert gate.proxy.fleet.health.is_up("b0")


async def test_a_client_that_does_not_read_is_cut_off_and_costs_little_memory(rig):
    """L74, row 67: the backend is held back, then the stream is cut and the place given back."""
    sent = 0

    async def endless(_request, connection):
        nonlocal sent
        await connection.send(STREAM_HEAD)
        while sent < 200_000_000:
            await connection.chunk(b"data: " + b"x" * 65_536 + b"\n\n")
            sent += 65_544

    async with rig(endless, timeouts={"write_stall_s": 0.3}) as gate:
        # A stream reader pauses its transport when its own limit is full: nobody reads from it.
        _, writer = await asyncio.open_connection(*gate.address, limit=1)
        writer.write(chat())
        await gate.until(lambda: gate.outcomes() == {"client_stalled": 1}, timeout_s=20)

        assert sent < 30_000_000  # what the kernel buffers of four sockets hold; the proxy itself adds a few reads
        assert gate.inflight() == 0
        writer.transport.abort()


async def test_a_slow_reader_gets_everything(rig):
    """Back-pressure holds the stream, it does not lose of it."""

    async def big(_request, connection):
        await connection.send(STREAM_HEAD)
        for _ in range(200):
            await connection.chunk(b"x" * 65_536)
        await connection.send(b"0\r\n\r\n")

    async with rig(big) as gate:
        reader, writer = await asyncio.open_connection(*gate.address, limit=65_536)
        writer.write(chat())
        total = 0
        while piece := await reader.read(30_000):
            total += piece.count(b"x")
            await asyncio.sleep(0)
        writer.close()

        assert total >= 200 * 65_536


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n", 413),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n{}", 400),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /v1/messages HTTP/1.1\r\nHost: u@x/#\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /v1/messages HTTP/2.0\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 505),
        (b"POST http://evil/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: Content-Length\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"GET /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"POST /pause HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 404),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
async def test_what_a_proxy_must_not_take_is_refused_and_never_forwarded(rig, request_bytes, status):
    """L73, sections 2.1 and 2.2: one clear answer, the connection closed, nothing of it at the backend."""
    async with rig(answering(OK)) as gate:
        answer = await gate.refusal(request_bytes)

        assert status_of(answer) == status
        assert answer.startswith(b"HTTP/1.1 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert gate.backend.seen == []
        assert len(gate.outcomes()) == 1


async def test_a_head_field_of_32_kb_passes(rig):
    """L48: aiohttp's own limit of 8 kB would refuse what real clients send."""
    async with rig(answering(OK)) as gate:
        assert status_of(await gate.raw(chat(extra=b"X-Long: " + b"y" * 32_000 + b"\r\n"))) == 200


async def test_a_body_of_eight_megabytes_passes_and_one_over_the_limit_does_not(rig):
    """L38: agents' bodies pass; beyond the limit the answer is JSON that Claude Code can react to."""
    async with rig(answering(OK)) as gate:
        big = b'{"model":"m","pad":"' + b"x" * 8_000_000 + b'"}'
        assert status_of(await gate.raw(chat(big, path=b"/v1/messages"), timeout_s=20)) == 200
        assert len(gate.backend.seen[0].body) == len(big)

        chunk = b"%x\r\n%b\r\n" % (1 << 20, b"x" * (1 << 20))
        head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await gate.refusal(head + chunk * 33, timeout_s=20)
        assert status_of(answer) == 413
        assert error_of(answer)["type"] == "request_too_large"
        assert len(gate.backend.seen) == 1


async def test_all_bodies_together_are_bounded(rig):
    """Row 54: many large bodies at once are refused before memory runs out, and the account is settled."""
    limits = {"body_bytes": 1_000_000, "buffered_bytes": 1_500_000}
    async with rig(answering(OK), limits=limits) as gate:
        _, writer = await asyncio.open_connection(*gate.address)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        await gate.until(lambda: gate.metric("tidegate_buffered_body_bytes") == 1_000_000)

        answer = await gate.raw(chat(b'{"pad":"' + b"x" * 900_000 + b'"}'))

        assert status_of(answer) == 503
        writer.close()
        await gate.until(lambda: gate.metric("tidegate_buffered_body_bytes") == 0)


async def test_a_body_broken_late_is_refused_at_once(rig):
    """Row 14: aiohttp's C parser would let the reader wait for ever."""
    async with rig(answering(OK)) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"zz\r\n")
        async with asyncio.timeout(1):
            answer = await reader.read()
        writer.close()

        assert status_of(answer) == 400
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_client_that_dawdles_is_cut_off(rig):
    """Rows 57 to 59: saying nothing, half a head, half a body: each has its deadline."""
    async with rig(answering(OK), timeouts={"headers_s": 0.2, "body_s": 0.2}) as gate:
        for words, status in (
            (b"", 408),
            (b"POST /v1/messages HTT", 408),
            (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", 408),
        ):
            assert status_of(await gate.refusal(words, timeout_s=2)) == status


async def test_half_a_second_request_has_a_deadline_too(rig):
    """A connection that has served once is not thereby trusted."""
    async with rig(answering(OK), timeouts={"headers_s": 0.2}) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat().replace(b"Connection: close\r\n", b""))
        await reader.readuntil(b"\r\n\r\n{}")
        await asyncio.sleep(0.3)
        writer.write(b"POST /v1")
        async with asyncio.timeout(2):
            rest = await reader.read()
        writer.close()

        assert status_of(rest) == 408


async def test_expect_continue_is_answered_here(rig):
    """Row 37: 100, then the answer; the header does not reach the backend."""
    async with rig(answering(OK)) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat(b"{}", extra=b"Expect: 100-continue\r\n")[:-2])
        async with asyncio.timeout(2):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        answer = await reader.read()
        writer.close()

        assert status_of(answer) == 200
        assert gate.backend.seen[0].header("expect") is None


async def test_a_key_opens_in_either_header_and_is_told_apart_from_none(rig):
    """L43, row 40: a valid key in one header beside a stale one in the other is good; none is a 401 in the dialect."""
    async with rig(answering(OK), auth={"keys": ["right"]}) as gate:
        good = b"x-api-key: stale\r\nAuthorization: bearer right\r\n"
        answers = {
            name: await gate.raw(chat(extra=extra, path=b"/v1/messages"))
            for name, extra in (
                ("bearer", good),
                ("api key", b"x-api-key: right\r\n"),
                ("none", b""),
                ("wrong", b"x-api-key: wrong\r\n"),
                ("empty", b"Authorization: Bearer \r\n"),
            )
        }

        assert {name: status_of(answer) for name, answer in answers.items()} == {
            "bearer": 200, "api key": 200, "none": 401, "wrong": 401, "empty": 401,
        }  # fmt: skip
        assert error_of(answers["none"])["type"] == "authentication_error"
        assert b"x-should-retry: false" in answers["none"]
        log = gate.log.getvalue()
        assert "right" not in log
        assert "stale" not in log


async def test_a_request_id_is_kept_when_harmless_and_replaced_when_not(rig):
    """Row 39: it goes into logs and headers, so it is checked."""
    async with rig(answering(OK)) as gate:
        kept = await gate.raw(chat(extra=b"X-Request-Id: abc-1\r\n"))
        replaced = await gate.raw(chat(extra=b'X-Request-Id: a"b {}\r\n'))

        assert b"x-request-id: abc-1\r\n" in kept
        assert b'a"b' not in replaced
        assert gate.backend.seen[0].header("x-request-id") == "abc-1"


async def test_pipelined_requests_are_answered_in_order(rig):
    """Row 18: no answer overtakes another."""
    async with rig(answering(OK)) as gate:
        one = chat().replace(b"Connection: close\r\n", b"X-Request-Id: r%d\r\n")
        answer = await gate.raw(b"".join(one % number for number in range(20)) + chat())

        ids = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id: r")]
        assert ids == [b"x-request-id: r%d" % number for number in range(20)]


async def test_five_hundred_streams_that_leave_at_once_leave_nothing(rig):
    """Rows 69 and 113a: a good request is served at once and every place is free."""

    async def script(request, connection):
        if b"stream" in request.body:
            await silent_after_event(request, connection)
        await connection.send(OK)

    async with rig(script) as gate:
        writers = []
        for _ in range(500):
            _, writer = await asyncio.open_connection(*gate.address)
            writer.write(chat())
            writers.append(writer)
        await gate.until(lambda: len(gate.backend.seen) == 500, timeout_s=20)

        for writer in writers:
            writer.transport.abort()

        assert status_of(await gate.raw(chat(b"{}"), timeout_s=3)) == 200
        await gate.until(lambda: gate.inflight() == 0, timeout_s=3)
        await gate.until(lambda: gate.outcomes() == {"client_closed": 500, "completed": 1}, timeout_s=3)
