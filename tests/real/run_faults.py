"""Trouble on a real vLLM behind the proxy: `python -m tests.real.run_faults INSTALL`.

INSTALL is the folder that setup-vllm.sh printed. The agents of run_agents.py work through the proxy while seven of the
24 keep leaving in the middle of their turns, the engine's metrics page is gone for a while, and the engine is killed
and started anew. Afterwards nothing may be left over, the limit must be where it was, and the log must have told each
thing once. Exit status 0 when every check holds.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.conformance.programs import (
    ROOT,
    NotStartedError,
    Programs,
    Served,
    clean_up_on_sigterm,
    end_group,
    free_port,
    say,
    start_proxy,
)
from tests.conformance.wire import ask, eventually, is_answering, unfinished_requests
from tests.real.engine import start_vllm
from tests.real.run_agents import QUARTER
from tests.real.trial import run_trial
from tests.real.verdicts import Verdict, tell_verdicts

CUT_AT_S: Final = 50.0
CUT_S: Final = 40.0
"""Longer than the 30 s after which the proxy trusts nothing of what the page once said."""
KILL_AT_S: Final = 110.0
END_AT_S: Final = 240.0
PART_S: Final = 40.0
"""The last part, when the engine is warm again, is compared with the one before the first fault."""
LEAST_RECOVERY: Final = 0.6
"""Of the turns/s before; in so short a part there are some forty turns, and chance moves them by a quarter."""
SETTLE_S: Final = 15.0
SPARE_FILES: Final = 2
"""The first look may fall between two probes; kept connections are gone a few seconds after their last request."""
MOST_LINES: Final = 4
"""Of any event but the requests' own: what is said once when a fault begins and once when it ends stays below."""

_SAMPLE: Final = re.compile(r"^((?:tidegate_|process_open_fds)\w*(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
_BACK_TO_ZERO: Final = (
    "tidegate_backend_inflight_requests",
    "tidegate_backend_prefill_tokens",
    "tidegate_waiting_requests",
    "tidegate_held_tokens",
    "tidegate_buffered_body_bytes",
    "running sessions",
)
_LIMIT: Final = "tidegate_backend_admission_ratio"
_FILES: Final = "process_open_fds"


@dataclass(frozen=True)
class Seen:
    """The proxy's own figures at one moment; series of one metric are added up."""

    at_s: float
    figures: Mapping[str, float]


def look(url: str, at_s: float) -> Seen:
    """Read the proxy's metrics page."""
    page = ask(url, "/metrics", method="GET").body.decode()
    figures: dict[str, float] = {}
    for series, value in _SAMPLE.findall(page):
        name = "running sessions" if 'state="running"' in series else series.partition("{")[0]
        figures[name] = figures.get(name, 0.0) + float(value)
    return Seen(at_s, figures)


@dataclass
class Story:
    """What was seen, in seconds since `began`, a monotonic time."""

    began: float
    agents: Mapping[str, Any] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    restarted_s: float = 0.0
    end: Seen | None = None
    unfinished: int | None = None

    def limits(self, begin_s: float, end_s: float) -> list[float]:
        """Where the limit stood between two moments."""
        return [seen.figures[_LIMIT] for seen in self.seen if begin_s <= seen.at_s <= end_s and _LIMIT in seen.figures]

    def turns_per_s(self, begin_s: float, end_s: float) -> float:
        """Turns answered between two moments."""
        answered_s: list[float] = self.agents["answered_s"]
        return sum(begin_s <= at_s - self.began <= end_s for at_s in answered_s) / (end_s - begin_s)

    def stray_errors(self) -> list[str]:
        """Errors that clients had at other times than when the engine was killed."""
        return [name for at_s, name in self.agents["errors"] if not KILL_AT_S <= at_s - self.began <= self.restarted_s]


@dataclass
class Stage:
    """The programs of the run and what is done to them."""

    programs: Programs
    install: Path
    folder: Path
    engine_port: int = field(default_factory=free_port)
    front_port: int = field(default_factory=free_port)

    @property
    def flag(self) -> Path:
        """While it exists there is no metrics page."""
        return self.folder / "no-metrics"

    def start_engine(self) -> Served:
        """Start it, or start it anew on the same port."""
        return start_vllm(self.programs, self.install, size=QUARTER, port=self.engine_port)

    def start_front(self) -> str:
        """Open the door in front of the engine."""
        url = f"http://127.0.0.1:{self.front_port}"
        ports = (str(self.front_port), str(self.engine_port))
        self.programs.start(
            "front",
            [sys.executable, "-m", "tests.real.front", *ports, str(self.flag)],
            is_ready=lambda: is_answering(url, "/health"),
            within_s=20,
        )
        return url

    def kill_engine(self) -> None:
        """As when it crashes, with all its processes; from then on nobody listens where it was."""
        engine = self.programs.latest("vllm")
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()
        end_group(self.programs.latest("front"))


def tell_story(stage: Stage, proxy: Served) -> Story:
    """Let agents work through everything that goes wrong.

    Raises:
        NotStartedError: the engine did not come back, or the agents failed.
    """
    began = monotonic()
    story = Story(began)
    out = stage.folder / "agents.json"
    command = [sys.executable, "-m", "tests.real.leavers", proxy.url, str(END_AT_S), str(out)]
    agents = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)

    def watch_until(end_s: float) -> None:
        while monotonic() - began < end_s and agents.poll() is None:
            with suppress(OSError, HTTPException):
                story.seen.append(look(proxy.url, monotonic() - began))
            with suppress(subprocess.TimeoutExpired):
                agents.wait(1.0)

    try:
        watch_until(CUT_AT_S)
        say(f"{CUT_AT_S:.0f} s: the metrics page is gone for {CUT_S:.0f} s")
        stage.flag.touch()
        watch_until(CUT_AT_S + CUT_S)
        stage.flag.unlink()
        watch_until(KILL_AT_S)
        say(f"{KILL_AT_S:.0f} s: the engine is killed and started anew")
        stage.kill_engine()
        engine = stage.start_engine()
        stage.start_front()
        story.restarted_s = monotonic() - began
        say(f"{story.restarted_s:.0f} s: the engine answers again")
        watch_until(END_AT_S + SETTLE_S)
        if agents.poll() != 0:
            raise NotStartedError(f"the agents ended with exit status {agents.poll()}")
    finally:
        end_group(agents)
    story.agents = json.loads(out.read_bytes())
    eventually(lambda: not leftovers(look(proxy.url, 0.0), story.seen[0]), within_s=SETTLE_S, every_s=1.0)
    story.end = look(proxy.url, monotonic() - began)
    story.unfinished = unfinished_requests(engine.url)
    return story


def leftovers(seen: Seen, first: Seen) -> list[str]:
    """What is not back to zero, and files that were not open at first."""
    files = seen.figures[_FILES] - first.figures[_FILES]
    found = [f"{name} {seen.figures[name]:g}" for name in _BACK_TO_ZERO if seen.figures.get(name)]
    return [*found, f"{files:g} open files"] if files > SPARE_FILES else found


def log_lines(log: Path) -> Iterator[dict[str, Any]]:
    """The proxy's events."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def counted(names: Iterator[str]) -> str:
    """How often each, most first."""
    return ", ".join(f"{name} {count}" for name, count in Counter(names).most_common()) or "none"


def judge(story: Story, lines: list[dict[str, Any]]) -> list[Verdict]:
    """What must hold at the end."""
    assert story.end is not None
    left_over = leftovers(story.end, story.seen[0])
    before = story.turns_per_s(CUT_AT_S - PART_S, CUT_AT_S)
    after = story.turns_per_s(END_AT_S - PART_S, END_AT_S)
    limit_before, limit_after = max(story.limits(0, CUT_AT_S)), story.end.figures[_LIMIT]
    events = Counter(line["event"] for line in lines if line["event"] != "request.finished")
    outcomes = Counter(line["outcome"] for line in lines if line["event"] == "request.finished")
    loudest = events.most_common(1)[0]
    stray = story.stray_errors()
    return [
        Verdict("nothing is left over at the proxy", not left_over, ", ".join(left_over) or "all back to zero"),
        Verdict("nor in the engine", story.unfinished == 0, f"{story.unfinished} unfinished requests"),
        Verdict("the limit is where it was", limit_after >= limit_before - 0.05, f"{limit_before:g}, {limit_after:g}"),
        Verdict(f"turns/s at the end at least {LEAST_RECOVERY:g} times those before", after >= LEAST_RECOVERY * before,
                f"{before:.2f}, {after:.2f}"),
        Verdict("one outage is told once", events["backend.down"] == 1 and events["backend.up"] == 2,
                f"backend.down {events['backend.down']}, backend.up {events['backend.up']} (one of them at the start)"),
        Verdict(f"no event has more than {MOST_LINES} lines", loudest[1] <= MOST_LINES, f"{loudest[0]} {loudest[1]}"),
        Verdict("clients saw errors only when the engine was killed", not stray, counted(iter(stray))),
        Verdict("no fault of the proxy's own", not outcomes["internal_error"] and not outcomes["aborted"],
                f"internal_error {outcomes['internal_error']}, aborted {outcomes['aborted']}"),
    ]  # fmt: skip


def describe(story: Story, lines: list[dict[str, Any]]) -> str:
    """What happened, for people."""
    parts = (
        ("before", CUT_AT_S - PART_S, CUT_AT_S),
        ("without reports", CUT_AT_S, CUT_AT_S + CUT_S),
        ("after the restart", story.restarted_s, story.restarted_s + PART_S),
        ("at the end", END_AT_S - PART_S, END_AT_S),
    )
    told = [f"{'':20}turns/s  limit, least and most"]
    for name, begin_s, end_s in parts:
        limits = story.limits(begin_s, end_s) or [float("nan")]
        told.append(f"{name:20}{story.turns_per_s(begin_s, end_s):7.2f}  {min(limits):.3f} {max(limits):.3f}")
    finished = [line for line in lines if line["event"] == "request.finished"]
    told.append(
        f"out of service: {KILL_AT_S:.0f} to {story.restarted_s:.0f} s; left in mid-turn: {story.agents['left']}"
    )
    told.append(f"clients' errors: {counted(name for _, name in story.agents['errors'])}")
    told.append(f"clients' refusals: {counted(name for _, name in story.agents['refusals'])}")
    told.append(f"log, by event: {counted(line['event'] for line in lines)}")
    told.append(f"log, requests by outcome: {counted(line['outcome'] for line in finished)}")
    return "\n".join(told)


def main(install: Path) -> int:
    """Run it; keep the logs when something failed."""

    def play(programs: Programs, folder: Path) -> bool:
        stage = Stage(programs, install, folder)
        stage.start_engine()
        proxy = start_proxy(programs, stage.start_front())
        story = tell_story(stage, proxy)
        lines = list(log_lines(proxy.log))
        sys.stdout.write(describe(story, lines) + "\n\n")
        return tell_verdicts(judge(story, lines))

    return run_trial("test-faults", play)


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1])))
