"""One replay: looks at the URL, lets the agents work, watches the engines, and returns what was written down."""

import asyncio
import sys

import aiohttp

from proxy.bench.agents import Agents, RunPlan, run_agents
from proxy.bench.client import Client
from proxy.bench.engine_pages import sample
from proxy.bench.plans import Workload
from proxy.bench.probing import KnownTarget
from proxy.bench.records import RunRecord


async def replay(
    http: aiohttp.ClientSession,
    known: KnownTarget,
    workload: Workload,
    plan: RunPlan,
    *,
    stop: asyncio.Event,
    progress: "Progress",
) -> RunRecord:
    """Run agents against a known URL."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    run = RunRecord(plan.agents, clock() + plan.warm_up_s)
    client = Client(http, known.target, run, clock=clock, sleep=asyncio.sleep)
    agents = Agents(plan, workload, known.words, client, run, clock=clock, sleep=asyncio.sleep)

    async def watch_engines() -> None:
        while True:
            if (seen := await sample(http, known.metrics_urls, clock)) is not None:
                run.samples.append(seen)
            await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(watch_engines()) if known.metrics_urls else None
        await run_agents(agents, plan, run, stop, clock=clock, watch=lambda: progress.show(run, clock()))
        if watcher is not None:
            watcher.cancel()
    progress.clear()
    return run


class Progress:
    """One line on a terminal; nothing elsewhere."""

    def __init__(self, name: str, plan: RunPlan) -> None:
        self._name = name
        self._plan = plan
        self._is_shown = sys.stderr.isatty()

    def show(self, run: RunRecord, now_s: float) -> None:
        """Say how far it is."""
        if not self._is_shown:
            return
        into_s = now_s - run.begin_s
        phase = f"{into_s:.0f}/{self._plan.duration_s:.0f} s" if into_s >= 0 else f"warm-up, {-into_s:.0f} s left"
        finished = sum(turn.end_s is not None for turn in run.turns)
        without = sum(turn.end_s is None and turn.first_s is None for turn in run.turns)
        text = f"{self._name}: {phase} · {finished} turns · {without} wait for a first token"
        text += f" · {len(run.refusals)} refusals · {len(run.errors)} errors"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
