"""Agents in virtual time: they live their sessions, one after the other, and stop when the run does."""

import asyncio

import looptime
import pytest

from proxy.bench.agents import Agents, RunPlan, run_agents
from proxy.bench.client import Ending
from proxy.bench.plans import Limits, SessionPlan, TurnPlan, Workload
from proxy.bench.records import RunRecord
from proxy.bench.words import Words

ANSWER_S = 2.0
THINK_S = 3.0


class TwoTurns:
    """Sessions of two turns."""

    def draw(self, rng):
        """The one session there is."""
        rng.random()
        return SessionPlan(10, (TurnPlan(5, 4, THINK_S), TurnPlan(5, 4, THINK_S)))


class FakeAsker:
    """Answers after a while, as it was told to."""

    def __init__(self, ending=Ending.ANSWERED):
        self.ending = ending
        self.sessions = []
        self.roles = []

    async def turn(self, record, conversation, answer_tokens, session, _rng):
        """Answer after a while."""
        self.sessions.append((record.agent, session))
        self.roles.append([message.role for message in conversation.messages])
        await asyncio.sleep(ANSWER_S)
        record.end_s = asyncio.get_running_loop().time()
        conversation.answer("x", answer_tokens)
        return self.ending


def replay(asker, *, agents=1, warm_up_s=0.0, duration_s=20.0, stop_after_s=None, is_aged=False):
    """A whole run, in virtual time."""
    plan = RunPlan(name="r", agents=agents, warm_up_s=warm_up_s, duration_s=duration_s, is_aged=is_aged, stagger_s=0.0)
    run = RunRecord(agents, 0.0)

    async def whole():
        clock = asyncio.get_running_loop().time
        workload = Workload(TwoTurns(), seed=1, limits=Limits())
        stop = asyncio.Event()
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, stop.set)
        working = Agents(plan, workload, Words(), asker, run, clock=clock, sleep=asyncio.sleep)
        await run_agents(working, plan, run, stop, clock=clock, watch=lambda: None)

    loop = looptime.new_event_loop(start=0)
    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()
    return run


def test_an_agent_runs_one_session_after_the_other():
    """Asks, thinks, asks; then a new session begins at once."""
    asker = FakeAsker()
    run = replay(asker)

    assert [turn.wanted_s for turn in run.turns] == [0, 5, 7, 12, 14, 19]
    assert [turn.is_returning for turn in run.turns] == [False, True] * 3
    assert run.sessions == [7, 14]
    assert asker.roles[:2] == [["user"], ["user", "assistant", "user"]]
    assert (run.begin_s, run.end_s) == (0, 20)


def test_each_session_has_its_own_name_and_keeps_it():
    """Another agent's is another."""
    asker = FakeAsker()
    replay(asker, agents=2)
    names = [session for agent, session in asker.sessions if agent == 0]

    assert names[0] == names[1] != names[2] == names[3]
    assert not set(names) & {session for agent, session in asker.sessions if agent == 1}


def test_who_gives_up_begins_anew_a_little_later():
    """So that a URL that refuses everything is not hammered."""
    run = replay(FakeAsker(Ending.GIVEN_UP), duration_s=7)

    assert [turn.wanted_s for turn in run.turns] == [0, 3, 6]
    assert (run.sessions, run.given_up) == ([], [2, 5])


def test_an_aged_session_has_a_past_that_nobody_was_asked_for():
    """Its first turn here is cold: nothing of it was cached in this run."""
    asker = FakeAsker()
    run = replay(asker, agents=20, duration_s=1, is_aged=True)

    assert {len(roles) for roles in asker.roles} == {1, 3}
    assert not any(turn.is_returning for turn in run.turns)


@pytest.mark.parametrize(("stop_after_s", "window"), [(12.0, (10, 12)), (4.0, (0, 4))])
def test_stopping_early_leaves_a_window_of_what_there_is(stop_after_s, window):
    """Even in the warm-up."""
    run = replay(FakeAsker(), warm_up_s=10, stop_after_s=stop_after_s)

    assert (run.begin_s, run.end_s) == window
