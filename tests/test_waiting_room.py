"""Stories of waiting, on a loop whose time is made up: who is woken, who is refused, who leaves."""

import asyncio
import contextlib
import gc

import pytest

from proxy.core.errors import Refusal
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.turns import StopReason, TurnEnd
from tests.fakes.recorder import FakeRecorder
from tests.waiting_story import RESPONSES, Story, refusal_of, settle

pytestmark = pytest.mark.looptime


async def test_what_fits_does_not_wait():
    """It starts without a task switch, and the record says how."""
    story = Story()
    exchange = Exchange(request_id="r", recorder=FakeRecorder(), clock=story.clock)
    placement = await story.admit("one", 40, exchange=exchange)

    assert ("new", "session", 0.0) == (exchange.admission, exchange.queue, exchange.queue_wait_s)
    story.end(placement)
    assert story.is_empty()


async def test_the_record_says_what_was_no_waiting_for_room():
    """One of a herd is let in with the head's first token; who computed it was never held, which is not zero."""
    story = Story()
    herd = {"head": 7, "head_bytes": 40_000}
    exchanges = [Exchange(request_id="r", recorder=FakeRecorder(), clock=story.clock) for _ in range(2)]
    first = await story.admit("first", 12, exchange=exchanges[0], **herd)
    waits = story.waits("second", 12, exchange=exchanges[1], **herd)
    await asyncio.sleep(0.75)
    story.gate.first_token(first, story.clock())
    story.room.pump(("a",))
    second = await waits

    assert [exchange.herd_wait_s for exchange in exchanges] == [None, pytest.approx(0.75)]
    assert exchanges[1].queue_wait_s == pytest.approx(0.75)
    for placement in (first, second):
        story.end(placement)


async def test_who_comes_starts_together_with_whom_it_finds_waiting():
    """A batch looks after all others first: the look that starts it starts them too, and each gets its own."""
    story = Story()
    running = await story.admit("running", 90)
    waiting = story.waits("waiting", 30, is_batch=True)
    await settle()
    story.gate.end(running, TurnEnd(), story.clock())

    exchange = Exchange(request_id="r", recorder=FakeRecorder(), clock=story.clock)
    later = await story.admit("later", 30, is_batch=True, exchange=exchange)
    earlier = await waiting

    assert (later.waiting.session.key.session, exchange.queue_wait_s) == ("later", 0.0)
    assert earlier.waiting.session.key.session == "waiting"
    story.end(earlier)
    story.end(later)
    assert story.is_empty()


@pytest.mark.parametrize(("part", "is_batch"), [("pump", True), ("arrival", False)])
async def test_what_the_gate_fails_on_does_not_wait_for_ever(monkeypatch, part, is_batch):
    """Nobody is there to take it out of the queue later."""
    story = Story()

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(story.gate if part == "pump" else story.gate._starts, part, fail)
    with pytest.raises(ZeroDivisionError):
        await story.admit("odd", 30, is_batch=is_batch)

    assert len(story.gate.queue) == 0


async def test_the_room_of_an_arrival_goes_back_when_the_timer_fails(monkeypatch):
    """It was placed and nobody will end it."""
    story = Story()
    running = await story.admit("running", 60)
    waiting = story.waits("waiting", 90)
    await settle()

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(story.gate, "next_event_at", fail)
    with pytest.raises(ZeroDivisionError):
        await story.admit("small", 10)
    monkeypatch.undo()

    assert len(story.gate.rooms["a"].ledger.holds) == 1
    story.end(running)
    waiting.cancel()
    await settle()
    assert story.is_empty()


async def test_whoever_waits_is_woken_by_who_ends():
    """And knows how long it waited."""
    story = Story()
    running = await story.admit("running", 90)
    exchange = Exchange(request_id="r", recorder=FakeRecorder(), clock=story.clock)
    waiting = story.waits("waiting", 50, exchange=exchange)
    await asyncio.sleep(10)
    assert not waiting.done()

    story.end(running)
    placement = await waiting

    assert 10 <= (exchange.queue_wait_s or 0.0) <= 20  # the other's lease runs a few seconds more
    story.end(placement)
    assert story.is_empty()


async def test_a_lease_that_ends_wakes_without_any_other_event():
    """Nothing runs, nothing is reported: the timer alone does it, past a lease that did not suffice too."""
    story = Story()
    story.end(await story.admit("short", 20), stop=StopReason.END_TURN)
    story.end(await story.admit("long", 60), stop=StopReason.TOOL_USE)

    placement = await asyncio.wait_for(story.admit("waiting", 75), 60)

    assert 20 <= story.clock() <= 30
    story.end(placement)
    story.room.close()


async def test_a_resident_does_not_wait_for_running_answers_to_make_room():
    """A resident's next turn, a running one, an idle one whose lease runs: the idle one's place is taken at once."""
    story = Story()
    for session in ("one", "idle"):
        story.end(await story.admit(session, 30), stop=StopReason.TOOL_USE)
    running = await story.admit("running", 20)

    placement = await asyncio.wait_for(story.admit("one", 55), 60)

    assert story.clock() == 0.0
    story.end(placement)
    story.end(running)
    story.room.close()


async def test_a_time_that_has_just_come_is_not_lost_when_something_happens_elsewhere():
    """Between the end of a lease on one backend and the timer for it, something else happens on another one."""
    story = Story("a", "b")
    story.end(await story.admit("resting", 60, candidates=("a",)), stop=StopReason.TOOL_USE)
    waiting = story.waits("waiting", 75, candidates=("a",))
    await settle()
    at = story.gate.next_event_at(story.clock())
    loop = asyncio.get_running_loop()
    while not waiting.done() and at is not None and story.clock() < 40:
        loop.call_at(at + 0.01, story.room.pump, ("b",))
        await asyncio.sleep(at + 0.03 - story.clock())
        at = story.gate.next_event_at(story.clock())

    assert waiting.done()
    story.end(await waiting)
    story.room.close()


async def test_a_full_hold_is_refused_with_a_ticket():
    """429, come back at once; who does is who it was."""
    story = Story(max_hold_s=5.0)
    running = await story.admit("running", 90)
    refusal = await refusal_of(story.waits("one", 50))

    assert (429, 1, Outcome.REFUSED_OVERLOADED) == (refusal.status, refusal.retry_after_s, refusal.outcome)
    assert story.clock() == pytest.approx(5.0, abs=0.01)
    again = story.waits("one", 50)
    await asyncio.sleep(1)
    assert [waiting.stamp for waiting in story.gate.queue] == [pytest.approx(0.0)]

    story.room.end(running, TurnEnd())
    story.end(await again)
    assert story.is_empty()


async def test_it_is_known_since_when_who_comes_for_the_first_time_waits():
    """While it does; not who comes back for its place and was told to once, nor who never keeps one."""
    story = Story(max_hold_s=5.0)
    fitting, first, again = (Exchange(request_id="r", recorder=FakeRecorder(), clock=story.clock) for _ in range(3))
    await story.admit("running", 96, exchange=fitting)
    await asyncio.sleep(1)
    task = story.waits("one", 50, exchange=first)
    await asyncio.sleep(1)
    assert fitting.waits_since is None
    assert first.waits_since == pytest.approx(1.0)

    await refusal_of(task)
    assert first.waits_since is None
    task = story.waits("one", 50, exchange=again)
    await asyncio.sleep(1)
    assert again.waits_since is None
    await refusal_of(task)

    beside = Exchange(request_id="r", recorder=FakeRecorder(), clock=story.clock)
    await story.admit("small", 3, output_limit_tokens=100)
    task = story.waits("another", 3, exchange=beside, output_limit_tokens=100)
    await asyncio.sleep(1)
    assert (beside.queue, beside.waits_since) == ("control", None)
    await refusal_of(task)


async def test_codex_is_refused_with_a_503():
    """L18: it takes a 429 for final."""
    story = Story(max_hold_s=1.0)
    await story.admit("running", 90)

    assert (await refusal_of(story.waits("one", 50, route=RESPONSES))).status == 503


async def test_a_clients_own_timeout_shortens_the_hold():
    """L24: four fifths of it."""
    story = Story(max_hold_s=100.0)
    await story.admit("running", 90)
    await refusal_of(story.waits("one", 50, patience_s=10.0))

    assert story.clock() == pytest.approx(8.0, abs=0.01)


async def test_a_resend_takes_the_place_of_its_copy():
    """The older one is answered at once, the newer one waits on."""
    story = Story()
    running = await story.admit("running", 90)
    first = story.waits("one", 50, twin=7)
    await asyncio.sleep(3)
    second = story.waits("one", 50, twin=7)

    assert (await refusal_of(first)).status == 429
    assert story.clock() == pytest.approx(3.0, abs=0.01)
    assert len(story.gate.queue) == 1
    story.end(running)
    story.end(await second)
    assert story.is_empty()


async def test_who_leaves_is_gone_at_once():
    """Its place in the queue, its future, its bytes."""
    story = Story()
    running = await story.admit("running", 90)
    waiting = story.waits("one", 50, body=b"x" * 100)
    await settle()
    waiting.cancel()
    await settle()

    assert (0, 0) == (len(story.gate.queue), story.gate.queue.body_bytes)
    assert story.gate.next_event_at(story.clock()) is None
    story.end(running)
    assert story.is_empty()


async def test_who_leaves_may_come_back_for_its_place_for_half_a_minute():
    """After that it is a newcomer."""
    story = Story()
    await story.admit("running", 90)
    for session, away_s, counts_from in (("soon", 25, 0.0), ("late", 35, 60.0)):
        waiting = story.waits(session, 50)
        await settle()
        waiting.cancel()
        await asyncio.sleep(away_s)
        again = story.waits(session, 50)
        await settle()

        assert [entry.stamp for entry in story.gate.queue] == [pytest.approx(counts_from, abs=0.1)]
        again.cancel()
        await settle()
    story.room.close()


@pytest.mark.parametrize("cancels_first", [True, False])
async def test_who_leaves_in_the_moment_of_being_placed_keeps_its_place(cancels_first):
    """It was never served."""
    story = Story()
    running = await story.admit("running", 90)
    waiting = story.waits("one", 5)
    await asyncio.sleep(1)
    if cancels_first:
        waiting.cancel()
    story.room.end(running, TurnEnd())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await story.admit("next", 90)
    again = story.waits("one", 50)
    await settle()

    assert [entry.stamp for entry in story.gate.queue] == [pytest.approx(0.0)]
    again.cancel()
    await settle()
    story.room.close()


async def test_leaving_lets_those_behind_go_on():
    """The head's reservation ends with it."""
    story = Story(max_hold_s=200.0)
    await story.admit("running", 40)
    head = story.waits("head", 90)
    await asyncio.sleep(61)
    story.gate.see_report("a", story.clock(), usage_ratio=None, preemptions=0, is_short_of_memory=False)
    small = story.waits("small", 20)
    await settle()
    head.cancel()
    await settle()

    assert small.done()


async def test_leaving_in_the_moment_of_being_placed_leaks_nothing():
    """The room was given; its owner was gone before it knew."""
    story = Story()
    running = await story.admit("running", 90)
    waiting = story.waits("one", 50)
    await settle()
    await asyncio.sleep(1)
    story.end(running)
    await asyncio.sleep(20)
    second = story.waits("two", 90)
    await settle()
    story.end(await waiting)  # places the second one, which is cancelled before it runs
    second.cancel()
    await asyncio.sleep(30)

    assert story.is_empty()
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_placed_and_cancelled_in_either_order_leaks_nothing():
    """Whichever comes first within the same moment."""
    for cancels_first in (True, False):
        story = Story()
        running = await story.admit("running", 90)
        waiting = story.waits("one", 5)
        await settle()
        assert not waiting.done()
        if cancels_first:
            waiting.cancel()
            story.room.end(running, TurnEnd())
        else:
            story.room.end(running, TurnEnd())
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert story.is_empty()
        story.room.close()


async def test_room_that_a_leaver_gives_back_goes_to_the_next():
    """One was cancelled and placed in the same moment; the other one starts, though nothing else ever happens."""
    story = Story()
    running = await story.admit("running", 90)
    leaver, other = story.waits("leaver", 80), story.waits("other", 85)
    await settle()
    leaver.cancel()
    story.room.end(running, TurnEnd())
    await settle()

    assert other.done()


async def test_the_hold_limit_in_the_moment_of_being_placed_leaks_nothing():
    """Refused and placed at once: the room goes back, and to the next."""
    story = Story(max_hold_s=5.0)
    running = await story.admit("running", 90)
    waiting = story.waits("one", 80)
    asyncio.get_running_loop().call_at(story.clock() + 5.0, story.room.end, running, TurnEnd())
    with contextlib.suppress(Refusal):
        story.end(await waiting)

    await settle()
    assert story.is_empty()


async def test_a_refused_copy_that_is_cancelled_too_is_quiet():
    """No error is left that nobody fetched."""
    story = Story()
    await story.admit("running", 90)
    first = story.waits("one", 50, twin=7)
    await settle()
    heard = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context))
    second = story.waits("one", 50, twin=7)
    asyncio.get_running_loop().call_soon(first.cancel)
    await settle()
    second.cancel()
    await settle()
    del first, second
    gc.collect()
    await settle()

    assert heard == []


async def test_a_storm_ends_with_nothing_left():
    """Two hundred sessions, half of which leave, three turns each: all are served or gone, and nothing is booked."""
    story = Story("a", "b", max_hold_s=1_000.0)
    served = []

    async def live(number):
        for turn in range(3):
            placement = await story.admit(f"s{number}", 5 + number % 17 + turn)
            try:
                await asyncio.sleep(0.1 + number % 7)
                story.room.gate.first_token(placement, story.clock())
                served.append(number)
            finally:
                story.end(placement)

    async def leave(task, after):
        await asyncio.sleep(after)
        task.cancel()

    async def report():
        while True:
            await asyncio.sleep(1)
            for name in story.names:
                story.gate.see_report(name, story.clock(), usage_ratio=None, preemptions=0, is_short_of_memory=False)
                story.room.pump((name,))

    loop = asyncio.get_running_loop()
    reports = loop.create_task(report())
    tasks = [loop.create_task(live(number)) for number in range(60)]
    leavers = [loop.create_task(leave(task, 0.5 * at)) for at, task in enumerate(tasks) if at % 2]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*leavers)
    reports.cancel()

    failed = [
        outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, asyncio.CancelledError)
    ]
    assert failed == []
    assert served
    assert story.is_empty()
    assert all(session.inflight == session.waiting == 0 for session in story.gate.sessions._sessions.values())
    story.room.close()
