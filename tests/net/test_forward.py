"""One attempt: what is sent, what may be sent again, and what the ending is called."""

import asyncio
import gzip

import pytest

from proxy.core.backends import Backend
from proxy.core.requests import RequestView, Route
from proxy.net.forward import request_head
from proxy.state.health import Probe
from tests.fakes.backend import STREAM_HEAD, ScriptedBackend, answering, json_answer, streaming
from tests.net.conftest import chat
from tests.net.test_upstream_faults import error_of, status_of

OK = json_answer(b"{}")
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def view_of(method="POST", body=b"{}", headers=()):
    """A request as the server hands it on."""
    return RequestView("r-1", Route("chat_completions"), method, "/v1/x?a=%20b", tuple(headers), body, 0.0)


def test_the_head_to_a_backend_is_ours_and_the_clients():
    """Target and headers byte for byte; host, id, key and length are written by the proxy."""
    backend = Backend("a", "h", 1, "h:1", path_prefix="/one", api_key="key")

    assert (
        b"POST /one/v1/x?a=%20b HTTP/1.1\r\nHost: h:1\r\nx-request-id: r-1\r\nAuthorization: Bearer key\r\n"
        b"Content-Length: 2\r\nX-Odd: \xe9\r\n\r\n"
    ) == request_head(view_of(headers=[(b"X-Odd", b"\xe9")]), backend)


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("GET", b"", None), ("POST", b"", b"Content-Length: 0\r\n"), ("GET", b"{}", b"Content-Length: 2\r\n")],
)
def test_a_length_is_told_where_a_body_may_be(method, body, length):
    """A POST always has one; a GET only when something follows. No key is made up."""
    head = request_head(view_of(method, body), Backend("a", "h", 1, "h:1"))

    assert (length or b"") in head
    assert (length is None) == (b"Content-Length" not in head)
    assert b"Authorization" not in head


async def test_a_request_that_may_have_killed_a_backend_is_not_played_to_the_next_one(rig):
    """Row 73: it was sent on a reused connection; when nobody listens there any more, that is the end of it."""
    fragile = ScriptedBackend(answering(OK))
    server = await asyncio.start_server(fragile.accept, "127.0.0.1", 0)
    fragile.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def dies(_request, connection):
        server.close()
        await asyncio.sleep(0.01)
        connection.reset()

    async with rig(answering(OK), urls=[fragile.url], health={"interval_s": 600}, admission={"mode": "off"}) as gate:
        gate.proxy.fleet.health.on_probe("b0", Probe.DOWN)  # so that the fragile one is asked, and its connection kept
        assert status_of(await gate.raw(chat(b"{}"))) == 200
        fragile.script = dies
        gate.proxy.fleet.health.on_probe("b0", Probe.OK)
        with gate.proxy.fleet.ledger.reserve(gate.proxy.fleet.backends[0]):
            answer = await gate.raw(chat(b"{}"))

        assert 2 == len(fragile.seen)
        assert [] == gate.backends[0].seen
        assert status_of(answer) in {502, 503}
    await fragile.stop()


@pytest.mark.parametrize(
    ("status", "outcome"), [(500, "upstream_error_status"), (400, "backend_rejected"), (307, "completed")]
)
@pytest.mark.parametrize("size_bytes", [10, 300_000], ids=["held", "too long to be held"])
async def test_an_error_answer_is_counted_as_one_however_long_it_is(rig, status, outcome, size_bytes):
    """Its length decides how it is passed on, never what it is called."""
    limits = {"answer_buffer_bytes": 65_536}
    async with rig(answering(json_answer(b"x" * size_bytes, status)), limits=limits) as gate:
        assert status_of(await gate.raw(chat(b"{}"))) == status

        await gate.until(lambda: gate.outcomes() == {outcome: 1}, timeout_s=1)


async def test_a_backend_that_dies_between_head_and_body_is_a_502(rig):
    """Nothing has reached the client yet, so it gets a clear error instead of an empty answer."""

    async def script(_request, connection):
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n")
        await asyncio.sleep(0.02)
        connection.reset()

    async with rig(script) as gate:
        answer = await gate.raw(chat(b"{}"))

        assert status_of(answer) == 502
        assert error_of(answer)["code"] == "upstream_error_reset"


async def test_a_backend_that_dies_in_the_middle_of_an_error_answer_is_a_502(rig):
    """Half an error document is not passed on."""

    async def script(_request, connection):
        await connection.send(b"HTTP/1.1 500 X\r\nContent-Length: 100\r\n\r\nhalf")
        await asyncio.sleep(0.02)
        connection.reset()

    async with rig(script) as gate:
        answer = await gate.raw(chat(path=b"/v1/messages"))

        assert status_of(answer) == 502
        assert error_of(answer)["type"] == "api_error"
        assert {"upstream_error_reset": 1} == gate.outcomes()


async def test_a_compressed_stream_is_passed_on_and_not_called_truncated(rig):
    """Row 92: what cannot be read along is not judged by what was not found in it."""
    body = gzip.compress(EVENT + DONE)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    async with rig(answering(head % len(body) + body)) as gate:
        answer = await gate.raw(chat(extra=b"Accept-Encoding: gzip\r\n"))

        assert EVENT + DONE == gzip.decompress(answer.partition(b"\r\n\r\n")[2])
        await gate.until(lambda: gate.outcomes() == {"completed": 1}, timeout_s=1)


async def test_no_plain_words_are_put_into_a_compressed_stream(rig):
    """An error event in the middle of gzip would break it for the client."""

    async def script(_request, connection):
        await connection.send(STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        await asyncio.sleep(0.02)
        connection.close()

    async with rig(script) as gate:
        answer = await gate.raw(chat(extra=b"Accept-Encoding: gzip\r\n"))

        assert b"error" not in answer.partition(b"\r\n\r\n")[2]


async def test_backends_stay_unnamed_when_receipts_are_off(rig):
    """Whoever hides the names in headers does not tell them in error messages."""
    sections = {"telemetry": {"receipts": False}, "health": {"interval_s": 600}}
    async with rig(streaming(EVENT, DONE), urls=["http://127.0.0.1:9"], **sections) as gate:
        gate.proxy.fleet.health.on_probe("b1", Probe.OK)
        gate.proxy.fleet.health.on_probe("b0", Probe.DOWN)
        refused = await gate.raw(chat(extra=b"X-Request-Id: r1\r\n"))
        gate.proxy.fleet.health.on_probe("b0", Probe.OK)
        answered = await gate.raw(chat())

        assert [503, 200] == [status_of(refused), status_of(answered)]
        assert b"x-tidegate" not in answered
        assert b"b1" not in refused
        assert b"127.0.0.1" not in refused


@pytest.mark.parametrize(("path", "named"), [(b"/v1/messages", True), (b"/v1/chat/completions", False)])
@pytest.mark.parametrize("status", [200, 400])
async def test_l33_anthropics_clients_find_the_request_id_under_their_own_name(rig, path, named, status):
    """Whatever the backend says, and with every answer: it is what a user can look for in the log."""
    async with rig(answering(json_answer(b"{}", status=status, headers=b"request-id: theirs\r\n"))) as gate:
        answer = await gate.raw(chat(path=path, extra=b"x-request-id: mine\r\n"))

        assert (b"\r\nrequest-id: mine\r\n" in answer) is named
        assert b"theirs" not in answer
