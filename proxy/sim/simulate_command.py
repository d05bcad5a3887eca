"""`tidegate simulate`: admission policies against simulated engines in virtual time, in one table.

Reads options, runs every policy with the very same agents, prints. What happens in a run is `closed_loop`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, Self

import click

from proxy.sim.closed_loop import ClosedLoop
from proxy.sim.gate_policy import VARIANTS, GatePolicy
from proxy.sim.loop import Loop
from proxy.sim.open_loop import OpenLoop, recorded_arrivals
from proxy.sim.policies import (
    Concur,
    GaugeGate,
    PassThrough,
    Policy,
    RoundRobin,
    SessionCap,
    TurnCap,
    WorkingSetCap,
)
from proxy.sim.presets import PRESETS, EngineConfig
from proxy.sim.routers import ApproximateTree, BoundedHashing, LeastRequests, Oracle
from proxy.sim.scoreboard import Summary
from proxy.sim.step_time import StepTime
from proxy.sim.thunder import Thunder
from proxy.sim.traces import SLICE, recorded_sessions
from proxy.sim.trouble import Trouble
from proxy.sim.workloads import ClaudeCode, FanOut, GeneratedAgents, Tenants, Workload, Writers

_CARD_243K: Final = EngineConfig(
    name="card-243k",
    description="one 32 GB card, 27B model in 4 bits, 243k KV tokens, no hybrid blocks (admission brief 4.4)",
    block_tokens=64,
    num_gpu_blocks=243_419 // 64 + 1,
    max_model_len=131_072,
    max_num_seqs=256,
    max_num_batched_tokens=2_048,
    step_time=StepTime(
        base_s=0.0267,
        per_decoder_s=0.00059,
        per_context_token_s=3.7e-8,
        per_prefill_token_s=0.00030,
        per_prefill_position_s=2.6e-9,
    ),
)
ENGINES: Final[dict[str, EngineConfig]] = {
    _CARD_243K.name: _CARD_243K,
    "card-640k": replace(
        _CARD_243K,
        name="card-640k",
        description="the same model with 640k KV tokens",
        num_gpu_blocks=640_000 // 64 + 1,
    ),
    "card-32gb-knee": replace(
        PRESETS["card-32gb"],
        name="card-32gb-knee",
        description="the users' 32 GB card at MTP 3, made up: memory for four, and past 8 turns each costs 8 ms a step",
        num_gpu_blocks=4 * 175,
        step_time=replace(PRESETS["card-32gb"].step_time, knee_decoders=8, per_decoder_past_knee_s=0.008),
    ),
    "h200-32b-500k": replace(
        PRESETS["h200-32b"],
        name="h200-32b-500k",
        description="one H200, 32B shape, 500k KV tokens in blocks of 512, as Mooncake's traces have them (made up)",
        block_tokens=512,
        num_gpu_blocks=500_000 // 512 + 1,
    ),
    "h200-32b-2m": replace(
        PRESETS["h200-32b"],
        name="h200-32b-2m",
        description="the same with 2M KV tokens, as with an offload tier that costs nothing (made up)",
        block_tokens=512,
        num_gpu_blocks=2_000_000 // 512 + 1,
    ),
    **PRESETS,
}
_USUAL_POSITION: Final = 6_000
"""Half of Mooncake's mean prompt: where the oracle takes a token to stand when it says how long that takes."""
_SIMPLE: Final[dict[str, Callable[[str, int], Policy]]] = {
    "pass": PassThrough,
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "bounded-hash": BoundedHashing,
    "kv-gate": GaugeGate,
    "concur": Concur,
}
_CAPS: Final[dict[str, Callable[[str, int, int], Policy]]] = {
    "turn-cap": TurnCap,
    "session-cap": SessionCap,
    "working-set": WorkingSetCap,
}
_MADE_UP: Final[dict[str, Callable[[], Workload]]] = {
    "agents": GeneratedAgents,
    "writers": Writers,
    "fan-out": FanOut,
    "tenants": Tenants,
}
_POLICY_HELP: Final = (
    "gate, pass, round-robin, least-requests, bounded-hash, prefix-tree, oracle, turn-cap:K, "
    "session-cap:K, working-set:TOKENS, kv-gate, thunderagent or concur. "
    f"Repeat it. gate:PART switches one part off: {', '.join(sorted(filter(None, VARIANTS)))}."
)


def build_policy(
    spec: str, backends: int, config: EngineConfig, *, capacity_error: float = 1.0, poll_interval_s: float = 1.0
) -> Policy:
    """The policy that `spec` names.

    Raises:
        ValueError: there is none; the message says what can be named.
    """
    kind, _, detail = spec.partition(":")
    if kind in _SIMPLE and not detail:
        return _SIMPLE[kind](spec, backends)
    if kind in _CAPS and detail.isdecimal() and int(detail) > 0:
        return _CAPS[kind](spec, backends, int(detail))
    if kind == "thunderagent" and not detail:
        return Thunder(spec, backends, config.usable_blocks * config.block_tokens)
    if kind == "prefix-tree" and not detail:
        return ApproximateTree(spec, backends, config.block_tokens)
    if kind == "oracle" and not detail:
        step = config.step_time
        rate = 1 / (step.per_prefill_token_s + step.per_prefill_position_s * _USUAL_POSITION + step.host_s_per_token)
        return Oracle(spec, backends, rate)
    if kind == "gate" and detail in VARIANTS:
        return GatePolicy(
            spec,
            backends,
            config,
            capacity_error=capacity_error,
            variant=VARIANTS[detail],
            report_interval_s=poll_interval_s,
        )
    raise ValueError(f"no policy {spec!r}; choose from {_POLICY_HELP}")


def build_workload(name: str, *, longest_context_tokens: int, longest_think_s: float, traces: Path) -> Workload:
    """The load called `name`; a longest thinking time of 0 leaves the recorded ones."""
    if name in _MADE_UP:
        return _MADE_UP[name]()
    return ClaudeCode(
        longest_context_tokens=longest_context_tokens,
        longest_think_s=longest_think_s or None,
        sessions=recorded_sessions(traces),
    )


@click.command()
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(sorted(ENGINES)),
    default="card-243k",
    show_default=True,
    help="Machine to imitate.",
)
@click.option("--mtp", type=click.IntRange(0, 3), help="Speculative tokens a step. [default: the machine's]")
@click.option("--backends", type=click.IntRange(1, 64), default=1, show_default=True, help="How many of them.")
@click.option(
    "--workload",
    type=click.Choice(["claude-code", "mooncake", *_MADE_UP]),
    default="claude-code",
    show_default=True,
    help="Recorded Claude Code sessions, generated ones with short thoughts, short prompts with long answers, "
    "sub-agents in groups of six, or many system prompts. mooncake: the requests of --traces, in Mooncake's form, "
    "when they came; needs an engine whose blocks divide 512, and knows no agents.",
)
@click.option(
    "-n", "--agents", "loads", type=click.IntRange(1, 4_096), multiple=True, default=(16,), help="How many; repeat it."
)
@click.option("--policy", "specs", multiple=True, default=("pass", "gate"), metavar="NAME", help=_POLICY_HELP)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1,), help="Repeat it for several runs.")
@click.option("--minutes", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Measured virtual time.")
@click.option("--warm-up", "warm_up_min", type=click.FloatRange(0), default=10.0, show_default=True, help="Minutes.")
@click.option("--max-context", type=click.IntRange(20_000), default=60_000, show_default=True, help="Tokens a session.")
@click.option(
    "--max-think", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds; 0 leaves them as recorded."
)
@click.option(
    "--traces",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=SLICE,
    help="Packed Claude Code traces. [default: the packaged slice]",
)
@click.option(
    "--capacity-error",
    type=click.FloatRange(0.1, 10),
    default=1.0,
    help="Factor on the capacity that the gate believes in.",
)
@click.option(
    "--token-error", type=click.FloatRange(0, 0.9), default=0.0, help="Sizes are off by up to this share, by session."
)
@click.option("--poll-interval", type=click.FloatRange(0.1), default=1.0, help="Seconds between two scrapes.")
@click.option("--drop-polls", type=click.FloatRange(0, 1), default=0.0, help="Share of scrapes that fail.")
@click.option("--restart-at", type=click.FloatRange(0), help="Minute in which the first engine is restarted.")
@click.option("--abandon", type=click.FloatRange(0, 1), default=0.0, help="Share of sessions left without a sign.")
@click.option("--burst", type=click.IntRange(0), default=0, help="Agents that come besides, for one session each.")
@click.option("--burst-at", type=click.FloatRange(0), default=20.0, help="Minute in which they come.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run.")
def simulate(
    *,
    engine_name: str,
    mtp: int | None,
    backends: int,
    workload: str,
    loads: tuple[int, ...],
    specs: tuple[str, ...],
    seeds: tuple[int, ...],
    minutes: float,
    warm_up_min: float,
    max_context: int,
    max_think: float,
    traces: Path,
    capacity_error: float,
    token_error: float,
    poll_interval: float,
    drop_polls: float,
    restart_at: float | None,
    abandon: float,
    burst: int,
    burst_at: float,
    as_json: bool,
) -> None:
    """Try admission policies on simulated engines, in virtual time.

    Agents run one session after the other; every policy gets the same ones. `gate` is the very gate that `tidegate
    serve` runs.

    \b
    Example:
      tidegate simulate --agents 16 --agents 32 --policy pass --policy turn-cap:8 --policy gate
      tidegate simulate --engine h200-8b --workload agents --warm-up 1 --minutes 4
    """  # noqa: D301 - click's mark for a paragraph that must not be wrapped
    config = ENGINES[engine_name] if mtp is None else replace(ENGINES[engine_name], mtp=mtp)
    trouble = Trouble(
        token_error=token_error,
        poll_interval_s=poll_interval,
        dropped_polls=drop_polls,
        restart_at_s=None if restart_at is None else 60 * restart_at,
        abandoned=abandon,
        burst=burst,
        burst_at_s=60 * burst_at,
    )
    try:
        for spec in specs:
            build_policy(spec, backends, config)
        arrivals = recorded_arrivals(traces) if workload == "mooncake" else []
        longest = config.max_model_len
        arrivals = [one for one in arrivals if one.prompt_tokens + one.answer_tokens <= longest]
        load = (
            None
            if arrivals
            else build_workload(workload, longest_context_tokens=max_context, longest_think_s=max_think, traces=traces)
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    def run_one(spec: str, agents: int, seed: int) -> Summary:
        policy = build_policy(
            spec, backends, config, capacity_error=capacity_error, poll_interval_s=trouble.poll_interval_s
        )
        if load is None:
            loop: Loop = OpenLoop(config, arrivals, policy, seed=seed)
        else:
            loop = ClosedLoop(config, load, policy, agents, seed=seed, trouble=trouble)
        with _Progress(f"{spec}, {agents} agents, seed {seed}") as progress:
            return loop.run(60 * warm_up_min, 60 * minutes, progress.show)

    runs = (run_one(spec, agents, seed) for agents in loads for seed in seeds for spec in specs)
    if as_json:
        for summary in runs:
            click.echo(json.dumps(asdict(summary)))
        return
    click.echo(f"{backends} x {config.description}; {workload}, {minutes:g} min after {warm_up_min:g} min")
    _print_table(runs)


_COLUMNS: Final[Sequence[tuple[str, int, Callable[[Summary], str]]]] = (
    ("policy", -22, lambda run: run.policy),
    ("agents", 7, lambda run: str(run.agents)),
    ("seed", 5, lambda run: str(run.seed)),
    ("turns/min", 10, lambda run: f"{run.turns_per_min:.2f}"),
    ("good", 6, lambda run: f"{run.good_turns_per_min:.1f}"),
    ("tok/s", 6, lambda run: f"{run.tokens_per_s:.0f}"),
    ("sessions", 9, lambda run: str(run.sessions)),
    ("hit", 5, lambda run: f"{run.hit_ratio:.2f}"),
    ("own", 5, lambda run: f"{run.own_hit_ratio:.2f}"),
    ("TTFT p50/90/99", 16, lambda run: _three(run.first_token_s)),
    ("with hold", 16, lambda run: _three(run.first_token_with_hold_s)),
    ("longest", 8, lambda run: f"{run.hold_max_s:.0f}"),
    ("preempt", 8, lambda run: str(run.preemptions)),
    ("waiting", 9, lambda run: f"{run.waiting_mean:.2f}/{run.waiting_max}"),
    ("usage", 6, lambda run: f"{run.usage_mean:.2f}"),
    ("idle", 5, lambda run: f"{run.engine_idle_ratio:.2f}"),
    ("spread", 10, lambda run: f"{run.request_spread:.2f}/{run.computed_spread:.2f}"),
    ("Jain", 5, lambda run: f"{run.jain:.2f}"),
    ("fewest", 7, lambda run: str(run.fewest_turns)),
    ("pending", 8, lambda run: f"{run.oldest_pending_s:.0f}"),
    ("told off", 9, lambda run: f"{run.refusals}/{run.gave_up}"),
    ("theta", 6, lambda run: f"{run.facts['theta']:.2f}" if "theta" in run.facts else "-"),
    ("capped", 7, lambda run: f"{run.facts['capped_s']:.0f}" if "capped_s" in run.facts else "-"),
    ("ghosts", 7, lambda run: f"{run.facts['ghost_misses']:.0f}" if "ghost_misses" in run.facts else "-"),
)


def _print_table(runs: Iterable[Summary]) -> None:
    """The table, a line a run as soon as it is there."""
    click.echo("".join(_cell(title, width) for title, width, _ in _COLUMNS))
    for run in runs:
        click.echo("".join(_cell(show(run), width) for _, width, show in _COLUMNS))
    click.echo(
        "good: turns a minute with their first token within 5 s, hold included. own: cached part of what returning\n"
        "turns have beyond the shared head. TTFT, hold, pending and capped in seconds. told off: refusals/clients\n"
        "that gave up. spread: turns/computed prompt tokens of the busiest engine over the mean."
    )


def _cell(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)


def _three(values_s: Sequence[float]) -> str:
    return "/".join(f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in values_s)


class _Progress:
    """One line on a terminal's standard error while a run lasts; nothing elsewhere."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown = -1
        self._is_on = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def show(self, ratio: float) -> None:
        """So much is done."""
        percent = min(100, int(100 * ratio))
        if self._is_on and percent != self._shown:
            self._shown = percent
            click.echo(f"\r{self._title}: {percent} %  ", err=True, nl=False)

    def __exit__(self, *_: object) -> None:
        if self._is_on:
            click.echo("\r\x1b[K", err=True, nl=False)
