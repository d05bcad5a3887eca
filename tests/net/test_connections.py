import asyncio
import errno
import socket

import pytest

from proxy.core.backends import Backend
from proxy.core.errors import Retry, UpstreamError
from proxy.core.outcomes import Outcome
from proxy.net.connections import ConnectionPool
from proxy.net.upstream import UpstreamTimeouts
from tests.fakes.clock import FakeClock

TIMEOUTS = UpstreamTimeouts(connect_s=5.0, first_byte_s=60.0, idle_s=10.0, keepalive_s=4.0, max_age_s=20.0)


class Listener:
    """A listening socket that keeps what connects to it."""

    def __init__(self):
        self.writers = []
        self.lost = 0
        self.port = 0

    async def accept(self, reader, writer):
        """Keep a connection until the other side closes it."""
        self.writers.append(writer)
        await reader.read()
        self.lost += 1
        writer.close()


@pytest.fixture
async def listener():
    """Something to connect to."""
    made = Listener()
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    for writer in made.writers:
        writer.transport.abort()


@pytest.fixture
def clock():
    """Time that the test moves."""
    return FakeClock()


def pool_of(port, clock, **timeouts):
    """A pool in front of a port of this host."""
    backend = Backend(name="a", host="127.0.0.1", port=port, authority="a")
    values = {name: getattr(TIMEOUTS, name) for name in TIMEOUTS.__slots__}
    return ConnectionPool(backend, UpstreamTimeouts(**{**values, **timeouts}), clock)


async def until(holds):
    """Wait until a condition holds."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.002)


async def test_the_connection_given_back_last_is_the_one_that_serves_next(listener, clock):
    """The freshest idle connection is the least likely to be closed at the other end."""
    pool = pool_of(listener.port, clock)
    first, second = await pool.acquire(), await pool.acquire()
    pool.release(first)
    pool.release(second)

    assert await pool.acquire() is second
    assert await pool.acquire() is first
    assert await pool.acquire() not in {first, second}
    pool.close()


@pytest.mark.parametrize(("idle_s", "is_kept"), [(3.9, True), (4.0, False)])
async def test_a_connection_that_idled_too_long_is_not_trusted(listener, clock, idle_s, is_kept):
    """Below uvicorn's five seconds it is reused, above our own limit it is closed and replaced."""
    pool = pool_of(listener.port, clock)
    kept = await pool.acquire()
    pool.release(kept)
    clock.advance(idle_s)

    assert is_kept == (await pool.acquire() is kept)
    if not is_kept:
        await until(lambda: listener.lost == 1)


async def test_an_old_connection_is_replaced_even_if_it_never_idled(listener, clock):
    """Row 101: a changed address is noticed within the age limit."""
    pool = pool_of(listener.port, clock)
    kept = await pool.acquire()
    for _ in range(6):
        pool.release(kept)
        clock.advance(3.0)
        assert await pool.acquire() is kept
    pool.release(kept)
    clock.advance(3.0)

    assert await pool.acquire() is not kept


async def test_expired_connections_are_closed_without_being_asked_for(listener, clock):
    """An idle proxy holds no descriptors."""
    pool = pool_of(listener.port, clock)
    old, young = await pool.acquire(), await pool.acquire()
    pool.release(old)
    clock.advance(3.0)
    pool.release(young)
    clock.advance(2.0)

    pool.close_expired(clock())

    await until(lambda: listener.lost == 1)
    assert await pool.acquire() is young
    pool.release(young)
    pool.close()
    await until(lambda: listener.lost == 2)


async def test_a_connection_that_the_backend_closed_is_not_handed_out(listener, clock):
    """What is known to be closed is replaced before anything is sent on it."""
    pool = pool_of(listener.port, clock)
    closed = await pool.acquire()
    pool.release(closed)
    await until(lambda: len(listener.writers) == 1)
    listener.writers[0].close()
    await until(lambda: not closed.is_reusable)

    assert await pool.acquire() is not closed


async def test_a_fresh_connection_leaves_the_idle_ones_alone(listener, clock):
    """After a stale one the next is new, whatever lies there."""
    pool = pool_of(listener.port, clock)
    idle = await pool.acquire()
    pool.release(idle)

    assert await pool.acquire(fresh=True) is not idle
    assert await pool.acquire() is idle


async def test_a_connection_in_the_middle_of_an_answer_is_closed_when_given_back(listener, clock):
    """L66: whoever leaves early takes the backend's work with it."""
    pool = pool_of(listener.port, clock)
    busy = await pool.acquire()

    class Sink:
        """Hears nothing."""

        def on_received(self, head, body, has_ended, now):
            """Nothing comes."""

        def on_failed(self, error):
            """Nothing fails."""

    busy.send(b"POST / HTTP/1.1\r\n\r\n", b"", Sink())
    pool.release(busy)

    await until(lambda: listener.lost == 1)
    assert await pool.acquire() is not busy


async def test_a_port_where_nobody_listens_is_a_refusal_that_may_be_repeated_elsewhere(clock):
    """Row 71: nothing was sent, and nobody is there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        pool = pool_of(taken.getsockname()[1], clock)
        with pytest.raises(UpstreamError) as failed:
            await pool.acquire()

    error = failed.value
    assert (Outcome.UPSTREAM_ERROR_CONNECT, Retry.ELSEWHERE, True) == (error.outcome, error.retry, error.is_refused)


async def test_no_connection_in_time_may_be_repeated_elsewhere_and_proves_nothing(clock, monkeypatch):
    """Row 72: a full backlog is slowness, not absence."""

    async def never(*_args, **_kwargs):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    pool = pool_of(9, clock, connect_s=0.01)
    with pytest.raises(UpstreamError) as failed:
        await pool.acquire()

    error = failed.value
    assert (Outcome.UPSTREAM_ERROR_CONNECT, Retry.ELSEWHERE, False) == (error.outcome, error.retry, error.is_refused)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
async def test_our_own_lack_of_descriptors_or_ports_is_no_proof_against_a_backend(clock, monkeypatch, number):
    """Row 61: a proxy at its limits must not put every healthy backend out."""

    async def exhausted(*_args, **_kwargs):
        raise OSError(number, "exhausted")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", exhausted)
    with pytest.raises(UpstreamError) as failed:
        await pool_of(9, clock).acquire()

    assert not failed.value.is_refused


async def test_a_request_cancelled_while_it_connects_leaves_nothing_open(listener, clock):
    """L66: a client that leaves in this phase costs no connection."""
    pool = pool_of(listener.port, clock)
    task = asyncio.get_running_loop().create_task(pool.acquire())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until(lambda: len(listener.writers) == listener.lost)
    assert await pool.acquire() is not None
