"""Agents of which some keep leaving in the middle of a turn: `python -m tests.real.leavers URL SECONDS OUT`.

The agents are those of `tidegate replay`. Writes one JSON object to OUT: when turns were answered, how often somebody
left, and what went wrong, by the monotonic clock, which on Linux is one for all processes.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Final

from proxy.bench.agents import Agents, RunPlan, run_agents
from proxy.bench.client import Client, Ending, Target, session_for
from proxy.bench.plans import Limits, Workload
from proxy.bench.probing import probe
from proxy.bench.records import RunRecord, TurnRecord
from proxy.bench.shapes import PRESETS
from proxy.bench.words import Conversation
from tests.real.engine import MODEL_NAMES
from tests.real.run_agents import AGENTS, QUARTER, SCALE, THINK_SCALE

LEAVERS: Final = 7
"""Of the 24: three in ten."""
LONGEST_STAY_S: Final = 15.0
"""They leave within this: while they wait at the proxy, while their prompt is computed, in the middle of the answer."""
_SPARE_TOKENS: Final = 512


class Leaver:
    """Asks as everybody does; some agents hang up, and half of the time come back to the same session."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.left = 0

    async def turn(
        self, record: TurnRecord, conversation: Conversation, answer_tokens: int, session: str, rng: random.Random
    ) -> Ending:
        """One turn, or a part of it."""
        if record.agent >= LEAVERS:
            return await self._client.turn(record, conversation, answer_tokens, session, rng)
        try:
            async with asyncio.timeout(rng.uniform(0.0, LONGEST_STAY_S)):
                return await self._client.turn(record, conversation, answer_tokens, session, rng)
        except TimeoutError:
            self.left += 1
            record.is_failed = True
            conversation.make_up_answer(answer_tokens)
            return rng.choice((Ending.CUT_SHORT, Ending.GIVEN_UP))


async def live(url: str, duration_s: float) -> dict[str, object]:
    """Let them work, and say what became of it."""
    clock = asyncio.get_running_loop().time
    async with session_for(AGENTS) as http:
        known = await probe(http, Target(url=url, model=MODEL_NAMES[0]), ())
        limits = Limits(scale=SCALE, context_tokens=QUARTER.context_tokens - _SPARE_TOKENS, think_scale=THINK_SCALE)
        plan = RunPlan(name=os.urandom(6).hex(), agents=AGENTS, warm_up_s=0.0, duration_s=duration_s)
        run = RunRecord(AGENTS, clock())
        leaver = Leaver(Client(http, known.target, run, clock=clock, sleep=asyncio.sleep))
        workload = Workload(PRESETS["agents"], seed=1, limits=limits)
        agents = Agents(plan, workload, known.words, leaver, run, clock=clock, sleep=asyncio.sleep)
        await run_agents(agents, plan, run, asyncio.Event(), clock=clock, watch=lambda: None)
    return {
        "answered_s": sorted(t.end_s for t in run.turns if t.end_s is not None and not t.is_failed),
        "left": leaver.left,
        "refusals": [(event.time_s, event.name) for event in run.refusals],
        "errors": [(event.time_s, event.name) for event in run.errors],
    }


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(asyncio.run(live(sys.argv[1], float(sys.argv[2])))))
