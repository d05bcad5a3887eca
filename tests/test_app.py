"""The composition root: what starts together, how it stops, and that both event loops carry it."""

import asyncio
import logging
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.fakes.backend import STREAM_HEAD, answering, json_answer
from tests.net import test_client_faults as faults
from tests.net.conftest import chat, rig_of
from tests.net.test_relaying import body_of
from tests.net.test_upstream_faults import status_of

try:
    import uvloop
except ImportError:
    LOOPS = {"asyncio": asyncio.new_event_loop}
else:
    LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

EVENTS = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number for number in range(5)]
DONE = b"data: [DONE]\n\n"
OK = json_answer(b"{}")


class HeldStream:
    """A script that sends two events, then waits for the test, then sends the rest."""

    def __init__(self):
        self.release = asyncio.Event()

    async def __call__(self, _request, connection):
        """Answer one request."""
        await connection.send(STREAM_HEAD)
        for event in EVENTS[:2]:
            await connection.chunk(event)
        await self.release.wait()
        for event in [*EVENTS[2:], DONE]:
            await connection.chunk(event)
        await connection.send(b"0\r\n\r\n")


async def get(url, path):
    """A GET on a new connection; the whole answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


async def is_refused(url):
    """Whether a new connection is refused."""
    parts = urlsplit(url)
    try:
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except ConnectionError:  # refused, or reset when it waited to be accepted at the moment of closing
        return True
    writer.close()
    return False


@asynccontextmanager
async def streaming_client(gate):
    """A client that has read the first two events."""
    reader, writer = await asyncio.open_connection(*gate.address)
    writer.write(chat())
    try:
        async with asyncio.timeout(5):
            start = await reader.readuntil(EVENTS[1] + b"\r\n")
        yield start, reader
    finally:
        writer.close()


@asynccontextmanager
async def draining(gate):
    """A drain that goes on while the block runs, and must have ended soon after it."""
    drain = asyncio.get_running_loop().create_task(gate.proxy.drain())
    await asyncio.sleep(0)
    try:
        yield drain
        async with asyncio.timeout(5):
            await drain
    finally:
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)


async def test_a_stream_in_flight_completes_while_the_proxy_drains():
    """Row 102: byte for byte, while readiness says no; new connections are taken for the delay, then refused."""
    script = HeldStream()
    timeouts = {"drain_delay_s": 0.3, "drain_s": 30.0}
    async with (
        rig_of(script, admin={"listen": {"port": 0}}, timeouts=timeouts) as gate,
        streaming_client(gate) as (start, reader),
        draining(gate),
    ):
        assert status_of(await get(gate.proxy.admin_url, "/readyz")) == 503
        assert status_of(await get(gate.proxy.admin_url, "/healthz")) == 200
        during = await get(gate.proxy.url, "/v1/models")
        assert status_of(during) == 200

        async with asyncio.timeout(5):
            while not await is_refused(gate.proxy.url):  # noqa: ASYNC110 - the listener is the proxy's
                await asyncio.sleep(0.01)  # between two looks
        assert status_of(await get(gate.proxy.admin_url, "/readyz")) == 503
        script.release.set()
        rest = await reader.read()

        assert b"".join([*EVENTS, DONE]) == body_of(start + rest)
        await gate.until(lambda: gate.outcomes() == {"completed": 2})
        assert gate.inflight() == 0


async def test_readiness_says_no_on_the_data_port_too():
    """Row 102: without a listener of its own for admin, the delay is when load balancers hear it."""
    async with rig_of(answering(OK), timeouts={"drain_delay_s": 0.3, "drain_s": 1.0}) as gate:
        assert status_of(await get(gate.proxy.url, "/readyz")) == 200
        async with draining(gate):
            assert status_of(await get(gate.proxy.url, "/readyz")) == 503


async def test_answers_during_the_drain_close_their_connections():
    """Section 1.4: nobody keeps a connection to a proxy that is about to go."""
    async with rig_of(answering(OK), timeouts={"drain_delay_s": 0.3, "drain_s": 1.0}) as gate, draining(gate):
        answer = await gate.raw(chat(b"{}").replace(b"Connection: close\r\n", b""))

        assert status_of(answer) == 200
        assert b"Connection: close\r\n" in answer


async def test_an_answer_that_begins_during_the_drain_closes_its_connection_too():
    """Its request came before the order to stop; the client must still hear that the connection ends."""
    release = asyncio.Event()

    async def script(_request, connection):
        await release.wait()
        await connection.send(OK)

    async with rig_of(script, timeouts={"drain_delay_s": 0.2, "drain_s": 5.0}) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat(b"{}").replace(b"Connection: close\r\n", b""))
        await gate.until(lambda: len(gate.backend.seen) == 1)
        async with draining(gate):
            release.set()
            answer = await reader.read()
        writer.close()

        assert status_of(answer) == 200
        assert b"Connection: close\r\n" in answer


async def test_a_body_that_is_still_arriving_is_a_request_in_flight():
    """L38: a long conversation on a slow link is not lost because the listener closed meanwhile."""
    async with rig_of(answering(OK), timeouts={"drain_s": 5.0}) as gate:
        request = chat(b'{"model":"m"}')
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(request[:-5])
        await gate.until(lambda: gate.metric("tidegate_buffered_body_bytes") > 0)
        async with draining(gate):
            await asyncio.sleep(0.05)
            writer.write(request[-5:])
            async with asyncio.timeout(2):
                answer = await reader.read()
        writer.close()

        assert status_of(answer) == 200
        await gate.until(lambda: gate.outcomes() == {"completed": 1})


async def test_idle_connections_do_not_hold_up_the_drain():
    """Only requests are waited for."""
    async with rig_of(answering(OK), timeouts={"drain_s": 60.0}) as gate:
        reader, writer = await asyncio.open_connection(*gate.address)
        writer.write(chat(b"{}").replace(b"Connection: close\r\n", b""))
        await reader.readuntil(b"\r\n\r\n{}")

        async with asyncio.timeout(2):
            await gate.proxy.drain()
            assert await reader.read() == b""
        writer.close()


async def test_a_stream_that_does_not_end_is_cut_off_when_the_time_is_over():
    """The grace period is drain_s and not twice that, and the client is told; Kubernetes kills whoever takes longer."""
    async with (
        rig_of(HeldStream(), timeouts={"drain_s": 1.0}) as gate,
        streaming_client(gate) as (_, reader),
    ):
        now = asyncio.get_running_loop().time
        began = now()
        async with draining(gate):
            rest = await reader.read()
            took_s = now() - began

        assert 0.9 < took_s < 1.7
        assert b"The proxy is stopping" in rest
        assert not rest.endswith(b"0\r\n\r\n")
        await gate.until(lambda: gate.outcomes() == {"aborted": 1})


async def test_leaving_without_a_drain_cuts_a_stream_visibly():
    """Row 103: at once, with an error event and no clean end, recorded as aborted, and the backend is told."""
    async with rig_of(HeldStream()) as outer:  # its backend outlives the proxy in front of it
        async with rig_of(urls=[outer.backend.url]) as gate:
            reader, writer = await asyncio.open_connection(*gate.address)
            writer.write(chat())
            await reader.readuntil(EVENTS[1] + b"\r\n")
        async with asyncio.timeout(2):
            rest = await reader.read()
        writer.close()

    assert b"The proxy is stopping" in rest
    assert not rest.endswith(b"0\r\n\r\n")
    assert {"aborted": 1} == gate.outcomes()
    assert gate.inflight() == 0


async def test_leaving_while_a_request_waits_for_its_backend_is_not_the_clients_doing():
    """The client was still there: the record must not say that it left."""
    silent = asyncio.Event()

    async def script(_request, connection):
        silent.set()
        await connection.until_closed()

    async with rig_of(script) as outer:
        async with rig_of(urls=[outer.backend.url]) as gate:
            _, writer = await asyncio.open_connection(*gate.address)
            writer.write(chat())
            await silent.wait()
        writer.close()

    assert {"aborted": 1} == gate.outcomes()


async def test_admin_paths_have_a_listener_of_their_own_when_it_is_configured():
    """Row 109: it serves nothing else, and clients on the data port find none of them."""
    async with rig_of(answering(OK), admin={"listen": {"port": 0}}) as gate:
        paths = ("/metrics", "/healthz", "/readyz", "/status", "/status.json")
        assert gate.proxy.admin_url != gate.proxy.url
        assert [200] * 5 == [status_of(await get(gate.proxy.admin_url, path)) for path in paths]
        assert [404] * 5 == [status_of(await get(gate.proxy.url, path)) for path in paths]
        assert status_of(await get(gate.proxy.admin_url, "/v1/models")) == 404


async def test_a_used_admin_port_leaves_nothing_running():
    """Start-up is all or nothing: the data port is free again, and no task or connection is left."""
    async with rig_of(answering(OK)) as gate:
        port = gate.address[1]
        await asyncio.sleep(0.05)  # everything that the first one starts is running
        tasks = len(asyncio.all_tasks())
        with pytest.raises(OSError, match="in use"):
            async with rig_of(urls=[gate.backend.url], admin={"listen": {"port": port}}):
                pass
        await gate.until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize(
    "story",
    [
        lambda: faults.test_a_client_that_leaves_is_seen_at_the_backend(
            rig_of, faults.silent_after_event, b'{"model":"m","stream":true}', "reset"
        ),
        lambda: faults.test_a_client_that_leaves_is_seen_at_the_backend(
            rig_of, faults.silent, b'{"model":"m"}', "close"
        ),
        lambda: faults.test_a_client_that_does_not_read_is_cut_off_and_costs_little_memory(rig_of),
        lambda: faults.test_a_slow_reader_gets_everything(rig_of),
        lambda: faults.test_pipelined_requests_are_answered_in_order(rig_of),
    ],
    ids=["reset mid-stream", "close before the head", "reads nothing", "reads slowly", "pipelines"],
)
def test_both_loops_carry_it_and_nothing_goes_unhandled(new_loop, story, caplog):
    """L75: the same stories end the same way on either loop, without a warning in any log."""
    unhandled = []
    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        runner.run(story())

    assert [] == unhandled
    assert [] == [record.getMessage() for record in caplog.records]
