"""Stories of one request's life, without sockets and without time."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from proxy.core.backends import Backend
from proxy.core.errors import Refusal, Retry, UpstreamError
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.requests import AttemptResult, RequestView, Route
from proxy.dispatch import Dispatcher, Fleet
from proxy.state.health import HealthTable, Probe
from proxy.state.ledger import Ledger
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses
from tests.fakes.clock import FakeClock
from tests.fakes.forwarder import WELL, FakeForwarder
from tests.fakes.recorder import FakeRecorder

CHAT = Route("chat_completions", generates=True)


class WatchedLedger(Ledger):
    """Keeps every reservation that was ever taken, to see how it was closed."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def reserve(self, backend):
        """Take a place and remember it."""
        reservation = super().reserve(backend)
        self.taken.append(reservation)
        return reservation

    @property
    def endings(self):
        """How each reservation was closed, in the order they were taken."""
        return [reservation.outcome for reservation in self.taken]


@dataclass
class Story:
    """A dispatcher over fakes, and what came of it."""

    forwarder: FakeForwarder = field(default_factory=FakeForwarder)
    names: Sequence[str] = ("a", "b")
    max_attempts: int = 3
    clock: FakeClock = field(default_factory=FakeClock)
    recorder: FakeRecorder = field(default_factory=FakeRecorder)

    def __post_init__(self):
        """Wire it as the composition root does."""
        backends = tuple(Backend(name=name, host=name, port=1, authority=name) for name in self.names)
        self.ledger = WatchedLedger()
        self.health = HealthTable(fall=3)
        for name in self.names:
            self.health.add(name)
        self.models = ModelTable()
        self.stored = StoredResponses(ttl_s=60.0)
        self.dispatcher = Dispatcher[object](
            fleet=Fleet(backends, self.health, self.models, self.ledger, self.stored),
            forwarder=self.forwarder,
            clock=self.clock,
            chance=random.Random(1).randrange,
            max_attempts=self.max_attempts,
        )

    async def serve(self, *, model: str | None = None, response_id: str | None = None) -> Refusal | None:
        """One request from its first byte to its record, as the server does it; the refusal if there was one."""
        with Exchange(request_id="r", recorder=self.recorder, clock=self.clock) as exchange:
            view = RequestView(
                "r", CHAT, "POST", "/", (), b"", exchange.arrived_at, model=model, response_id=response_id
            )
            try:
                await self.dispatcher.serve(view, object(), exchange)
            except Refusal as refusal:
                exchange.finish(refusal.outcome, refusal.status, str(refusal))
                return refusal
        return None

    def holds_nothing(self) -> bool:
        """Whether every place is free again."""
        return self.ledger.total_inflight == 0


def failure(outcome=Outcome.UPSTREAM_ERROR_CONNECT, retry=Retry.ELSEWHERE, *, is_refused=False):
    """What an attempt raises when nothing has reached the client."""
    return UpstreamError(outcome, "it failed", retry=retry, is_refused=is_refused)


REFUSED = failure(is_refused=True)
FULL = UpstreamError(Outcome.UPSTREAM_ERROR_STATUS, "it is full", retry=Retry.ELSEWHERE, is_overloaded=True)
TIMED_OUT = failure()


async def test_success_closes_its_reservation_with_the_result_and_leaves_one_record():
    """A request that went well holds nothing afterwards and is written once, with its backend."""
    story = Story(FakeForwarder(AttemptResult(Outcome.COMPLETED, 200, bytes_relayed=7)))

    assert await story.serve() is None

    assert [Outcome.COMPLETED] == story.ledger.endings
    assert story.holds_nothing()
    record = story.recorder.only
    assert (Outcome.COMPLETED, 200, 7) == (record.outcome, record.status, record.response_bytes)
    assert [story.recorder.only.backend] == story.forwarder.asked


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.UPSTREAM_ERROR_CONNECT, 503),
        (Outcome.UPSTREAM_ERROR_RESET, 502),
        (Outcome.UPSTREAM_ERROR_PROTOCOL, 502),
        (Outcome.UPSTREAM_ERROR_TIMEOUT, 504),
    ],
)
async def test_a_failure_that_may_not_be_repeated_is_one_attempt_and_one_refusal(outcome, status):
    """Once something was sent nobody else is asked, and the status says what kind of failure it was."""
    story = Story(FakeForwarder(failure(outcome, Retry.NEVER)))

    refusal = await story.serve()

    assert refusal is not None
    assert (outcome, status) == (refusal.outcome, refusal.status)
    assert (2 if status == 503 else None) == refusal.retry_after_s
    assert [outcome] == story.ledger.endings
    assert story.holds_nothing()
    record = story.recorder.only
    assert (outcome, status, {}) == (record.outcome, record.status, record.retries)


async def test_a_request_cancelled_in_its_attempt_gives_its_place_back():
    """L66: whoever cancels, the reservation closes as aborted and the one record says that the client left."""
    started = asyncio.Event()

    async def never(_backend, _exchange):
        started.set()
        await asyncio.Event().wait()
        return WELL

    story = Story(FakeForwarder(never))
    task = asyncio.get_running_loop().create_task(story.serve())
    await started.wait()
    assert story.ledger.total_inflight == 1

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [Outcome.ABORTED] == story.ledger.endings
    assert story.holds_nothing()
    assert story.recorder.only.outcome is Outcome.CLIENT_CLOSED


async def test_what_the_forwarder_said_before_it_was_cancelled_is_the_ending():
    """The forwarder knows how far the answer had come; its statement is the first and stands."""

    async def cut_short(_backend, exchange):
        exchange.finish_with(AttemptResult(Outcome.CLIENT_STALLED, 200, bytes_relayed=9))
        raise asyncio.CancelledError

    story = Story(FakeForwarder(cut_short))

    with pytest.raises(asyncio.CancelledError):
        await story.serve()

    assert (Outcome.CLIENT_STALLED, 9) == (story.recorder.only.outcome, story.recorder.only.response_bytes)
    assert story.holds_nothing()


async def test_an_error_that_nobody_expected_gives_its_place_back():
    """A fault of ours leaks no place, and is recorded as one."""
    story = Story(FakeForwarder(KeyError("ours")))

    with pytest.raises(KeyError):
        await story.serve()

    assert [Outcome.ABORTED] == story.ledger.endings
    assert story.holds_nothing()
    assert story.recorder.only.outcome is Outcome.INTERNAL_ERROR


async def test_a_backend_that_was_not_reached_is_left_for_another_one():
    """Nothing was sent, so the other backend is asked, each reservation has its own ending, the record is one."""
    story = Story(FakeForwarder(TIMED_OUT, WELL))

    assert await story.serve() is None

    assert {"a", "b"} == set(story.forwarder.asked)
    assert [Outcome.UPSTREAM_ERROR_CONNECT, Outcome.COMPLETED] == story.ledger.endings
    assert story.holds_nothing()
    record = story.recorder.only
    assert (Outcome.COMPLETED, {"connect": 1}) == (record.outcome, record.retries)
    assert story.forwarder.asked[-1] == record.backend


async def test_a_reservation_is_closed_before_the_next_one_is_taken():
    """A request that moves on holds one place at a time."""
    held = []

    async def look(_backend, _exchange):
        held.append(story.ledger.total_inflight)
        raise TIMED_OUT

    story = Story(FakeForwarder(look), names="abc")

    await story.serve()

    assert [1, 1, 1] == held


@pytest.mark.parametrize(("max_attempts", "asked"), [(1, 1), (2, 2), (3, 3), (10, 5)])
async def test_attempts_end_at_the_limit_or_with_the_last_backend(max_attempts, asked):
    """No backend is asked twice, and never more of them than allowed."""
    story = Story(FakeForwarder(TIMED_OUT), names="abcde", max_attempts=max_attempts)

    refusal = await story.serve()

    assert refusal is not None
    assert (asked, asked) == (len(story.forwarder.asked), len(set(story.forwarder.asked)))
    assert (503, Outcome.UPSTREAM_ERROR_CONNECT) == (refusal.status, refusal.outcome)
    assert ({"connect": asked - 1} if asked > 1 else {}) == story.recorder.only.retries
    assert story.holds_nothing()


async def test_slowness_does_not_put_a_lone_backend_out():
    """L55: no connection in time proves nothing; the next request is tried there again."""
    story = Story(FakeForwarder(TIMED_OUT), names="a")

    for _ in range(5):
        await story.serve()

    assert ["a"] * 5 == story.forwarder.asked
    assert story.health.is_up("a")


async def test_a_refused_connection_puts_a_backend_out_until_a_probe_succeeds():
    """Nobody listens there: the next request is not sent into it, and a good probe brings it back."""
    story = Story(FakeForwarder(REFUSED, WELL), names="a")

    first, second = await story.serve(), await story.serve()
    story.health.on_probe("a", Probe.OK)
    third = await story.serve()

    assert first is not None
    assert second is not None
    assert [Outcome.UPSTREAM_ERROR_CONNECT, Outcome.REFUSED_NO_BACKEND] == [first.outcome, second.outcome]
    assert third is None
    assert ["a", "a"] == story.forwarder.asked


async def test_a_backend_without_room_is_left_for_another_one_once():
    """It has not begun; the second one's word, whatever it is, is the answer."""
    story = Story(FakeForwarder(FULL, WELL), names="abc")

    assert await story.serve() is None

    assert len(set(story.forwarder.asked)) == 2
    assert [True, False] == story.forwarder.could_move
    assert {"overloaded": 1} == story.recorder.only.retries
    assert [Outcome.UPSTREAM_ERROR_STATUS, Outcome.COMPLETED] == story.ledger.endings
    assert all(story.health.is_up(name) for name in "abc")


@pytest.mark.parametrize(("names", "max_attempts"), [("a", 3), ("ab", 1)])
async def test_with_nobody_else_a_full_backends_answer_is_passed_on(names, max_attempts):
    """The forwarder is told so before it throws the answer away."""
    story = Story(names=names, max_attempts=max_attempts)
    await story.serve()

    assert [False] == story.forwarder.could_move


async def test_a_full_backend_is_not_left_for_one_that_cannot_serve():
    """Not for one that is down or lists other models, and not from where the response is stored: that ends in a 404."""
    story = Story()
    story.models.update("a", [{"id": "m"}])
    story.models.update("b", [{"id": "other"}])
    await story.serve(model="m")
    story.stored.remember("resp_1", "a", story.clock())
    await story.serve(response_id="resp_1")
    story.health.on_probe("b", Probe.DOWN)
    await story.serve()

    assert ["a"] * 3 == story.forwarder.asked
    assert [False] * 3 == story.forwarder.could_move


async def test_a_full_backend_whose_only_neighbour_goes_down_is_a_503():
    """In the moment between its answer and the next attempt."""

    async def full(_backend, _exchange):
        for name in story.names:
            story.health.on_probe(name, Probe.DOWN)
        raise FULL

    story = Story(FakeForwarder(full))
    refusal = await story.serve()

    assert refusal is not None
    assert (503, 2) == (refusal.status, refusal.retry_after_s)


async def test_with_every_backend_down_nobody_is_asked():
    """Row 100: a 503 with Retry-After at once, one record, no reservation."""
    story = Story()
    for name in story.names:
        story.health.on_probe(name, Probe.DOWN)

    refusal = await story.serve()

    assert refusal is not None
    assert (Outcome.REFUSED_NO_BACKEND, 503, 2) == (refusal.outcome, refusal.status, refusal.retry_after_s)
    assert ([], []) == (story.forwarder.asked, story.ledger.endings)
    assert (Outcome.REFUSED_NO_BACKEND, None) == (story.recorder.only.outcome, story.recorder.only.backend)


async def test_only_backends_that_are_up_are_asked():
    """A backend that is out gets nothing, however idle it is."""
    story = Story()
    story.health.on_probe("a", Probe.DOWN)

    for _ in range(5):
        await story.serve()

    assert ["b"] * 5 == story.forwarder.asked


async def test_a_model_is_asked_where_it_is_served():
    """A backend that lists other models is passed over; the label is the model's own name."""
    story = Story(names="ab")
    story.models.update("a", [{"id": "small"}])
    story.models.update("b", [{"id": "large"}])

    for _ in range(5):
        await story.serve(model="large")

    assert ["b"] * 5 == story.forwarder.asked
    assert {"large"} == {record.model for record in story.recorder.records}


async def test_a_model_that_nobody_lists_is_asked_all_the_same():
    """The engine's own 404 reaches the client; the metric label stays closed."""
    story = Story()
    for name in story.names:
        story.models.update(name, [{"id": "m"}])

    assert await story.serve(model="x" * 1_000) is None

    assert len(story.forwarder.asked) == 1
    assert story.recorder.only.model == "other"


async def test_a_backend_whose_models_are_unknown_may_be_asked():
    """What was never listed is no reason to pass a backend over."""
    story = Story()
    story.models.update("a", [{"id": "other"}])

    for _ in range(5):
        await story.serve(model="m")

    assert ["b"] * 5 == story.forwarder.asked


async def test_a_follow_up_goes_where_its_response_is_stored():
    """L62: busy or not, only the backend that answered with that id can go on from it."""
    made = AttemptResult(Outcome.COMPLETED, 200, response_id="resp_1")
    story = Story(FakeForwarder(made, WELL), names="abcd")
    await story.serve()
    home = story.forwarder.asked[0]
    with story.ledger.reserve(Backend(name=home, host=home, port=1, authority=home)):
        for _ in range(5):
            await story.serve(response_id="resp_1")

    assert [home] * 6 == story.forwarder.asked


async def test_a_follow_up_is_asked_elsewhere_when_its_backend_is_out_or_it_is_forgotten():
    """An engine's own 404 is a better answer than none."""
    story = Story()
    story.stored.remember("resp_1", "a", story.clock())
    story.health.on_probe("a", Probe.DOWN)
    await story.serve(response_id="resp_1")
    story.health.on_probe("a", Probe.OK)
    story.clock.advance(61)
    with story.ledger.reserve(Backend(name="a", host="a", port=1, authority="a")):
        await story.serve(response_id="resp_1")

    assert ["b", "b"] == story.forwarder.asked


async def test_nothing_runs_between_looking_and_reserving():
    """A hundred requests at once are spread fifty to fifty, and counted before the first attempt begins."""
    seen: list[int] = []
    release = asyncio.Event()

    async def wait(_backend, _exchange):
        seen.append(story.ledger.total_inflight)
        await release.wait()
        return WELL

    story = Story(FakeForwarder(wait))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(story.serve())
        while len(story.forwarder.asked) < 100:  # noqa: ASYNC110 - the forwarder's own list
            await asyncio.sleep(0)
        assert {"a": 50, "b": 50} == Counter(story.forwarder.asked)
        assert list(range(1, 101)) == seen
        assert (50, 50) == (story.ledger.inflight("a"), story.ledger.inflight("b"))
        release.set()

    assert story.holds_nothing()
    assert len(story.recorder.records) == 100
