"""12 agents before two real vLLMs, in several ways: `python -m tests.real.run_routing INSTALL [ROUTER] [WAYS]`.

INSTALL is the folder that setup-vllm.sh printed, ROUTER the executable that setup-vllm-router.sh printed, or nothing;
WAYS names those to try, all by default. All ways meet the same two engines one after the other, and bring the same
sessions in texts of their own, so that none finds what another left in a cache. In front of each engine stands a tap
that writes down whose turn went by, so that it is known of every way where turns went. Exit status 0 when every verdict
holds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.conformance.programs import ROOT, Programs, Served, clean_up_on_sigterm, end_group, free_port, say
from tests.conformance.wire import eventually, is_answering, unfinished_requests
from tests.real.engine import MODEL_NAMES, start_vllm
from tests.real.homes import Homes, homes, read_notes
from tests.real.run_agents import QUARTER, SCALE
from tests.real.trial import NotMeasuredError, run_trial
from tests.real.verdicts import Report, Verdict, table, tell_verdicts

AGENTS: Final = 12
"""Six an engine: as many as a cache of this size holds if each session lies in one of the two, and half of those that
there would be if each lay in both."""
ENGINE_PORTS: Final = (18_301, 18_302)
SIZE: Final = replace(QUARTER, running_at_once=AGENTS)
WARM_UP_S: Final = 45
DURATION_S: Final = 90
LEAST_KEPT: Final = 0.95
"""Not all: who had to leave may move."""
_START_S: Final = 40.0
_LEAVING_S: Final = 15.0
_SPARE_TOKENS: Final = 512
_POLICIES: Final = ("cache_aware", "consistent_hash")


@dataclass
class Tap:
    """What stands before one engine."""

    url: str
    notes: Path

    def written(self) -> int:
        """Bytes of notes up to now."""
        return self.notes.stat().st_size if self.notes.exists() else 0


@dataclass(frozen=True)
class Result:
    """What one way gave."""

    report: Report
    homes: Homes


def start_engines(programs: Programs, install: Path) -> list[Served]:
    """Two of them, one core each."""
    return [start_vllm(programs, install, size=SIZE, port=port) for port in ENGINE_PORTS]


def start_taps(programs: Programs, folder: Path, way: str) -> list[Tap]:
    """One before each engine, which writes for one way."""
    taps = []
    for number, engine_port in enumerate(ENGINE_PORTS):
        port, notes = free_port(), folder / f"{way}-{number}.notes"
        tap = Tap(f"http://127.0.0.1:{port}", notes)
        programs.start(
            f"tap-{way}-{number}",
            [sys.executable, "-m", "tests.real.tap", str(port), str(engine_port), str(notes)],
            is_ready=lambda tap=tap: is_answering(tap.url, "/health"),  # type: ignore[misc]
            within_s=_START_S,
        )
        taps.append(tap)
    return taps


def _command(way: str, port: int, urls: Sequence[str], router: str) -> list[str]:
    python = [sys.executable, "-m"]
    if way == "tidegate":
        backends = [argument for url in urls for argument in ("--backend", url)]
        return [*python, "proxy", "serve", "--port", str(port), "--log-format", "json", *backends]
    if way == "round-robin":
        return [*python, "tests.real.round_robin", str(port), *urls]
    return [
        router, "--host", "127.0.0.1", "--port", str(port), "--policy", way, "--prometheus-port", str(free_port()),
        "--log-level", "warning", "--worker-urls", *urls,
    ]  # fmt: skip


def start_way(programs: Programs, way: str, urls: Sequence[str], router: str) -> Served:
    """Put it before the taps."""
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", programs.log(way))
    programs.start(
        way,
        _command(way, port, urls, router),
        is_ready=lambda: is_answering(served.url, "/v1/models"),
        within_s=_START_S,
        environment={"PYTHONUNBUFFERED": "1"},
    )
    return served


def replay(way: Served, engines: Sequence[Served], out: Path) -> Report:
    """One run of `tidegate replay`.

    Raises:
        NotMeasuredError: it failed.
    """
    say(f"{AGENTS} agents for {WARM_UP_S} + {DURATION_S} s: {out.stem} (load {os.getloadavg()[0]:.1f}) ...")
    pages = [argument for engine in engines for argument in ("--metrics-url", f"{engine.url}/metrics")]
    command = [
        sys.executable, "-m", "proxy", "replay", way.url, "--agents", str(AGENTS), "--scale", str(SCALE),
        "--think-scale", str(SCALE), "--fresh", "--seed", "1", "--model", MODEL_NAMES[0],
        "--context", str(SIZE.context_tokens - _SPARE_TOKENS),
        "--warm-up", str(WARM_UP_S), "--duration", str(DURATION_S), *pages, "--json", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        status = process.wait(WARM_UP_S + DURATION_S + 120)
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"{out.stem} was not done in time") from None
    finally:
        end_group(process)
    if status or not out.exists():
        raise NotMeasuredError(f"tidegate replay ended with exit status {status}: errors, or no turn was finished")
    is_quiet = eventually(
        lambda: sum(unfinished_requests(engine.url) for engine in engines) == 0, within_s=_LEAVING_S, every_s=0.2
    )
    if not is_quiet:
        raise NotMeasuredError(f"an engine still works for agents of {out.stem} that have left")
    summary: Report = json.loads(out.read_bytes())["runs"][0]["summary"]
    return summary


def measure(programs: Programs, install: Path, router: str, ways: Sequence[str], folder: Path) -> dict[str, Result]:
    """All ways, one after the other.

    Raises:
        NotStartedError: a program did not start.
        NotMeasuredError: a run failed.
    """
    engines = start_engines(programs, install)
    results = {}
    for way in ways:
        with Programs(folder) as its_own:
            taps = start_taps(its_own, folder, way)
            served = start_way(its_own, way, [tap.url for tap in taps], router)
            report = replay(served, engines, folder / f"{way}.json")
            results[way] = Result(report, homes(read_notes(tap.notes) for tap in taps))
    return results


def judge(results: Mapping[str, Result]) -> list[Verdict]:
    """What must hold; how others fare beside us is only told."""
    ours = results["tidegate"]
    kept = ours.homes.kept_ratio
    verdicts = [Verdict(f"turns that come home at least {LEAST_KEPT}", (kept or 0) >= LEAST_KEPT, _shown(kept))]
    others = results.get("round-robin")
    if others is not None:
        hits, theirs = _hits(ours), _hits(others)
        is_better = hits is not None and theirs is not None and hits >= theirs
        verdicts.append(Verdict("hit rate at least round robin's", is_better, f"{_shown(hits)}, {_shown(theirs)}"))
    return verdicts


def _hits(result: Result) -> float | None:
    ratio: float | None = result.report["engine"]["prefix_hit_ratio"]
    return ratio


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}"


def tell(results: Mapping[str, Result]) -> bool:
    """Print the table and the verdicts; whether all of them hold."""
    sys.stdout.write(table(list(results), [result.report for result in results.values()]) + "\n\n")
    for way, result in results.items():
        found, turns = result.homes, " + ".join(map(str, result.homes.turns))
        sys.stdout.write(
            f"{way}: {found.kept} of {found.returns} turns came home ({_shown(found.kept_ratio)}), {turns} turns\n"
        )
    return tell_verdicts(judge(results))


def main(install: Path, router: str, wanted: Sequence[str]) -> int:
    """Run it; keep the reports and logs when something failed."""
    ways = ["tidegate", "round-robin", *(_POLICIES if router else ())]
    if unknown := set(wanted) - {"tidegate", "round-robin", *_POLICIES}:
        say(f"test-routing: WAYS has {', '.join(sorted(unknown))}, which is none of {', '.join(ways)}")
        return 2
    if not router:
        say("test-routing: vllm-router is not installed; its policies are left out")
    ways = [way for way in ways if way == "tidegate" or not wanted or way in wanted]
    return run_trial("test-routing", lambda programs, folder: tell(measure(programs, install, router, ways, folder)))


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "", sys.argv[3:]))
