"""What a backend can do wrong, and what the client is told: an error in its dialect, or a stream that visibly broke."""

import asyncio
import json
import re

import pytest

from proxy.state.health import Probe
from tests.fakes.backend import STREAM_HEAD, answering, json_answer, streaming
from tests.net.conftest import chat

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
BLOCK = b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'
OK = json_answer(b"{}")


def status_of(answer: bytes) -> int:
    """The status of an answer."""
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, str]:
    """The error object of an answer."""
    parsed = json.loads(answer.partition(b"\r\n\r\n")[2])
    error: dict[str, str] = parsed["error"]
    return error


async def closing(_request, connection):
    """Close instead of answering."""
    connection.close()


async def resetting(_request, connection):
    """Reset instead of answering."""
    connection.reset()


async def test_a_dead_backend_is_passed_over_and_out_until_it_answers(rig):
    """Row 71: nothing was sent, so the next backend may try; the client notices nothing."""
    async with rig(answering(OK), urls=["http://127.0.0.1:9"], health={"interval_s": 600}) as gate:
        gate.proxy.fleet.health.on_probe("b1", Probe.OK)  # it was well when it was last asked
        sessions = (b"x-session-id: s%d\r\n" % number for number in range(20))
        statuses = [status_of(await gate.raw(chat(extra=extra))) for extra in sessions]

        assert statuses == [200] * 20
        assert not gate.proxy.fleet.health.is_up("b1")
        assert gate.metric("tidegate_retries_total", reason="connect") == 1


async def test_with_every_backend_down_the_client_is_told_at_once(rig):
    """Row 100: a 503 with Retry-After, in the dialect, without waiting."""
    async with rig(urls=["http://127.0.0.1:9"]) as gate:
        answer = await gate.raw(chat(path=b"/v1/messages"))

        assert status_of(answer) == 503
        assert re.search(rb"\r\nRetry-After: [123]\r\n", answer)
        assert error_of(answer)["type"] == "overloaded_error"
        assert gate.outcomes() == {"refused_no_backend": 1}


@pytest.mark.parametrize("fault", [closing, resetting])
async def test_a_close_on_a_fresh_connection_is_one_502(rig, fault):
    """Row 73: the request may have been what killed it, so it is not played to the next backend."""
    async with rig(fault, fault) as gate:
        answer = await gate.raw(chat())

        assert status_of(answer) == 502
        assert sum(len(backend.seen) for backend in gate.backends) == 1
        assert gate.outcomes() == {"upstream_error_reset": 1}
        assert gate.inflight() == 0


async def test_a_reused_connection_that_just_closed_is_replaced_once(rig):
    """L65, row 74: a backend that closes idle connections costs no request."""
    served: set[int] = set()

    async def once_a_connection(request, connection):
        if request.connection_number in served:
            connection.close()
            return
        served.add(request.connection_number)
        await connection.send(OK)

    async with rig(once_a_connection) as gate:
        statuses = [status_of(await gate.raw(chat())) for _ in range(30)]

        assert statuses == [200] * 30
        assert gate.metric("tidegate_retries_total", reason="stale_connection") >= 14


async def test_a_stale_connection_is_replaced_only_once(rig):
    """A backend that closes every connection gets a request twice at most."""
    count = 0

    async def first_only(_request, connection):
        nonlocal count
        count += 1
        if count == 1:
            await connection.send(OK)
        else:
            connection.close()

    async with rig(first_only) as gate:
        assert status_of(await gate.raw(chat())) == 200
        assert status_of(await gate.raw(chat())) == 502
        assert len(gate.backend.seen) == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 3_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_a_502(rig, raw):
    """Rows 75 to 77: garbage, double framing, control characters, endless heads: one attempt, one clear answer."""
    async with rig(answering(raw)) as gate:
        answer = await gate.raw(chat())

        assert status_of(answer) == 502
        assert error_of(answer)["code"] == "upstream_error_protocol"
        assert len(gate.backend.seen) == 1


async def test_bytes_after_an_answer_never_reach_the_next_client(rig):
    """Row 90: a connection with extra bytes is not used again."""
    async with rig(answering(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")) as gate:
        answers = [await gate.raw(chat()) for _ in range(3)]

        assert all(answer.endswith(b"\r\n\r\n{}") for answer in answers)
        assert len({seen.connection_number for seen in gate.backend.seen}) == 3


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    ("path", "event", "last_words"),
    [
        (b"/v1/chat/completions", EVENT, b'data: {"error":{"message":"The answer broke off'),
        (b"/v1/messages", BLOCK, b'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        # Nothing was generated yet: the one error after which Claude Code asks again by itself.
        (b"/v1/messages", EVENT, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"'),
    ],
)
async def test_a_stream_that_breaks_is_told_and_does_not_end_cleanly(rig, how, path, event, last_words):
    """Row 79: an error event in the dialect, then an end that no client takes for complete."""

    async def script(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(event)
        getattr(connection, how)()

    async with rig(script) as gate:
        answer = await gate.raw(chat(path=path))

        assert event in answer
        assert last_words in answer
        assert not answer.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in answer
        assert b"message_stop" not in answer
        await gate.until(lambda: gate.outcomes() == {"upstream_error_reset": 1})
        assert gate.inflight() == 0


async def test_nothing_is_put_into_a_half_sent_event(rig):
    """Where an event is cut in the middle, the stream just breaks."""

    async def script(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(EVENT + b'data: {"half')
        connection.close()

    async with rig(script) as gate:
        answer = await gate.raw(chat())

        assert answer.endswith(b'data: {"half\r\n')
        assert b"error" not in answer


async def test_a_broken_chunk_is_noticed_at_once(rig):
    """Row 80: aiohttp's own client would wait for ever."""

    async def script(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(EVENT)
        await connection.send(b"zz\r\n")
        await connection.until_closed()

    async with rig(script) as gate:
        answer = await gate.raw(chat(), timeout_s=2)

        assert b"The answer broke off" in answer
        assert not answer.endswith(b"0\r\n\r\n")


async def test_an_answer_shorter_than_its_length_does_not_end_cleanly(rig):
    """Row 78: the client sees that bytes are missing."""

    async def script(_request, connection):
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        connection.close()

    async with rig(script) as gate:
        answer = await gate.raw(chat())

        assert b"Content-Length: 10\r\n" in answer
        assert answer.endswith(b"\r\n\r\nabc")
        await gate.until(lambda: gate.outcomes() == {"upstream_error_reset": 1})


async def test_a_cut_answer_to_an_http10_client_is_a_reset(rig):
    """Without framing only a reset tells a cut answer from a complete one."""

    async def script(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(EVENT)
        await asyncio.sleep(0.05)
        connection.close()

    async with rig(script) as gate:
        with pytest.raises(ConnectionResetError):
            await gate.raw(chat().replace(b"HTTP/1.1", b"HTTP/1.0"))


async def test_a_stream_without_its_terminal_event_is_counted_as_truncated(rig):
    """Row 81: passed on as it is, and visible in the metrics."""
    async with rig(streaming(EVENT)) as gate:
        answer = await gate.raw(chat())

        assert answer.endswith(b"0\r\n\r\n")
        await gate.until(lambda: gate.outcomes() == {"truncated": 1})


async def test_an_error_inside_a_stream_is_counted(rig):
    """Row 82: passed on, and not taken for success."""
    async with rig(streaming(b'data: {"error":{"message":"EngineDeadError"}}\n\n', b"data: [DONE]\n\n")) as gate:
        await gate.raw(chat())

        await gate.until(lambda: gate.outcomes() == {"upstream_error_stream": 1})


async def test_silence_before_the_first_byte_is_a_504(rig):
    """Row 83: the backend is told to stop, the client is told why."""

    async def script(_request, connection):
        await connection.until_closed()

    async with rig(script, timeouts={"first_byte_s": 0.1}) as gate:
        answer = await gate.raw(chat(path=b"/v1/messages"))

        assert status_of(answer) == 504
        assert "sent no answer for 0.1 s" in error_of(answer)["message"]
        assert gate.outcomes() == {"upstream_error_timeout": 1}


async def test_silence_in_the_middle_breaks_the_stream(rig):
    """Row 84: longer than allowed is a fault, told in the stream."""

    async def script(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(EVENT)
        await connection.until_closed()

    async with rig(script, timeouts={"idle_s": 0.1}) as gate:
        answer = await gate.raw(chat())

        assert b"fell silent in the middle of its answer for 0.1 s" in answer
        await gate.until(lambda: gate.outcomes() == {"upstream_error_timeout": 1})


async def test_redirects_are_passed_on_and_not_followed(rig):
    """Row 87: no backend can send the proxy anywhere."""
    redirect = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    async with rig(answering(redirect)) as gate:
        answer = await gate.raw(chat())

        assert status_of(answer) == 307
        assert len(gate.backend.seen) == 1


async def test_client_errors_of_a_backend_never_put_it_out(rig):
    """Row 85: a dozen 400s leave it in service."""
    async with rig(answering(json_answer(b"{}", 400))) as gate:
        statuses = [status_of(await gate.raw(chat())) for _ in range(12)]

        assert statuses == [400] * 12
        assert gate.proxy.fleet.health.is_up("b0")
