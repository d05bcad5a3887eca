"""Stories of requests that pass the gate and are tried again, on a loop whose time is made up."""

import asyncio
import random

import pytest

from proxy.core.backends import Backend
from proxy.core.errors import Refusal, Retry, UpstreamError
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.requests import RequestView
from proxy.dispatch import Dispatcher, Fleet
from proxy.state.health import HealthTable
from proxy.state.ledger import Ledger
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses
from tests.fakes.forwarder import WELL, FakeForwarder
from tests.fakes.recorder import FakeRecorder
from tests.waiting_story import CHAT, Story, refusal_of

pytestmark = pytest.mark.looptime

FULL = UpstreamError(Outcome.UPSTREAM_ERROR_STATUS, "it is full", retry=Retry.ELSEWHERE, is_overloaded=True)


class Served:
    """A dispatcher before the two engines of a story, both filled."""

    def __init__(self, story, *steps):
        backends = tuple(Backend(name=name, host=name, port=1, authority=name) for name in story.names)
        health = HealthTable(fall=3)
        for name in story.names:
            health.add(name)
        self.story = story
        self.forwarder = FakeForwarder(*steps)
        self.recorder = FakeRecorder()
        self.dispatcher = Dispatcher[object](
            fleet=Fleet(backends, health, ModelTable(), Ledger(), StoredResponses(ttl_s=60.0)),
            waiting_room=story.room,
            forwarder=self.forwarder,
            clock=story.clock,
            chance=random.Random(1).randrange,
            max_attempts=3,
        )

    def asks(self, session, blocks):
        """A task that serves a request."""
        return asyncio.get_running_loop().create_task(self._serve(session, blocks))

    async def _serve(self, session, blocks):
        story = self.story
        with Exchange(request_id="r", recorder=self.recorder, clock=story.clock) as exchange:
            view = RequestView("r", CHAT, "POST", "/", (), b"", story.clock(), turn=story.turn(session, blocks))
            try:
                await self.dispatcher.serve(view, object(), exchange)
            except Refusal as refusal:
                exchange.finish(refusal.outcome, refusal.status)
                raise


async def filled(**settings):
    """Two engines, and what fills each of them."""
    story = Story("a", "b", **settings)
    return story, await story.admit("one", 90, candidates=("a",)), await story.admit("two", 90, candidates=("b",))


async def test_who_is_sent_on_by_a_full_engine_keeps_its_place_in_line():
    """It waited for its turn, and another engine's queue is no reason to wait from the beginning."""
    story, one, two = await filled()
    served = Served(story, FULL, WELL)
    early = served.asks("early", 90)
    await asyncio.sleep(10)

    story.end(one)
    await asyncio.sleep(20)
    (waiting,) = story.gate.queue
    assert (waiting.candidates, waiting.stamp) == (("b",), pytest.approx(0.0))
    story.end(two)
    await early

    assert served.forwarder.asked == ["a", "b"]
    assert served.recorder.only.retries == {"overloaded": 1}
    story.room.close()


async def test_both_waits_of_a_request_count_against_its_limit():
    """Its client is patient once."""
    story, one, _ = await filled(max_hold_s=50.0)
    served = Served(story, FULL, WELL)
    task = served.asks("early", 90)
    await asyncio.sleep(30)
    story.end(one)

    refusal = await refusal_of(task)

    assert served.forwarder.asked == ["a"]
    assert refusal.status == 429
    assert story.clock() == pytest.approx(50.0, abs=0.5)
    story.room.close()
