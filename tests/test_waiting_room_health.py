"""Stories of backends that go and come while requests wait, on a loop whose time is made up."""

import asyncio

import pytest

from proxy.core.outcomes import Outcome
from proxy.core.turns import StopReason, TurnEnd
from tests.waiting_story import GRACE_S, Story, refusal_of, settle

pytestmark = pytest.mark.looptime


async def test_with_every_backend_down_who_waits_is_told_soon():
    """503 after the grace, not 429 after the whole hold; its place is kept."""
    story = Story("a", "b")
    await story.admit("one", 90)
    await story.admit("two", 90)
    waiting = story.waits("three", 50)
    await asyncio.sleep(10)
    story.turns(down="a")
    await asyncio.sleep(10)
    story.turns(down="b")

    refusal = await refusal_of(waiting)

    assert (Outcome.REFUSED_NO_BACKEND, 503) == (refusal.outcome, refusal.status)
    assert story.clock() == pytest.approx(20 + GRACE_S, abs=0.1)
    assert len(story.gate.queue) == 0
    assert story.gate.counters["tickets_issued"] == 1


async def test_with_every_backend_down_who_comes_is_told_at_once():
    """There is nothing to wait for."""
    story = Story()
    story.turns(down="a")

    assert (await refusal_of(story.waits("one", 10))).status == 503
    assert story.clock() == 0.0


async def test_a_backend_that_is_back_within_the_grace_is_used():
    """Nothing starts while it is down; nobody is refused afterwards."""
    story = Story()
    running = await story.admit("running", 90)
    waiting = story.waits("one", 50)
    await settle()
    story.turns(down="a")
    story.end(running)
    await asyncio.sleep(GRACE_S - 1)
    assert not waiting.done()

    story.turns(up="a")
    story.end(await waiting)
    assert story.is_empty()
    await asyncio.sleep(2 * GRACE_S)


async def test_a_probe_of_another_backend_does_not_prolong_the_grace():
    """It counts from when the last one went down, however often somebody looks."""
    story = Story("a", "b")
    await story.admit("running", 90, candidates=("a",))
    waiting = story.waits("one", 50, candidates=("a",))
    await settle()
    story.turns(down="a")
    for _ in range(5):
        await asyncio.sleep(1)
        story.turns(down="b")
        story.turns(up="b")

    await refusal_of(waiting)
    assert story.clock() == pytest.approx(GRACE_S, abs=0.1)


async def test_a_backend_that_comes_up_is_used():
    """It was down when the request came."""
    story = Story("a", "b")
    story.turns(down="b")
    await story.admit("running", 90)
    waiting = story.waits("one", 50)
    await asyncio.sleep(1)
    assert not waiting.done()

    story.turns(up="b")
    placement = await waiting

    assert placement.backend == "b"
    assert story.clock() == pytest.approx(1.0, abs=0.1)


async def test_a_resident_goes_elsewhere_when_its_home_goes_down():
    """It waits for its home's running turns; the home is gone, and another backend has room."""
    story = Story("a", "b")
    story.end(await story.admit("one", 30, candidates=("a",)), stop=StopReason.TOOL_USE)
    running = await story.admit("running", 60, candidates=("a",))
    waiting = story.waits("one", 50)
    await settle()
    assert not waiting.done()

    story.turns(down="a")
    placement = await waiting

    assert (placement.backend, placement.admission) == ("b", "returning")
    story.room.end(running, TurnEnd())
    story.end(placement)
    assert story.is_empty()
    story.room.close()


async def test_leaving_or_starting_ends_the_grace():
    """No refusal comes for who is not there any more."""
    story = Story()
    await story.admit("running", 90)
    waiting = story.waits("one", 50)
    await settle()
    story.turns(down="a")
    waiting.cancel()
    await asyncio.sleep(2 * GRACE_S)

    assert story.gate.counters["tickets_issued"] == 1
