"""`python -m tests.bench`: runs the benchmark, prints ratios, figures and targets, and says what failed.

Exit status: 0 fine, 1 something failed to run (or, with --gate, a target is missed), 2 used wrong.
"""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

import click
import orjson

from tests.bench import nginx
from tests.bench.processes import CAN_MEASURE_CPU
from tests.bench.report import Summary
from tests.bench.run import NGINX, PLAIN, Proxy, Run, from_command, known, machine
from tests.bench.scenarios import NAMES, QUICK, SCENARIOS, Scenario

_PEERS = (NGINX, PLAIN)
_QUICK_REPETITIONS, _REPETITIONS = 2, 4


class Progress:
    """One line on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def show(self, what: str, share: float) -> None:
        """Say what comes next."""
        if self._is_shown:
            spent_s = time.monotonic() - self._begin_s
            left = f", about {spent_s / share - spent_s:.0f} s left" if share > 0.02 else ""
            click.echo(f"\r\x1b[K{share:4.0%}  {what}{left}", nl=False, err=True)

    def clear(self) -> None:
        """Leave the line to what follows."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def _more_files() -> None:
    """500 streams take 1,000 sockets of a proxy, more than the usual soft limit."""
    if os.name == "posix":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 16_384 if hard == resource.RLIM_INFINITY else min(hard, 16_384)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _proxies(only: str | None, candidates: tuple[str, ...]) -> list[Proxy]:
    binary = nginx.find()
    proxies = known(binary)
    for candidate in candidates:
        name, _, command = candidate.partition("=")
        if not command or "{port}" not in command or "{backend}" not in command:
            raise click.BadParameter("write NAME=COMMAND with {port} and {backend} in it", param_hint="--candidate")
        proxies.append(from_command(name, shlex.split(command)))
    if only is not None:
        wanted = set(only.split(","))
        if unknown := wanted - {proxy.name for proxy in proxies} - {NGINX}:
            raise click.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="--only")
        proxies = [proxy for proxy in proxies if proxy.name in wanted]
    if binary is None and (only is None or NGINX in only.split(",")):
        click.echo(nginx.MISSING, err=True)
    return proxies


def _scenarios(names: str | None, is_quick: bool) -> list[Scenario]:
    wanted = set(names.split(",") if names else QUICK if is_quick else NAMES)
    if unknown := wanted - set(NAMES):
        raise click.BadParameter(
            f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(NAMES)})", param_hint="--scenario"
        )
    return [scenario.shortened(0.6) if is_quick else scenario for scenario in SCENARIOS if scenario.name in wanted]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--reps", type=click.IntRange(1, 50), help=f"Repetitions [{_REPETITIONS}, with --quick {_QUICK_REPETITIONS}]."
)
@click.option("--quick", is_flag=True, help=f"About 40 s: {', '.join(QUICK)}; short windows.")
@click.option("--only", metavar="NAMES", help="Only these proxies, with commas: nginx, plain, tidegate, a --candidate.")
@click.option("--scenario", metavar="NAMES", help=f"Only these, with commas: {', '.join(NAMES)}.")
@click.option(
    "--candidate", multiple=True, metavar="NAME=COMMAND", help="One more proxy; {port} and {backend} are filled in."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write every figure to a file."
)
@click.option("--gate", is_flag=True, help="Exit status 1 when a target is missed or none could be judged.")
def main(
    *,
    reps: int | None,
    quick: bool,
    only: str | None,
    scenario: str | None,
    candidate: tuple[str, ...],
    json_path: Path | None,
    gate: bool,
) -> None:
    """CPU per request and per chunk and added latency, as ratios to a plain aiohttp proxy and to nginx."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    _more_files()
    proxies, scenarios = _proxies(only, candidate), _scenarios(scenario, quick)
    if not CAN_MEASURE_CPU:
        click.echo("CPU and memory cannot be measured on this system (no /proc); only latency is compared", err=True)
        scenarios = [each for each in scenarios if each.kind == "open"]
    where = machine()
    repetitions = reps or (_QUICK_REPETITIONS if quick else _REPETITIONS)
    progress = Progress()
    run = Run(scenarios, repetitions, progress.show)
    try:
        run.run(proxies)
    finally:
        progress.clear()
    summary = Summary(run.samples, [proxy.name for proxy in proxies if proxy.name not in _PEERS])
    pinned = "pinned" if where["is_pinned"] else "not pinned"
    click.echo(
        f"one interleaved run, {repetitions} repetitions, {where['cores']} cores ({pinned}), load average before "
        f"{where['load1']}, Python {where['python']}, {where['nginx'] or 'no nginx'}\n"
    )
    if run.samples:
        click.echo(summary.text() + "\n")
    verdicts = summary.verdicts()
    for line in [*verdicts, *(f"note    {note}" for note in summary.notes())]:
        click.echo(str(line))
    if json_path is not None:
        found = {"machine": where, "repetitions": repetitions, **summary.json(), "failures": run.failures}
        json_path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    for failure in run.failures:
        click.echo(f"FAILED  {failure}", err=True)
    is_gate_shut = any(verdict.is_missed for verdict in verdicts) or all(verdict.ratio is None for verdict in verdicts)
    sys.exit(1 if run.failures or not run.samples or (gate and is_gate_shut) else 0)


if __name__ == "__main__":
    main()
