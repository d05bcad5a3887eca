"""The command line: reads options, loads the configuration, starts what was asked for. Decides nothing else."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from proxy import __version__
from proxy.app import RunningProxy, running
from proxy.bench.command import replay
from proxy.config import ConfigError, TidegateConfig, load, render
from proxy.sim.presets import PRESETS
from proxy.sim.running import start_engine
from proxy.sim.simulate_command import simulate
from proxy.telemetry.logs import EventLog, configure

try:
    import uvloop
except ImportError:  # no wheel for this system: the standard loop serves, at some cost per request
    _new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_loop = uvloop.new_event_loop

_CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_FOUND_WRONG: Final = 1
_USED_WRONG: Final = 2
_DEMO_MODEL: Final = "tidegate-demo"
_CONFIG_VARIABLE: Final = "TIDEGATE_CONFIG"
"""Where the configuration file is; every other TIDEGATE_ variable is a setting."""

_listen_options: Final = (
    click.option("--host", help="Address to listen on. [default: 127.0.0.1]"),
    click.option(
        "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one. [default: 8900]"
    ),
    click.option(
        "--log-format", type=click.Choice(["auto", "json", "console"]), help="auto: readable on a terminal, else JSON."
    ),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]"),
)
_config_option: Final = click.option(
    "-c",
    "--config",
    "config_path",
    envvar=_CONFIG_VARIABLE,
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file (YAML). config/tidegate.yaml in the repository shows every key.",
)
_backend_option: Final = click.option(
    "-b",
    "--backend",
    "backends",
    multiple=True,
    metavar="URL",
    help="An engine, e.g. http://127.0.0.1:8000; repeat it.",
)


def _with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="tidegate")
def main() -> None:
    """A load-balancing proxy for vLLM.

    It stands in front of one engine or many, speaks the OpenAI and the Anthropic API, and passes requests on
    unchanged. `tidegate demo` shows it without an engine; `tidegate serve --backend URL` puts it in front of yours.
    """


main.add_command(replay)
main.add_command(simulate)


@main.command()
@_with_options(_backend_option, _config_option, *_listen_options)
def serve(backends: tuple[str, ...], config_path: Path | None, **listen: Any) -> None:
    """Stand in front of engines until told to stop.

    Settings come from the command line, then the environment (TIDEGATE_SECTION__KEY), then the file, then defaults.

    SIGTERM lets requests in flight end first; a second one, or Ctrl-C, stops at once.
    """
    config = _load(config_path, backends, listen, _USED_WRONG)
    if not config.backends:
        raise click.UsageError("no backend: give --backend URL, or list backends in a --config file.")
    _run(_serve(config))


@main.command()
@click.option("--engines", type=click.IntRange(1, 16), default=2, show_default=True, help="Simulated engines to start.")
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="card-32gb",
    show_default=True,
    help="Which machine to simulate.",
)
@click.option("--mtp", type=click.IntRange(0, 3), help="Speculative tokens a step. [default: the preset's]")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Simulated seconds a real second.",
)
@_with_options(*_listen_options)
def demo(engines: int, preset: str, mtp: int | None, speed: float, **listen: Any) -> None:
    """Try it without an engine: the proxy in front of simulated ones.

    The engines' text is filler; their queueing, caching and timing follow a real machine's.
    """
    config = _load(None, (), listen, _USED_WRONG)
    _run(_demo(config, engines=engines, preset=preset, mtp=mtp, speed=speed))


@main.command()
@_with_options(_backend_option, _config_option)
def check(backends: tuple[str, ...], config_path: Path | None) -> None:
    """Check a configuration and print it as it would be used, secrets hidden.

    Exit status 1 and every fault with its path when something is wrong.
    """
    click.echo(render(_load(config_path, backends, {}, _FOUND_WRONG)), nl=False)


def _load(path: Path | None, backends: tuple[str, ...], listen: dict[str, Any], exit_status: int) -> TidegateConfig:
    overrides: dict[str, Any] = {
        "backends": [{"url": url} for url in backends] or None,
        "listen.host": listen.get("host"),
        "listen.port": listen.get("port"),
        "telemetry.log_format": listen.get("log_format"),
        "telemetry.log_level": listen.get("log_level"),
    }
    environ = {name: value for name, value in os.environ.items() if name != _CONFIG_VARIABLE}
    try:
        return load(path, environ, overrides)
    except ConfigError as error:
        click.echo(f"tidegate: the configuration is wrong:\n{error}", err=True)
        sys.exit(exit_status)


def _settle_memory() -> None:
    """Take what was loaded at the start out of garbage collection, and collect less often: 6 % of a request's CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _run(program: Coroutine[Any, Any, None]) -> None:
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(program)
    except* OSError as group:
        for error in group.exceptions:
            click.echo(f"tidegate: {error}", err=True)
        sys.exit(_FOUND_WRONG)


@contextmanager
def _log(config: TidegateConfig) -> Iterator[EventLog]:
    log = configure(config.telemetry.log_format, config.telemetry.log_level, sys.stderr)
    try:
        yield log
    finally:
        log.close()


async def _serve(config: TidegateConfig) -> None:
    stop = _StopSignals()
    with _log(config) as log:
        async with running(config, log) as proxy:
            for backend in proxy.fleet.backends:
                state = "up" if proxy.fleet.health.is_up(backend.name) else "DOWN, will be used once it answers"
                click.echo(f"backend {backend.name}: {state}")
            click.echo(f"Tidegate {__version__} listens on {proxy.url}  (metrics: {proxy.admin_url}/metrics)")
            await stop.wait(proxy)


async def _demo(config: TidegateConfig, *, engines: int, preset: str, mtp: int | None, speed: float) -> None:
    stop = _StopSignals()
    with _log(config) as log:
        async with AsyncExitStack() as stack:
            backends = []
            for number in range(1, engines + 1):
                engine = await start_engine(
                    preset,
                    host="127.0.0.1",
                    port=0,
                    speed=speed,
                    model_names=[_DEMO_MODEL, "claude-sonnet-4-5"],
                    mtp=mtp,
                )
                stack.push_async_callback(engine.stop)
                backends.append({"url": engine.url, "name": f"engine-{number}"})
            config = TidegateConfig.model_validate({**config.model_dump(), "backends": backends})
            proxy = await stack.enter_async_context(running(config, log))
            click.echo(_demo_text(proxy, engines, preset, speed))
            await stop.wait(proxy)


def _demo_text(proxy: RunningProxy, engines: int, preset: str, speed: float) -> str:
    pace = "" if speed == 1 else f", {speed:g} times as fast as real"
    behind = "a simulated engine" if engines == 1 else f"{engines} simulated engines"
    messages = '[{"role": "user", "content": "Hello"}]'
    return f"""
Tidegate {__version__} on {proxy.url}, in front of {behind} ({preset}{pace}).
Their answers are filler text. Three things to try:

  1. A stream
     curl -N {proxy.url}/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{{"model": "{_DEMO_MODEL}", "stream": true, "messages": {messages}}}'

  2. Claude Code
     ANTHROPIC_BASE_URL={proxy.url} ANTHROPIC_AUTH_TOKEN=any ANTHROPIC_MODEL=claude-sonnet-4-5 claude

  3. A look inside
     {proxy.admin_url}/status   {proxy.admin_url}/metrics

Ctrl-C stops it.
"""


class _StopSignals:
    """SIGTERM asks for a drain; SIGINT, or another SIGTERM, for an end at once.

    Made before anything else, so that neither is lost while the proxy starts: the first process of a container has no
    default action to fall back on.
    """

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.now.set)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self) -> None:
        (self.now if self.drain.is_set() else self.drain).set()

    async def wait(self, proxy: RunningProxy) -> None:
        """Serve until told to stop; drain first if that was asked for."""
        _settle_memory()
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(self.now.wait()), tasks.create_task(self._drain(proxy))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _drain(self, proxy: RunningProxy) -> None:
        await self.drain.wait()
        click.echo("Stopping: requests in flight may end first; another SIGTERM stops at once.", err=True)
        await proxy.drain()


if __name__ == "__main__":
    main()
