"""Whatever becomes of a request, nothing of it stays booked: no ledger, no session, no queue, no body counts it on."""

import asyncio
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from tests.fakes.backend import STREAM_HEAD, answering, json_answer
from tests.net.conftest import chat
from tests.net.test_admission import FIRST, LAST, OK, Client, Engine, admitting, asking, header, started, waiting
from tests.net.test_client_faults import silent, silent_after_event, silent_after_head
from tests.net.test_upstream_faults import closing, resetting, status_of


def left(gate):
    """Everything that is counted and not exactly zero, by what counts it."""
    room = gate.proxy.waiting_room
    queue, lessons = room.gate.queue, room.gate.lessons
    counted = {
        "in flight": gate.proxy.fleet.ledger.total_inflight,
        "body bytes": gate.metric("tidegate_buffered_body_bytes"),
        "queue": len(queue),
        "queued bytes": queue.body_bytes,
        "queued keys": queue.keys,
        "running keys": lessons._running,
        "seats": room._seats,
    }
    for name, it in room.gate.rooms.items():
        counted |= {
            f"{name} turns": it.inflight,
            f"{name} control": it.control_blocks,
            f"{name} holds": it.ledger.holds,
            f"{name} pinned": it.ledger.pinned_blocks,
            f"{name} uncached": it.ledger.uncached_tokens,
            f"{name} running heads": it.ledger.pinned_head_blocks(),
        }
    for key, it in room.gate.sessions._sessions.items():
        counted |= {
            f"{key.session} in flight": it.inflight,
            f"{key.session} asides": it.asides,
            f"{key.session} waiting": it.waiting + it.waiting_as_resident,
        }
    return {name: count for name, count in counted.items() if count}


async def nothing_is_left(gate, *, within_s=2.0):
    """Soon nothing is counted any more."""
    with suppress(TimeoutError):
        await gate.until(lambda: not left(gate), timeout_s=within_s)
    assert left(gate) == {}


def script_of(*pieces, then=None):
    """A script that sends these bytes and then does something."""

    async def script(request, connection):
        for piece in pieces:
            await connection.send(piece)
        if then is not None:
            await then(request, connection)

    return script


def chunk(data):
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


HALF_AN_ERROR = b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
BEGUN = (STREAM_HEAD, chunk(FIRST))
IN_STREAM_ERROR = chunk(b'data: {"error":{"message":"out of memory","code":500}}\n\n')

ANSWERS = {
    "a stream": (script_of(*BEGUN, chunk(LAST), b"0\r\n\r\n"), "completed"),
    "a whole answer": (answering(OK), "completed"),
    "a 400": (answering(json_answer(b'{"error":{"message":"too long"}}', 400)), "backend_rejected"),
    "a 500": (answering(json_answer(b'{"error":{"message":"oops"}}', 500)), "upstream_error_status"),
    "a 503 queue full": (answering(json_answer(b'{"error":{"message":"full"}}', 503)), "upstream_error_status"),
    "half a 500": (script_of(HALF_AN_ERROR, then=resetting), "upstream_error_reset"),
    "closed before the head": (closing, "upstream_error_reset"),
    "reset before the head": (resetting, "upstream_error_reset"),
    "not HTTP": (script_of(b"hello\r\n\r\n", then=closing), "upstream_error_protocol"),
    "reset after the head": (script_of(STREAM_HEAD, then=resetting), "upstream_error_reset"),
    "reset mid-stream": (script_of(*BEGUN, then=resetting), "upstream_error_reset"),
    "closed mid-stream": (script_of(*BEGUN, then=closing), "upstream_error_reset"),
    "a broken chunk": (script_of(*BEGUN, b"zz\r\n"), "upstream_error_protocol"),
    "an error in the stream": (script_of(*BEGUN, IN_STREAM_ERROR, b"0\r\n\r\n"), "upstream_error_stream"),
    "no last event": (script_of(*BEGUN, b"0\r\n\r\n"), "truncated"),
    "no first byte in time": (silent, "upstream_error_timeout"),
    "silence after the head": (silent_after_head, "upstream_error_timeout"),
    "silence mid-stream": (silent_after_event, "upstream_error_timeout"),
}


@pytest.mark.parametrize(("script", "outcome"), ANSWERS.values(), ids=ANSWERS)
async def test_after_every_ending_at_the_backend(script, outcome):
    """Success, the client's error, the engine's error in each phase, and silence in each phase."""
    async with admitting(script, timeouts={"first_byte_s": 0.2, "idle_s": 0.2}) as gate:
        for session in ("one", "two", "one"):
            await gate.raw(asking(session))

        assert gate.outcomes() == {outcome: 3}
        await nothing_is_left(gate)


PHASES = {
    "before the head": silent,
    "after the head": silent_after_head,
    "mid-stream": silent_after_event,
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
async def test_after_a_client_that_leaves_once_it_is_placed(phase, how):
    """Seen at once, in each phase."""
    async with admitting(phase) as gate:
        _, writer = await asyncio.open_connection(*gate.address)
        writer.write(asking("one"))
        await gate.until(lambda: len(gate.backend.seen) == 1)
        assert left(gate) != {}

        writer.close() if how == "close" else writer.transport.abort()

        await nothing_is_left(gate, within_s=1)
        assert gate.outcomes() == {"client_closed": 1}


async def test_after_a_client_that_leaves_while_it_sends_or_waits():
    """Half a body, then a place in the queue."""
    engine = Engine()
    async with admitting(engine) as gate:
        clients = await started(gate, engine, "one", "two")
        _, half = await asyncio.open_connection(*gate.address)
        half.write(asking("half")[:-100])
        _, whole = await asyncio.open_connection(*gate.address)
        whole.write(asking("whole"))
        await gate.until(lambda: waiting(gate) == 1 and gate.metric("tidegate_buffered_body_bytes") > 300_000)

        half.close()
        whole.close()
        for session in ("one", "two"):
            engine.end(session)
        await asyncio.gather(*(client.answer for client in clients))

        await nothing_is_left(gate)
        assert engine.begun == ["one", "two"]


async def test_after_a_client_that_stops_reading():
    """Cut off, and its room given back."""

    async def endless(_request, connection):
        await connection.send(STREAM_HEAD)
        while True:
            await connection.chunk(b"data: " + b"x" * 65_536 + b"\n\n")

    async with admitting(endless, timeouts={"write_stall_s": 0.2}) as gate:
        _, writer = await asyncio.open_connection(*gate.address, limit=1)
        writer.write(asking("one"))
        await gate.until(lambda: gate.outcomes() == {"client_stalled": 1}, timeout_s=20)

        await nothing_is_left(gate)
        writer.transport.abort()


async def test_after_what_the_proxy_refuses():
    """No request of ours, a body that is none, one that is too large, a full queue, a full hold, an older copy."""
    engine = Engine()
    settings = {"queue": {"max_hold_s": 0.3, "max_waiting": 2}, "limits": {"body_bytes": 1_000_000}}
    async with admitting(engine, **settings) as gate:
        clients = await started(gate, engine, "one", "two")
        held = [Client(gate, asking("held")), Client(gate, asking("held")), Client(gate, asking("other"))]
        await gate.until(lambda: waiting(gate) == 2)
        refused = [
            await gate.refusal(chat(b"{", path=b"/v1/messages")),
            await gate.refusal(chat(path=b"/pause")),
            await gate.refusal(asking("large", 400)),
            await gate.raw(asking("surplus")),
        ]
        answers = [await client.answer for client in held]
        for session in ("one", "two"):
            engine.end(session)
        await asyncio.gather(*(client.answer for client in clients))

        assert [status_of(answer) for answer in refused] == [400, 404, 413, 429]
        assert [status_of(answer) for answer in answers] == [429] * 3
        await nothing_is_left(gate)


async def test_after_an_engine_that_crashes_under_running_and_waiting_requests():
    """What ran breaks off, what waits is told, what comes is told at once."""
    engine = Engine()
    async with admitting(engine, health={"interval_s": 0.1, "timeout_s": 0.5}) as gate:
        running = await started(gate, engine, "one", "two")
        late = Client(gate, asking("late"))
        await gate.until(lambda: waiting(gate) == 1)

        await gate.backend.stop()
        await asyncio.gather(*(client.answer for client in running))

        assert status_of(await late.answer) == 503
        assert status_of(await gate.raw(asking("later"))) == 503
        await nothing_is_left(gate)


@asynccontextmanager
async def busy_proxy(**sections):
    """A proxy and its clients: one reads a stream, one has no answer yet, one waits for room."""
    engine = Engine()
    async with admitting(engine, **sections) as gate:
        clients = await started(gate, engine, "one", "silent")
        clients.append(Client(gate, asking("late")))
        await gate.until(lambda: waiting(gate) == 1)
        yield gate, clients


async def answers_at_the_end(clients):
    """What the clients of a proxy that has stopped were told: a broken stream, and two that may ask elsewhere."""
    stream, *others = await asyncio.gather(*(client.answer for client in clients))
    assert b"The proxy is stopping" in stream
    assert not stream.endswith(b"0\r\n\r\n")
    assert [(status_of(answer), header(answer, b"retry-after")) for answer in others] == [(503, b"1")] * 2


async def test_after_a_drain_whose_time_is_over():
    """Who runs, who has no answer yet and who waits is told; it is nobody's doing but ours."""
    async with busy_proxy(timeouts={"drain_s": 0.2}) as (gate, clients):
        await gate.proxy.drain()

        await nothing_is_left(gate)
        assert gate.outcomes() == {"aborted": 3}
        await answers_at_the_end(clients)


async def test_after_a_stop_without_a_drain():
    """The same at once."""
    async with busy_proxy() as (gate, clients):
        pass

    assert left(gate) == {}
    assert gate.outcomes() == {"aborted": 3}
    await answers_at_the_end(clients)


async def test_after_a_storm_of_everything():
    """A hundred requests of forty sessions, each answered in some way or left at some moment; then all is as new."""
    rng = Random(5)
    scripts = [script for script, _ in ANSWERS.values()]

    async def script(request, connection):
        await rng.choice(scripts)(request, connection)

    async def one(gate):
        request = asking(f"s{rng.randrange(40)}", rng.choice([1, 5, 30, 60]), stream=rng.random() < 0.8)
        patience_s = rng.choice([5.0, 5.0, 0.05, 0.01])
        await asyncio.sleep(rng.random())
        with suppress(TimeoutError, ConnectionError):
            await gate.raw(request, timeout_s=patience_s)

    settings = {"timeouts": {"first_byte_s": 0.1, "idle_s": 0.1}, "queue": {"max_hold_s": 0.5, "max_waiting": 20}}
    async with admitting(script, **settings) as gate:
        await asyncio.gather(*(one(gate) for _ in range(100)))

        await nothing_is_left(gate)
        assert sum(gate.outcomes().values()) == 100
        assert gate.outcomes().keys().isdisjoint({"internal_error", "aborted"})
        gate.backend.script = answering(OK)
        # An engine that has just said that it is full is believed until its next report, longer than a hold here.
        statuses = [429]
        async with asyncio.timeout(5):
            while statuses[-1] == 429:
                statuses.append(status_of(await gate.raw(asking("afterwards", 1, stream=False))))
        assert statuses[-1] == 200
