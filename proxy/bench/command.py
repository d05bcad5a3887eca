"""`tidegate replay`: reads options, runs, prints. Everything else is in the package."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import orjson

from proxy.bench.agents import RunPlan
from proxy.bench.client import Target, session_for
from proxy.bench.dialects import Api
from proxy.bench.plans import DoesNotFitError, Limits, Shape, Workload
from proxy.bench.probing import KnownTarget, UnfitTargetError, probe
from proxy.bench.records import RunRecord
from proxy.bench.replay import Progress
from proxy.bench.replay import replay as run_replay
from proxy.bench.shapes import PRESETS
from proxy.bench.summary import Summary, summarise
from proxy.bench.table import table
from proxy.bench.traces import TraceError, read_trace

_FOUND_WRONG: Final = 1
_BETWEEN_RUNS_S: Final = 3.0
"""For the engine to notice that the first run's clients have left."""
_CONTEXT_RESERVE_TOKENS: Final = 512
"""Of the engine's longest context; texts are only about as long as planned."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    known: KnownTarget
    run: RunRecord
    summary: Summary


@click.command()
@click.argument("url")
@click.option("--agents", type=click.IntRange(min=1), default=8, show_default=True, help="Sessions at the same time.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=0, min_open=True),
    default=90.0,
    show_default=True,
    help="Seconds measured.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds before that; should outlast the first, cold prompts.",
)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), default="agents", show_default=True, help="Kind of work.")
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recorded sessions (packed Claude Code trace, .jsonl.gz) instead of a preset.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same sessions.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Factor on all sizes, for engines of another size.",
)
@click.option(
    "--think-scale", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Factor on all pauses."
)
@click.option(
    "--longest-think",
    "longest_think_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to which longer pauses are cut.",
)
@click.option("--context", "context_tokens", type=click.IntRange(min=1), help="Longest context. [default: the model's]")
@click.option(
    "--fresh", "is_fresh", is_flag=True, help="First sessions begin at their first turn, not at a random one."
)
@click.option(
    "--api", type=click.Choice([api.value for api in Api]), default="chat", show_default=True, help="What agents speak."
)
@click.option("--model", default="", help="[default: the first of /v1/models]")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key.")
@click.option("--no-session-id", is_flag=True, help="Leave the session header out.")
@click.option(
    "--ttft-limit",
    "limit_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds within which the first token of a good turn comes.",
)
@click.option(
    "--metrics-url",
    "metrics_urls",
    multiple=True,
    metavar="URL",
    help="An engine's metrics page; repeat it. [default: the URL's own, if it is an engine]",
)
@click.option("--compare", "other_url", metavar="URL", help="Run the same against this URL afterwards.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write everything here."
)
def replay(**options: Any) -> None:
    """Run coding agents against a URL and report how they fared.

    Each agent runs sessions that share a system prompt, grow turn by turn and pause in between; it waits and comes back
    when refused, as real clients do. Ctrl-C reports on what there is.

    Exit status 1 when there were errors or no turn finished.
    """
    try:
        outcomes = asyncio.run(_replay_all(options))
    except UnfitTargetError as error:
        click.echo(f"tidegate: {error}", err=True)
        sys.exit(_FOUND_WRONG)
    except (TraceError, DoesNotFitError) as error:
        raise click.UsageError(str(error)) from None
    names = [outcome.known.target.url for outcome in outcomes]
    summaries = [outcome.summary for outcome in outcomes]
    click.echo(_heading(options, outcomes))
    click.echo(table(names, summaries, options["limit_s"]))
    if options["json_path"]:
        options["json_path"].write_bytes(orjson.dumps(_everything(options, outcomes), option=orjson.OPT_INDENT_2))
    if any(not summary.turns or summary.errors for summary in summaries):
        sys.exit(_FOUND_WRONG)


async def _replay_all(options: dict[str, Any]) -> list[_Outcome]:
    shape: Shape = read_trace(options["trace_path"]) if options["trace_path"] else PRESETS[options["preset"]]
    urls = [url for url in (options["url"], options["other_url"]) if url]
    outcomes: list[_Outcome] = []
    async with session_for(options["agents"]) as http:
        known = [await probe(http, _target(url, options), options["metrics_urls"]) for url in urls]
        workload = _workload(shape, options, known)
        for agent in range(options["agents"]):
            workload.session(agent, 0)  # says now if nothing fits
        stop = _stop_on_signals()
        for target in known:
            if outcomes:
                await asyncio.sleep(_BETWEEN_RUNS_S)
            plan = _run_plan(options)
            run = await run_replay(http, target, workload, plan, stop=stop, progress=Progress(target.target.url, plan))
            outcomes.append(_Outcome(target, run, summarise(run, options["limit_s"])))
            if stop.is_set():
                break
    return outcomes


def _stop_on_signals() -> asyncio.Event:
    """Set by the first Ctrl-C or SIGTERM; the second one ends the program as usual."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_once() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_once)
    return stop


def _target(url: str, options: dict[str, Any]) -> Target:
    plain = url.rstrip("/").removesuffix("/v1")
    if not plain.startswith(("http://", "https://")):
        raise click.UsageError(f"{url!r} is no http:// or https:// URL")
    key_name = options["api_key_env"]
    if key_name and not os.environ.get(key_name):
        raise click.UsageError(f"the environment variable {key_name} holds no API key")
    return Target(
        url=plain,
        model=options["model"],
        api=Api(options["api"]),
        key=os.environ.get(key_name) if key_name else None,
        sends_session=not options["no_session_id"],
    )


def _workload(shape: Shape, options: dict[str, Any], known: list[KnownTarget]) -> Workload:
    """The same for every URL: the shortest context of all counts."""
    longest = [target.context_tokens - _CONTEXT_RESERVE_TOKENS for target in known if target.context_tokens]
    limits = Limits(
        scale=options["scale"],
        context_tokens=options["context_tokens"] or min(longest, default=None),
        think_scale=options["think_scale"],
        longest_think_s=options["longest_think_s"],
    )
    return Workload(shape, seed=options["seed"], limits=limits)


def _run_plan(options: dict[str, Any]) -> RunPlan:
    """Each run has a name of its own, so that it meets no prefix that an earlier one left in the cache."""
    return RunPlan(
        name=os.urandom(6).hex(),
        agents=options["agents"],
        warm_up_s=options["warm_up_s"],
        duration_s=options["duration_s"],
        is_aged=not options["is_fresh"],
        stagger_s=min(4.0, options["warm_up_s"]),
    )


def _heading(options: dict[str, Any], outcomes: list[_Outcome]) -> str:
    work = options["trace_path"].name if options["trace_path"] else options["preset"]
    windows = ", ".join(f"{outcome.summary.window_s:.0f} s" for outcome in outcomes)
    model = outcomes[0].known.target.model
    return (
        f"{options['agents']} agents, {work} x{options['scale']:g}, seed {options['seed']}, "
        f"{outcomes[0].known.target.api.value} API, model {model}, measured {windows}"
    )


def _everything(options: dict[str, Any], outcomes: list[_Outcome]) -> dict[str, Any]:
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return {"options": shown, "runs": [_run_values(outcome) for outcome in outcomes]}


def _run_values(outcome: _Outcome) -> dict[str, Any]:
    """Times count from the start of the measured window."""
    run = outcome.run
    begin_s = run.begin_s

    def since(time_s: float | None) -> float | None:
        return None if time_s is None else round(time_s - begin_s, 4)

    turns = [
        replace(
            turn,
            wanted_s=turn.wanted_s - begin_s,
            sent_s=since(turn.sent_s),
            first_s=since(turn.first_s),
            end_s=since(turn.end_s),
        )
        for turn in run.turns
    ]
    return {
        "url": outcome.known.target.url,
        "model": outcome.known.target.model,
        "tokens_per_word": outcome.known.words.tokens_per_word,
        "has_fixed_lengths": outcome.known.target.has_fixed_lengths,
        "metrics_urls": outcome.known.metrics_urls,
        "summary": outcome.summary,
        "turns": turns,
        "samples": [replace(seen, time_s=seen.time_s - begin_s) for seen in run.samples],
    }
