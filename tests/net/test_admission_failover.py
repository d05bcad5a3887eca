"""Admission before two engines that go, come and refuse, over real sockets."""

import io
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from proxy.app import running
from proxy.config import TidegateConfig
from proxy.telemetry.logs import configure
from tests.fakes.backend import scripted_backend
from tests.net.conftest import Rig
from tests.net.test_admission import Client, Engine, asking, header, page, started, waiting
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
        assert header(answer, b"retry-after") == b"2"
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
