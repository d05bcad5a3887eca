"""The agents: each runs one session after the other, asking, reading, thinking, until the run is over."""

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.bench.client import Ending, Sleep
from proxy.bench.plans import SessionPlan, Workload, chance
from proxy.bench.records import RunRecord, TurnRecord
from proxy.bench.words import Conversation, Words
from proxy.core.ports import Clock

_AFTER_GIVING_UP_S: Final = 1.0
"""So that a URL that refuses everything is not hammered."""


class Asker(Protocol):
    """Whoever gets answers."""

    async def turn(
        self, record: TurnRecord, conversation: Conversation, answer_tokens: int, session: str, rng: random.Random
    ) -> Ending:
        """Get one answer, and take it into the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run.

    Attributes:
        name: texts and session ids are made from it: runs of another name share no prefix, whatever their seed.
        is_aged: first sessions begin at a random turn, as if they had been there before the run.
        stagger_s: the agents start spread over this.
    """

    name: str
    agents: int
    warm_up_s: float
    duration_s: float
    is_aged: bool = True
    stagger_s: float = 4.0


class Agents:
    """All agents of one run."""

    def __init__(
        self,
        plan: RunPlan,
        workload: Workload,
        words: Words,
        asker: Asker,
        run: RunRecord,
        *,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        self._plan = plan
        self._workload = workload
        self._words = words
        self._asker = asker
        self._run = run
        self._clock = clock
        self._sleep = sleep

    async def work(self, agent: int) -> None:
        """One agent's life; ends only by cancellation."""
        rng = chance(self._plan.name, "agent", agent)
        await self._sleep(rng.uniform(0, self._plan.stagger_s))
        number = 0
        while True:
            session = self._workload.session(agent, number, is_aged=self._plan.is_aged and number == 0)
            ends = self._run.sessions if await self._live(agent, number, session, rng) else self._run.given_up
            ends.append(self._clock())
            if ends is self._run.given_up:
                await self._sleep(_AFTER_GIVING_UP_S)
            number += 1

    async def _live(self, agent: int, number: int, plan: SessionPlan, rng: random.Random) -> bool:
        """One session; whether it came to its planned end."""
        key = f"{self._plan.name}/{agent}/{number}"
        session = str(uuid.uuid5(uuid.NAMESPACE_URL, key))
        conversation = Conversation(
            self._words, run=self._plan.name, shared_tokens=plan.shared_tokens, session=f"{agent}/{number}"
        )
        has_answer = False
        for position, turn in enumerate(plan.turns):
            conversation.ask(turn)
            if position < plan.past_turns:
                conversation.make_up_answer(turn.answer_tokens)
                continue
            record = TurnRecord(agent, plan.shared_tokens, has_answer, self._clock())
            self._run.turns.append(record)
            ending = await self._asker.turn(record, conversation, turn.answer_tokens, session, rng)
            if ending is Ending.GIVEN_UP:
                return False
            has_answer = True
            if position + 1 < len(plan.turns):
                await self._sleep(turn.think_s)
        return True


async def run_agents(
    agents: Agents, plan: RunPlan, run: RunRecord, stop: asyncio.Event, *, clock: Clock, watch: Callable[[], object]
) -> None:
    """Let all agents work through warm-up and window, or until `stop`. `watch` is called each second.

    Stopped during the warm-up, the window is all there was.
    """
    started_s = clock()
    run.begin_s = started_s + plan.warm_up_s
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agents.work(agent)) for agent in range(plan.agents)]
        while not stop.is_set() and (left_s := run.begin_s + plan.duration_s - clock()) > 0:
            watch()
            try:
                async with asyncio.timeout(min(left_s, 1.0)):
                    await stop.wait()
            except TimeoutError:
                continue
        run.end_s = clock()
        for task in tasks:
            task.cancel()
    if run.begin_s > run.end_s:
        run.begin_s = started_s
