"""Stories of a full queue, on a loop whose time is made up: who may stay, who is sent away, who comes back."""

import asyncio

import pytest

from proxy.core.errors import Refusal
from proxy.core.outcomes import Outcome
from proxy.core.turns import StopReason, TurnEnd
from tests.waiting_story import RESPONSES, Story, refusal_of, settle

pytestmark = pytest.mark.looptime


async def test_a_full_queue_refuses_with_a_time_to_come_back():
    """By entries or by bytes; from 1 to 60 seconds."""
    story = Story(max_waiting=1, max_waiting_bytes=1_000)
    await story.admit("running", 90)
    waiting = story.waits("one", 50)
    await settle()

    refusal = await refusal_of(story.waits("two", 50))

    assert refusal.status == 429
    assert 1 <= refusal.retry_after_s <= 60
    waiting.cancel()
    await settle()
    assert (await refusal_of(story.waits("three", 50, body=b"x" * 1_001))).status == 429


async def test_a_full_queue_does_not_stop_who_need_not_wait():
    """L30: turns of admitted sessions are never blocked by new ones."""
    story = Story(max_waiting=1)
    story.end(await story.admit("resident", 40), stop=StopReason.TOOL_USE)
    running = await story.admit("running", 40)
    waiting = story.waits("new", 50)
    await settle()

    placement = await story.admit("resident", 41)

    assert placement.admission == "resident"
    waiting.cancel()
    story.end(placement)
    story.end(running)


async def test_a_full_queue_lets_in_who_comes_back_before_newcomers():
    """It was refused after its hold and a newcomer took the place: the newcomer is told so, and keeps a place too."""
    story = Story(max_waiting=1, max_hold_s=100.0)
    running = await story.admit("running", 90)
    assert (await refusal_of(story.waits("early", 50, patience_s=10.0))).status == 429
    late = story.waits("late", 50, route=RESPONSES)
    await asyncio.sleep(1)
    again = story.waits("early", 50)

    refusal = await refusal_of(late)

    assert (503, Outcome.REFUSED_OVERLOADED) == (refusal.status, refusal.outcome)
    assert 1 <= refusal.retry_after_s <= 60
    assert [waiting.stamp for waiting in story.gate.queue] == [pytest.approx(0.0)]
    story.room.end(running, TurnEnd())
    story.end(await again)
    await asyncio.sleep(20)
    late_again = story.waits("late", 90)
    await settle()
    assert story.gate.counters["tickets_redeemed"] == 2
    story.end(await late_again)
    assert story.is_empty()


async def test_a_full_queue_of_older_ones_leaves_a_ticket_with_its_owner():
    """Refused again, for others have waited longer, it is still who it was."""
    story = Story(max_waiting=1, max_hold_s=100.0)
    running = await story.admit("running", 90)
    older = story.waits("older", 50)
    await asyncio.sleep(1)
    story.gate.queue._capacity = 2
    assert (await refusal_of(story.waits("younger", 50, patience_s=10.0))).status == 429
    story.gate.queue._capacity = 1
    assert (await refusal_of(story.waits("younger", 50))).status == 429
    older.cancel()
    await settle()
    again = story.waits("younger", 50)
    await settle()

    assert [waiting.stamp for waiting in story.gate.queue] == [pytest.approx(1.0)]
    story.room.end(running, TurnEnd())
    story.end(await again)


async def test_a_crowd_that_comes_back_is_served_in_its_order():
    """Twelve sessions for a queue of four, all patient: each is served or told when to come back, none starves."""
    story = Story(max_waiting=4, max_hold_s=20.0)
    served = []

    async def live(number):
        await asyncio.sleep(0.1 * number)
        while True:
            try:
                placement = await story.admit(f"s{number}", 60)
            except Refusal as refusal:
                await asyncio.sleep(refusal.retry_after_s or 0)
                continue
            await asyncio.sleep(5)
            story.end(placement)
            served.append(number)
            return

    async with asyncio.timeout(600):
        await asyncio.gather(*(live(number) for number in range(12)))

    assert sorted(served) == list(range(12))
    assert served[:5] == list(range(5))
    assert story.is_empty()
    story.room.close()


async def test_a_full_queue_takes_a_copy_of_what_waits_in_it():
    """It needs no place of its own."""
    story = Story(max_waiting=1)
    running = await story.admit("running", 90)
    first = story.waits("one", 50, twin=7)
    await settle()
    second = story.waits("one", 50, twin=7)
    await refusal_of(first)

    story.end(running)
    story.end(await second)
