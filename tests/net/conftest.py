"""Proxies in front of scripted backends, over real sockets, on the standard loop and on uvloop."""

import asyncio
import io
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from proxy.app import RunningProxy, running
from proxy.config import TidegateConfig
from proxy.telemetry.logs import configure
from tests.fakes.backend import ScriptedBackend, scripted_backend


@dataclass
class Rig:
    """A proxy, the backends behind it, and what it logged."""

    proxy: RunningProxy
    backends: list[ScriptedBackend]
    log: io.StringIO
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def backend(self) -> ScriptedBackend:
        """The only backend."""
        (backend,) = self.backends
        return backend

    @property
    def address(self) -> tuple[str, int]:
        """Where the proxy listens."""
        parts = urlsplit(self.proxy.url)
        return parts.hostname or "", parts.port or 0

    async def raw(self, request: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Send bytes, read until the proxy closes."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(request)
            async with asyncio.timeout(timeout_s):
                return await reader.read()
        finally:
            writer.close()

    async def refusal(self, request: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Send bytes, read one answer with a length; the proxy may wait for the rest of the request meanwhile."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(request)
            async with asyncio.timeout(timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
                return head + await reader.readexactly(length)
        finally:
            writer.close()

    async def until(self, what, *, timeout_s: float = 5.0) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(timeout_s):
            while not what():  # noqa: ASYNC110 - the condition is somebody else's state
                await asyncio.sleep(0.005)

    def inflight(self) -> int:
        """Requests that the proxy counts as in flight."""
        return self.proxy.fleet.ledger.total_inflight

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value, 0 when there is none."""
        return self.proxy.metrics.registry.get_sample_value(name, labels) or 0.0

    def outcomes(self) -> dict[str, float]:
        """Finished requests per outcome."""
        found: dict[str, float] = {}
        for family in self.proxy.metrics.registry.collect():
            if family.name == "tidegate_requests":
                for sample in family.samples:
                    outcome = sample.labels["outcome"]
                    found[outcome] = found.get(outcome, 0) + sample.value
        return found


@asynccontextmanager
async def rig_of(*scripts, urls=(), **sections):
    """A rig with one backend a script; `sections` are configuration sections."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted_backend(script)) for script in scripts]
        listed = [{"url": url, "name": f"b{at}"} for at, url in enumerate([*(b.url for b in backends), *urls])]
        config = TidegateConfig.model_validate({"listen": {"port": 0}, "backends": listed, **sections})
        stream = io.StringIO()
        log = configure("json", "debug", stream)
        stack.callback(log.close)
        proxy = await stack.enter_async_context(running(config, log))
        yield Rig(proxy, backends, stream)


@pytest.fixture
def rig():
    """The way to a rig, to be entered with `async with`."""
    return rig_of


def chat(
    body: bytes = b'{"model":"m","stream":true}', *, extra: bytes = b"", path: bytes = b"/v1/chat/completions"
) -> bytes:
    """A request as bytes, on a connection that closes afterwards."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n" % path
    return head + b"%bContent-Length: %d\r\n\r\n%b" % (extra, len(body), body)
