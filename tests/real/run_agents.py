"""24 agents on a real vLLM, past the proxy and through it: `python -m tests.real.run_agents INSTALL`.

INSTALL is the folder that setup-vllm.sh printed. All runs meet one engine process and bring the same sessions, in the
order past, through, past: what an engine gains or loses with time shows between the first and the last, and the mean of
these two is what the proxy is compared with. The texts are new in each run, so none finds what another left in the
cache. The proxy runs during its own run only. Exit status 0 when every verdict holds.
"""

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Final

from tests.conformance.programs import (
    ROOT,
    Programs,
    Served,
    clean_up_on_sigterm,
    end_group,
    say,
    start_proxy,
)
from tests.conformance.wire import ask, eventually, unfinished_requests
from tests.real.engine import Size, start_vllm
from tests.real.trial import NotMeasuredError, run_trial
from tests.real.verdicts import Report, judge, table, tell_verdicts

AGENTS: Final = 24
SCALE: Final = 0.25
"""A quarter of the issue's 1,000 blocks and of its agents' contexts and answers: a cold prompt of 12,000 tokens takes a
CPU core 5 s, and 24 agents that compute theirs anew at each turn would finish next to nothing in the time there is."""
THINK_SCALE: Final = SCALE
"""Pauses shrink with the work. Left as they are, the agents that fit would think most of the time, and no order of
admission, however good, could keep the engine busy with them."""
QUARTER: Final = Size(kv_blocks=250, running_at_once=2 * AGENTS, context_tokens=16_384)
"""It is never the number of requests that keeps one waiting."""

WARM_UP_S: Final = 70
"""With it, agents that begin at their first turn do in the window what they do in the long run, by the simulator."""
DURATION_S: Final = 100
_MOST_S: Final = 590.0
"""For everything. The engine's start and three runs take a little over nine minutes."""
_LEAVING_S: Final = 10.0


def replay(url: str, engine_url: str, out: Path, deadline: float) -> Report:
    """One run of `tidegate replay`.

    Raises:
        NotMeasuredError: it failed, or the time was over.
    """
    say(f"{AGENTS} agents for {WARM_UP_S} + {DURATION_S} s: {out.stem} ...")
    command = [
        sys.executable, "-m", "proxy", "replay", url, "--agents", str(AGENTS), "--scale", str(SCALE),
        "--think-scale", str(THINK_SCALE), "--fresh", "--seed", "1",
        "--warm-up", str(WARM_UP_S), "--duration", str(DURATION_S), "--metrics-url", f"{engine_url}/metrics",
        "--json", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        status = process.wait(max(deadline - monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"not done within {_MOST_S:.0f} s") from None
    finally:
        end_group(process)
    if status or not out.exists():
        raise NotMeasuredError(f"tidegate replay ended with exit status {status}: errors, or no turn was finished")
    if not eventually(lambda: unfinished_requests(engine_url) == 0, within_s=_LEAVING_S, every_s=0.2):
        raise NotMeasuredError("the engine still works for agents that have left")
    summary: Report = json.loads(out.read_bytes())["runs"][0]["summary"]
    return summary


def measure(programs: Programs, install: Path, folder: Path) -> tuple[Report, Report, Report]:
    """Past the proxy, through it, and past it again.

    Raises:
        NotStartedError: a program did not start.
        NotMeasuredError: a run failed.
    """
    deadline = monotonic() + _MOST_S
    engine = start_vllm(programs, install, size=QUARTER)
    before = replay(engine.url, engine.url, folder / "past-the-proxy.json", deadline)
    with Programs(folder) as its_own:
        proxy = start_proxy(its_own, engine.url)
        through = replay(proxy.url, engine.url, folder / "through-the-proxy.json", deadline)
        keep_metrics(proxy, folder / "tidegate-metrics.txt")
    after = replay(engine.url, engine.url, folder / "past-it-again.json", deadline)
    return before, through, after


def keep_metrics(proxy: Served, out: Path) -> None:
    """What the proxy says of itself after its run, for whoever asks why a verdict failed."""
    out.write_bytes(ask(proxy.url, "/metrics", method="GET").body)


def tell(before: Report, through: Report, after: Report) -> bool:
    """Print the table and the verdicts; whether all of them hold."""
    sys.stdout.write(table(["past the proxy", "through it", "past it again"], [before, through, after]) + "\n\n")
    return tell_verdicts(judge([before, after], through))


def main(install: Path) -> int:
    """Run it; keep the reports and logs when something failed."""
    return run_trial("test-vllm", lambda programs, folder: tell(*measure(programs, install, folder)))


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1])))
