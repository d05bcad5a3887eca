"""Admission before two engines that go, come and refuse, over real sockets."""

import io
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from proxy.app import running
from proxy.config import TidegateConfig
from proxy.telemetry.logs import configure
from tests.fakes.backend import answering, json_answer, scripted_backend
from tests.net.conftest import Rig
from tests.net.test_admission import OK, Client, Engine, asking, header, page, started, waiting
from tests.net.test_upstream_faults import error_of, status_of

PROBES = {"interval_s": 0.1, "timeout_s": 1.0}


@asynccontextmanager
async def fleet_of(*scripts, are_up=True, **sections):
    """A proxy that admits, before one engine a script; the last one may be down at first."""
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(scripted_backend(script, metrics_page=page())) for script in scripts
        ]
        backends[-1].health_status = 200 if are_up else 503
        listed = [{"url": backend.url, "name": f"b{at}"} for at, backend in enumerate(backends)]
        config = TidegateConfig.model_validate(
            {"listen": {"port": 0}, "backends": listed, "health": PROBES, **sections}
        )
        stream = io.StringIO()
        log = configure("json", "debug", stream)
        stack.callback(log.close)
        yield Rig(await stack.enter_async_context(running(config, log)), backends, stream)


@pytest.mark.parametrize(
    ("path", "kind"), [(b"/v1/chat/completions", "server_error"), (b"/v1/messages", "overloaded_error")]
)
async def test_with_every_engine_down_who_waits_is_told_soon(path, kind):
    """503 in the client's dialect within a few probes, not after the whole hold."""
    engine = Engine()
    async with fleet_of(engine, engine) as gate:
        await started(gate, engine, "a1", "a2", "b1", "b2")
        late = Client(gate, asking("late", path=path))
        await gate.until(lambda: waiting(gate) == 1)

        for backend in gate.backends:
            backend.health_status = 503
        answer = await late.answer

        assert status_of(answer) == 503
        assert kind in error_of(answer)["type"]
        assert header(answer, b"retry-after") in {b"1", b"2", b"3"}
        await gate.until(lambda: gate.outcomes().get("refused_no_backend") == 1)
        assert waiting(gate) == 0


async def test_an_engine_that_comes_up_takes_who_waits():
    """It was down when the request came."""
    engine, other = Engine(), Engine()
    async with fleet_of(engine, other, are_up=False) as gate:
        await started(gate, engine, "one", "two")
        late = Client(gate, asking("late"))
        await gate.until(lambda: waiting(gate) == 1)

        gate.backends[1].health_status = 200
        await gate.until(lambda: "late" in other.begun)

        other.end("late")
        answer = await late.answer
        assert (status_of(answer), header(answer, b"x-tidegate-backend")) == (200, b"b1")


FULL = json_answer(b'{"error":{"message":"queue full","type":"ServiceUnavailable"}}', 503)
BUSY = json_answer(b'{"error":{"message":"slow down","type":"rate_limit"}}', 429, b"retry-after: 7\r\n")


@pytest.mark.parametrize("full", [FULL, BUSY])
@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_an_engine_without_room_is_left_for_another_one(full, mode):
    """Nothing of its answer reaches the client; the retry is counted."""
    async with fleet_of(answering(full), answering(full), admission={"mode": mode}) as gate:
        scripts = [answering(full), answering(OK)]

        async def script(request, connection):
            await scripts.pop(0)(request, connection)

        for backend in gate.backends:
            backend.script = script
        answer = await gate.raw(asking("one", stream=False))

        assert status_of(answer) == 200
        assert [len(backend.seen) for backend in gate.backends] == [1, 1]
        assert gate.metric("tidegate_retries_total", reason="overloaded") == 1
        assert gate.outcomes() == {"completed": 1}
        await gate.until(lambda: gate.inflight() == 0)


@pytest.mark.parametrize(("full", "status", "retry_after"), [(FULL, 503, b"123"), (BUSY, 429, b"7")])
async def test_when_all_engines_are_full_the_second_ones_word_is_passed_on(full, status, retry_after):
    """Byte for byte, with a time to come back; nobody is asked twice, and nothing stays booked."""
    async with fleet_of(answering(full), answering(full), answering(full)) as gate:
        answer = await gate.raw(asking("one"))

        assert status_of(answer) == status
        assert (header(answer, b"retry-after") or b"none") in retry_after
        assert answer.partition(b"\r\n\r\n")[2] == full.partition(b"\r\n\r\n")[2]
        assert sum(len(backend.seen) for backend in gate.backends) == 2
        assert gate.metric("tidegate_retries_total", reason="overloaded") == 1
        await gate.until(lambda: gate.inflight() == 0)


async def test_an_engine_that_is_full_gets_the_next_ones_after_its_report():
    """The one that was refused is told; the next one waits for a moment instead of being refused too."""
    async with fleet_of(answering(FULL)) as gate:
        assert status_of(await gate.raw(asking("one", 5))) == 503
        gate.backend.script = answering(OK)

        answer = await gate.raw(asking("two", 5, stream=False))

        assert status_of(answer) == 200
        assert 10 < int(header(answer, b"x-tidegate-queue-ms") or -1) < 3_000
