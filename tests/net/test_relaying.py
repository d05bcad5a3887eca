"""What passes through: bytes, streams, headers, in both directions."""

import asyncio

import pytest

from tests.fakes.backend import STREAM_HEAD, answering, json_answer, streaming
from tests.net.conftest import chat

EVENTS = (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n")


def body_of(answer: bytes) -> bytes:
    """The body of an answer, chunk framing taken off."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body
        body, rest = body + rest[:length], rest[length + 2 :]
    raise AssertionError("no last chunk")


async def test_a_stream_passes_byte_for_byte(rig):
    """L41: the events are the backend's, complete, with its headers and the receipt."""
    async with rig(streaming(*EVENTS)) as gate:
        answer = await gate.raw(chat())

        assert body_of(answer) == b"".join(EVENTS)
        assert b"content-type: text/event-stream; charset=utf-8\r\n" in answer.lower()
        assert b"x-tidegate-backend: b0\r\n" in answer
        await gate.until(lambda: gate.outcomes() == {"completed": 1})
        assert gate.inflight() == 0


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_events_split_anywhere_pass_byte_for_byte(rig, size):
    """Row 93: multi-byte characters and events split at any byte are not repaired."""
    stream = 'data: {"c":"日本語"}\r\n\r\n: comment\n\ndata: [DONE]\n\n'.encode()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    async with rig(streaming(*pieces)) as gate:
        assert body_of(await gate.raw(chat())) == stream


async def test_a_json_answer_passes_with_its_length(rig):
    """A plain answer keeps its bytes and its Content-Length."""
    async with rig(answering(json_answer(b'{"a":1}'))) as gate:
        answer = await gate.raw(chat(b'{"model":"m"}'))

        assert answer.startswith(b"HTTP/1.1 200 X\r\n")
        assert b"Content-Length: 7\r\n" in answer
        assert answer.endswith(b'\r\n\r\n{"a":1}')


async def test_the_request_reaches_the_backend_as_it_was_sent(rig):
    """L48, L72, row 31: target, query, body and unknown headers unchanged; the difference is the documented list."""
    extra = b"Anthropic-Beta: a,b\r\nX-Claude-Code-New: 1\r\nAuthorization: Bearer secret\r\nX-Odd: \xe9\r\n"
    async with rig(answering(json_answer(b"{}"))) as gate:
        body = b'{ "model" : "m", "odd":[1,\t2] }'
        await gate.raw(chat(body, extra=extra, path=b"/v1/messages?beta=true&x=%20y%2Fz"))
        (seen,) = gate.backend.seen

        assert seen.line == "POST /v1/messages?beta=true&x=%20y%2Fz HTTP/1.1"
        assert seen.body == body
        names = [name for name, _ in seen.headers]
        assert names == [
            "Host",
            "x-request-id",
            "Content-Length",
            "Content-Type",
            "Anthropic-Beta",
            "X-Claude-Code-New",
            "X-Odd",
        ]
        assert seen.header("X-Odd") == "\xe9"


async def test_a_backend_gets_its_own_key_and_prefix(rig):
    """L43: the client's credentials stop here; the backend's own are sent."""
    async with rig(answering(json_answer(b"{}"))) as inner:
        backend = {"url": inner.backend.url + "/engine/1", "api_key": "backend-key"}
        async with rig(backends=[backend]) as gate:
            await gate.raw(chat(extra=b"x-api-key: mine\r\n"))
            seen = inner.backend.seen[-1]

            assert seen.line.startswith("POST /engine/1/v1/chat/completions ")
            assert seen.header("authorization") == "Bearer backend-key"
            assert seen.header("x-api-key") is None


async def test_an_error_of_the_backend_passes_untouched(rig):
    """L40: status, body and Retry-After are the backend's, asked once, and no mark against its health."""
    answer = json_answer(b'{"error":{"message":"too long"}}', 400, b"Retry-After: 7\r\n")
    async with rig(answering(answer), answering(answer)) as gate:
        got = await gate.raw(chat())

        assert got.startswith(b"HTTP/1.1 400 ")
        assert b"Retry-After: 7\r\n" in got
        assert got.endswith(b'{"error":{"message":"too long"}}')
        assert sum(len(backend.seen) for backend in gate.backends) == 1
        assert gate.outcomes() == {"backend_rejected": 1}


async def test_a_very_long_error_answer_is_passed_on_and_not_held(rig):
    """What is too long to be an error message flows like any other answer."""
    body = b"x" * 300_000
    async with rig(answering(json_answer(body, 500)), limits={"answer_buffer_bytes": 65_536}) as gate:
        answer = await gate.raw(chat())

        assert answer.startswith(b"HTTP/1.1 500 ")
        assert body_of(answer) == body


async def test_interim_answers_are_steps_and_not_the_answer(rig):
    """Row 88: 100 and 103 are taken, the final 200 is what counts."""
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + json_answer(b"{}")
    async with rig(answering(raw)) as gate:
        answer = await gate.raw(chat())

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"Link" not in answer


async def test_an_answer_that_ends_with_the_connection_is_complete(rig):
    """Row 89: HTTP/1.0 servers end a body by closing."""

    async def script(_request, connection):
        await connection.send(b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"a":')
        await connection.send(b"1}")
        connection.close()

    async with rig(script) as gate:
        assert body_of(await gate.raw(chat())) == b'{"a":1}'


async def test_a_client_of_http10_gets_no_chunks(rig):
    """Framing follows the client: HTTP/1.0 reads to the end of the connection."""
    async with rig(streaming(*EVENTS)) as gate:
        answer = await gate.raw(chat().replace(b"HTTP/1.1", b"HTTP/1.0"))

        assert answer.partition(b"\r\n\r\n")[2] == b"".join(EVENTS)
        assert b"chunked" not in answer


async def test_cookies_are_neither_relayed_nor_kept(rig):
    """L71: a Set-Cookie for one user reaches no user."""
    async with rig(answering(json_answer(b"{}", headers=b"Set-Cookie: a=b\r\n"))) as gate:
        first = await gate.raw(chat())
        await gate.raw(chat())

        assert b"a=b" not in first
        assert gate.backend.seen[1].header("cookie") is None


async def test_the_head_of_a_stream_passes_before_its_first_event(rig):
    """vLLM sends its 200 before prefill: the client gets it then."""
    release = asyncio.Event()

    async def script(_request, connection):
        await connection.send(STREAM_HEAD)
        await release.wait()
        await connection.send(b"0\r\n\r\n")

    async with rig(script) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat())
        async with asyncio.timeout(5):
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        release.set()
        await reader.read()
        writer.close()


async def test_several_requests_share_a_connection_on_both_sides(rig):
    """Keep-alive works towards the client and towards the backend."""
    async with rig(answering(json_answer(b"{}"))) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        for _ in range(5):
            writer.write(chat().replace(b"Connection: close\r\n", b""))
            await reader.readuntil(b"\r\n\r\n{}")
        writer.close()

        assert {seen.connection_number for seen in gate.backend.seen} == {gate.backend.seen[0].connection_number}


async def test_five_hundred_streams_run_at_once(rig):
    """L70: no hidden pool; all of them reach the backend."""
    release = asyncio.Event()
    arrived = 0

    async def script(_request, connection):
        nonlocal arrived
        arrived += 1
        await release.wait()
        await connection.send(json_answer(b"{}"))

    async with rig(script) as gate:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(500):
                tasks.create_task(gate.raw(chat(), timeout_s=30))
            await gate.until(lambda: arrived == 500, timeout_s=30)
            release.set()

        assert gate.outcomes() == {"completed": 500}
        assert gate.inflight() == 0


async def test_the_stored_response_is_asked_where_it_lives(rig):
    """L62: a follow-up by id goes to the backend that answered with that id."""
    made = json_answer(b'{"id":"resp_5","object":"response","status":"completed"}')
    async with rig(answering(made), answering(made), answering(made)) as gate:
        await gate.raw(chat(b'{"model":"m","store":true}', path=b"/v1/responses"))
        home = next(backend for backend in gate.backends if backend.seen)
        for _ in range(5):
            await gate.raw(b"GET /v1/responses/resp_5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert len(home.seen) == 6


async def test_models_are_answered_from_what_backends_list_in_the_form_that_is_asked(rig):
    """L44: OpenAI's list, or Anthropic's for a client that says so; no backend is asked."""
    async with rig(answering(b"")) as gate:
        asked = b"GET /v1/models?limit=1000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n"
        openai = await gate.raw(asked % b"")
        anthropic = await gate.raw(asked % b"anthropic-version: 2023-06-01\r\n")
        one = await gate.raw(b"GET /v1/models/m HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        none = await gate.raw(b"GET /v1/models/n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert b'{"object":"list","data":[{"id":"m","object":"model","created":1}]}' in openai
        assert b'"data":[{"type":"model","id":"m","display_name":"m","created_at":"1970-01-01T00:00:01Z"}]' in anthropic
        assert one.endswith(b'{"id":"m","object":"model","created":1}')
        assert none.startswith(b"HTTP/1.1 404 ")
        assert gate.backend.seen == []


async def test_claude_codes_probe_touches_nothing(rig):
    """L45: HEAD / is answered at once and is not a request."""
    async with rig(answering(b"")) as gate:
        answer = await gate.raw(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert gate.outcomes() == {}
