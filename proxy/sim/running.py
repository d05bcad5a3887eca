"""Starts and stops a whole simulated engine: model, real-time driver and HTTP server in this process.

Called by `tidegate demo`, by tests and by `python -m proxy.sim serve`. Whoever starts one must stop it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from aiohttp import web

from proxy.sim.driver import Driver
from proxy.sim.engine import Engine
from proxy.sim.http_face import Face, build_app
from proxy.sim.presets import EngineConfig, preset


class RunningEngine:
    """A simulated engine that is being served.

    Attributes:
        url: where, without a trailing slash.
        engines: the models behind it, by rank, to look at; `engine` is the first.
        adapters: names of its LoRA adapters; what is added or taken away is loaded or unloaded.
        failure: the error that stopped the driver, or None.
    """

    def __init__(self, url: str, drivers: Sequence[Driver], runner: web.AppRunner, adapters: list[str]) -> None:
        self.url = url
        self.engines = [driver.engine for driver in drivers]
        self.engine = self.engines[0]
        self.adapters = adapters
        self.failure: BaseException | None = None
        self._runner = runner
        loop = asyncio.get_running_loop()
        self._playing = [loop.create_task(driver.run(), name=f"simulated engine {url}") for driver in drivers]
        for playing in self._playing:
            playing.add_done_callback(self._note_failure)

    async def stop(self) -> None:
        """Close the server, cut what is in flight and end the driver. Safe to call twice."""
        await self._runner.cleanup()
        for playing in self._playing:
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _note_failure(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self.failure = task.exception() or self.failure


async def start_engine(
    preset_name: str | EngineConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    speed: float = 1.0,
    model_names: Sequence[str],
    adapters: Sequence[str] = (),
    data_parallel: int = 1,
    mtp: int | None = None,
    name: str | None = None,
    seed: int = 0,
) -> RunningEngine:
    """Serve a simulated engine on `host` and `port` (0 picks a free one).

    Args:
        preset_name: a name out of `presets.PRESETS`, or a configuration of one's own.
        host: address to listen on.
        port: TCP port.
        speed: virtual seconds per real second.
        model_names: served model names, the engine's own first.
        adapters: LoRA adapters that are loaded from the start.
        data_parallel: engines behind the address, each as large as the preset.
        mtp: MTP depth; None keeps the preset's. Must be None with a configuration of one's own.
        name: shown as the model's root in `/v1/models`; None means the preset's name.
        seed: see `Engine`.

    Raises:
        ValueError: no such preset, no model name, or a speed that is not above 0.
        OSError: the port cannot be had.
    """
    if not model_names:
        raise ValueError("an engine serves at least one model name")
    config = preset_name if isinstance(preset_name, EngineConfig) else preset(preset_name, mtp=mtp)
    drivers = [Driver(Engine(config, seed=seed + rank), speed=speed) for rank in range(data_parallel)]
    loaded = list(adapters)
    face = Face(drivers, tuple(model_names), name or config.name, _unix_now, _unix_now(), loaded)
    runner = web.AppRunner(build_app(face), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    bound_port: int = runner.addresses[0][1]
    shown_host = f"[{host}]" if ":" in host else host
    return RunningEngine(f"http://{shown_host}:{bound_port}", drivers, runner, loaded)


def _unix_now() -> float:
    return datetime.now(UTC).timestamp()
