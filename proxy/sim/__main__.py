"""Command line of the simulated engine: serve one, or compare it with measurements.

Thin: everything it does is in `running` and `compare`.
"""

import asyncio
import signal
import sys
from typing import Any

import click

from proxy.sim.compare import compare_agents, compare_card, compare_h200, compare_queue_starts
from proxy.sim.presets import PRESETS
from proxy.sim.running import start_engine

TOLERANCE = 0.20
"""How far from a measured figure a simulated one is marked."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A simulated vLLM engine: its scheduler, KV blocks and prefix cache, without a GPU."""


@main.command()
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="card-32gb",
    show_default=True,
    help="Which machine to imitate: KV capacity, limits and speed.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="TCP port; 0 picks one.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Simulated seconds per real second. A process that cannot keep up runs slower instead.",
)
@click.option(
    "--model", "models", multiple=True, default=("tiny",), show_default=True, help="Served model name; may be repeated."
)
@click.option("--adapter", "adapters", multiple=True, help="Name of a LoRA adapter; may be repeated.")
@click.option(
    "--data-parallel",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Engines behind the one address, each as large as the preset.",
)
@click.option(
    "--mtp",
    type=click.IntRange(0, 3),
    default=None,
    help="Tokens drafted per step (multi-token prediction). More speed alone, fewer requests at once. "
    "Default: the preset's.",
)
def serve(*, host: str, port: int, models: tuple[str, ...], **engine: Any) -> None:
    """Serve one simulated engine over HTTP, as vLLM would.

    \b
    Example:
      python -m proxy.sim serve --preset card-32gb --port 8000 --model tiny
      curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}'
    """  # noqa: D301 - click's mark for a paragraph that must not be wrapped
    try:
        asyncio.run(_serve(host=host, port=port, models=models, **engine))
    except OSError as error:
        click.echo(f"cannot listen on {host}:{port}: {error.strerror}", err=True)
        sys.exit(1)


async def _serve(*, preset: str, host: str, port: int, models: tuple[str, ...], **engine_options: Any) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    engine = await start_engine(preset, host=host, port=port, model_names=models, **engine_options)
    async with engine:
        served = ", ".join([*models, *engine.adapters])
        click.echo(f"{PRESETS[preset].description}\nserving {served} at {engine.url}", err=True)
        await stopping.wait()


@main.command()
def compare() -> None:
    """Run the measured sweeps in simulated time and print how far off the simulation is.

    Ratio is simulated over measured; figures more than 20 % off carry a mark. Exit status 1 if a queue starts at a load
    other than the measured ones.
    """
    _print_sweeps()
    _print_agents()
    starts = list(compare_queue_starts())
    click.echo("\nWhere queueing starts on card-32gb")
    for start in starts:
        bracket = f"measured {start.fits_measured + 1} to {start.queues_measured}"
        verdict = "inside" if start.is_inside else "OUTSIDE"
        click.echo(f"  MTP {start.mtp}: {bracket}, simulated {start.queues_simulated}: {verdict}")
    if not all(start.is_inside for start in starts):
        sys.exit(1)


def _print_sweeps() -> None:
    click.echo(f"{'sweep':<18}{'parallel':>9}{'unit':>11}{'measured':>10}{'simulated':>11}{'ratio':>7}")
    for row in (*compare_card(), *compare_h200()):
        mark = " *" if abs(row.ratio - 1) > TOLERANCE else ""
        figures = f"{row.measured:>10.4g}{row.simulated:>11.4g}{row.ratio:>7.2f}"
        click.echo(f"{row.sweep:<18}{row.load:>9}{row.unit:>11}{figures}{mark}")


def _print_agents() -> None:
    click.echo("\nCoding agents on h200-8b, no proxy: measured and simulated")
    click.echo(f"{'agents':>8}{'tok/s':>14}{'TTFT p50 s':>18}{'own context cached':>22}")
    for measured, simulated in compare_agents():
        rates = f"{measured.output_tokens_per_s:>8.0f}{simulated.output_tokens_per_s:>6.0f}"
        first = f"{measured.first_token_p50_s:>12.2f}{simulated.first_token_p50_s:>6.2f}"
        hits = f"{measured.own_hit_ratio:>16.2f}{simulated.own_hit_ratio:>6.2f}"
        click.echo(f"{measured.agents:>8}{rates}{first}{hits}")


if __name__ == "__main__":
    main()
