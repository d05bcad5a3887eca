"""The data port's own promises: framing towards the client, deadlines, connections that are kept or closed."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from tests.fakes.backend import answering, json_answer
from tests.net.conftest import chat
from tests.net.test_upstream_faults import status_of

OK = json_answer(b"{}")
BIG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 120000\r\n\r\n"


def kept(request):
    """The same request on a connection that stays open."""
    return request.replace(b"Connection: close\r\n", b"")


@asynccontextmanager
async def slow_client(gate):
    """A client with almost no receive buffer, and a proxy with almost no send buffer towards it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        await loop.sock_connect(client, gate.address)
        await gate.until(lambda: len(gate.proxy._server.connections) == 1)
        (connection,) = gate.proxy._server.connections
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        yield client


def open_connections(gate):
    """Client connections that the proxy has open."""
    return len(gate.proxy._server.connections)


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/messages", b"/nowhere", b"/healthz"])
async def test_an_answer_to_head_has_no_body(rig, path):
    """A body here would be read as the beginning of the next answer on the connection."""
    async with rig(answering(OK)) as gate:
        second = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await gate.raw(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % path + second)
        first, _, rest = answer.partition(b"\r\n\r\n")

        assert first.startswith(b"HTTP/1.1 4")
        assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_body_right_behind_its_head_starts_no_deadline_for_the_next_request(rig):
    """Most clients write head and body apart; an idle connection must not get a 408 that nobody asked for."""
    async with rig(answering(OK), timeouts={"headers_s": 0.2}) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        await gate.until(lambda: open_connections(gate) == 1)
        await asyncio.sleep(0.01)
        (connection,) = gate.proxy._server.connections
        head, _, body = kept(chat()).partition(b"\r\n\r\n")
        connection.data_received(head + b"\r\n\r\n")
        await asyncio.sleep(0)  # the body comes before the request's handler has begun
        connection.data_received(body)
        assert status_of(await reader.readuntil(b"\r\n\r\n{}")) == 200

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                pytest.fail(f"the idle connection was told {await reader.read(100)!r}")
        writer.close()


async def test_the_rest_of_a_refused_body_starts_no_deadline_either(rig):
    """What is still read and thrown away after an early refusal is no second request."""
    async with rig(answering(OK), timeouts={"headers_s": 0.2}) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n")
        await reader.readuntil(b"refused_not_found")
        for _ in range(4):
            writer.write(b"x" * 100_000)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        writer.write(chat())
        rest = await reader.read()
        writer.close()

        assert (1, 0) == (rest.count(b"HTTP/1.1 200 "), rest.count(b"HTTP/1.1 408 "))


@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["in one go", "late"])
async def test_a_broken_body_leaves_no_traceback(rig, pause_s):
    """Section 2's common rule: one line a request, whatever the client sends."""
    async with rig(answering(OK)) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        if pause_s:
            await asyncio.sleep(pause_s)
        writer.write(b"zz\r\n")
        assert status_of(await reader.read()) == 400
        writer.close()
        await gate.until(lambda: open_connections(gate) == 0)

    assert 1 == gate.log.getvalue().count("request.finished")
    assert "trace" not in gate.log.getvalue()


@pytest.mark.parametrize("connection", [b"Connection: close\r\n", b""], ids=["close", "keep-alive"])
async def test_a_client_that_does_not_read_the_end_is_cut_off_too(rig, connection):
    """Row 67: an answer that is complete for us but lies in our buffer does not hold its connection for ever."""
    timeouts = {"write_stall_s": 0.3, "keepalive_s": 0.5}
    async with rig(answering(json_answer(b"x" * 60_000)), timeouts=timeouts) as gate, slow_client(gate) as client:
        request = chat(b"{}").replace(b"Connection: close\r\n", connection)
        await asyncio.get_running_loop().sock_sendall(client, request)
        await gate.until(lambda: sum(gate.outcomes().values()) == 1)

        await gate.until(lambda: open_connections(gate) == 0, timeout_s=2)


async def test_a_slow_clients_full_buffer_does_not_stop_the_next_answer(rig):
    """The backend's connection was held back for a client; once given back it must be read again."""
    asked = 0

    async def script(_request, connection):
        nonlocal asked
        asked += 1
        if asked > 1:
            await connection.send(OK)
            return
        await connection.send(BIG_HEAD + b"x" * 30_000)
        await asyncio.sleep(0.05)
        connection._writer.write(b"x" * 90_000)  # the last read fills the client's buffer

    async with rig(script) as gate, slow_client(gate) as client:
        await asyncio.get_running_loop().sock_sendall(client, kept(chat(b"{}")))
        await gate.until(lambda: sum(gate.outcomes().values()) == 1)

        assert status_of(await gate.raw(chat(b"{}"), timeout_s=2)) == 200


async def test_an_unread_body_is_never_the_next_request(rig):
    """Row 19: after an early refusal the rest of its body is thrown away, not answered."""
    async with rig(answering(OK), auth={"keys": ["k"]}) as gate:
        smuggled = chat(extra=b"Authorization: Bearer k\r\n")
        request = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(request)
        await reader.readuntil(b"authentication_error")
        writer.write(smuggled)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rest = await reader.read()
        writer.close()

        assert (1, b"ok\n") == (rest.count(b"HTTP/1.1 "), rest[-3:])
        assert [] == gate.backend.seen


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
async def test_an_upgrade_is_ignored(rig, upgrade):
    """Row 36: a plain answer to the whole request, and nothing of the upgrade at the backend."""
    async with rig(answering(OK)) as gate:
        request = chat(extra=b"Upgrade: %b\r\nHTTP2-Settings: AAMA\r\n" % upgrade)
        answer = await gate.raw(request.replace(b"Connection: close", b"Connection: Upgrade, HTTP2-Settings, close"))

        assert status_of(answer) == 200
        (seen,) = gate.backend.seen
        assert (b'{"model":"m","stream":true}', None) == (seen.body, seen.header("upgrade"))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST //evil/v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n" + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
        b"POST /v1/messages HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n{}",
        b"POST /v1/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_what_is_no_request_for_us_is_refused_at_once(rig, request_bytes):
    """Sections 2.1 and 2.2: tunnels, other protocols and doubled framing reach no backend and hang nobody."""
    async with rig(answering(OK)) as gate:
        answer = await gate.refusal(request_bytes, timeout_s=2)

        assert 400 <= status_of(answer) < 600
        assert [] == gate.backend.seen
        assert 1 == sum(gate.outcomes().values())


async def test_every_byte_of_a_request_may_come_alone(rig):
    """Row 20: cut anywhere, it is the same request."""
    async with rig(answering(OK)) as gate:
        request = chat(b'{"model":"m"}')
        for at in range(1, len(request), 7):
            reader, writer = await asyncio.open_connection(*gate.address)
            writer.write(request[:at])
            await asyncio.sleep(0)
            writer.write(request[at:])
            async with asyncio.timeout(5):
                assert status_of(await reader.read()) == 200
            writer.close()

        assert {b'{"model":"m"}'} == {seen.body for seen in gate.backend.seen}


async def test_a_fault_of_ours_is_an_answer_and_one_record(rig, monkeypatch):
    """A 500 in the dialect, the connection closed, the trace in the log, nothing leaked."""
    async with rig(answering(OK)) as gate:

        async def fail(*_args):
            raise ZeroDivisionError

        monkeypatch.setattr(gate.proxy._server._dispatcher, "serve", fail)
        answer = await gate.raw(kept(chat(path=b"/v1/messages")))

        assert status_of(answer) == 500
        assert b'"type":"api_error"' in answer
        assert {"internal_error": 1} == gate.outcomes()
        assert 0 == gate.metric("tidegate_buffered_body_bytes")
    assert "ZeroDivisionError" in gate.log.getvalue()
