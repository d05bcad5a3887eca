"""Stories of backends that lack a route or a model, without sockets and without time."""

import pytest

from proxy.core.errors import Retry, RouteMissing, UpstreamError
from proxy.core.outcomes import Outcome
from proxy.state.health import Probe
from tests.fakes.forwarder import WELL, FakeForwarder
from tests.test_dispatch import Story

NO_ROUTE = UpstreamError(Outcome.BACKEND_REJECTED, "no route", retry=Retry.ELSEWHERE, is_without_route=True)


def lacking(*names):
    """A forwarder whose backends of these names have no such route."""

    async def step(backend, _exchange):
        if backend.name in names:
            raise NO_ROUTE
        return WELL

    return FakeForwarder(step)


async def test_l42_a_backend_without_the_route_is_asked_once():
    """The request goes on to one that has it, and so do all after it."""
    story = Story(lacking("a", "b"), names="abc")

    for _ in range(20):
        assert await story.serve() is None

    assert [1, 1, 20] == [story.forwarder.asked.count(name) for name in "abc"]
    assert {Outcome.COMPLETED} == {record.outcome for record in story.recorder.records}
    assert 2 == sum(record.retries.get("no_route", 0) for record in story.recorder.records)
    assert story.holds_nothing()


async def test_l42_more_backends_without_it_than_attempts_are_no_hindrance():
    """Nothing was begun by any of them."""
    story = Story(lacking("a", "b", "c", "d"), names="abcde", max_attempts=1)

    for _ in range(10):
        assert await story.serve() is None

    assert "e" in story.forwarder.asked


async def test_l42_when_none_has_it_the_client_is_told_and_nobody_is_asked_again():
    """An error that no retry mends, and no 404 (L26)."""
    told = []
    story = Story(lacking("a", "b"))
    story.dispatcher._on_route_missing = lambda *names: told.append(names)

    refusals = [await story.serve() for _ in range(3)]

    assert sorted(story.forwarder.asked) == ["a", "b"]
    assert all(isinstance(refusal, RouteMissing) for refusal in refusals)
    assert {(refusal.status, refusal.outcome) for refusal in refusals if refusal} == {(400, Outcome.REFUSED_NOT_FOUND)}
    assert sorted(told) == [("a", "chat_completions"), ("b", "chat_completions")]
    assert story.holds_nothing()


async def test_l42_a_restart_is_another_chance():
    """What comes back may be another version."""
    story = Story(lacking("a"), names="a")
    await story.serve()
    story.dispatcher._fleet.route_gaps.forget("a")
    await story.serve()

    assert ["a", "a"] == story.forwarder.asked


async def test_l42_one_that_may_have_it_and_is_down_is_worth_another_try():
    """503 with Retry-After, not the refusal that ends the matter."""
    story = Story(lacking("a"))
    story.health.on_probe("b", Probe.DOWN)

    refusal = await story.serve()

    assert refusal is not None
    assert (Outcome.REFUSED_NO_BACKEND, 503, 2) == (refusal.outcome, refusal.status, refusal.retry_after_s)


async def test_l42_who_serves_another_model_is_no_way_out():
    """It would only say that it does not know the model."""
    story = Story(lacking("a"))
    story.models.update("a", [{"id": "m"}])
    story.models.update("b", [{"id": "other"}])

    refusal = await story.serve(model="m")

    assert isinstance(refusal, RouteMissing)
    assert ["a"] == story.forwarder.asked


async def test_l44_an_unknown_model_is_refused_without_asking_anybody():
    """Where every backend has said what it serves, and the setting says so."""
    story = Story()
    story.dispatcher._refuses_unknown_models = True
    for name in story.names:
        story.models.update(name, [{"id": "m"}])

    refusal = await story.serve(model="x")

    assert refusal is not None
    assert (404, Outcome.REFUSED_NOT_FOUND) == (refusal.status, refusal.outcome)
    assert "There is: m." in refusal.message
    assert [] == story.forwarder.asked


@pytest.mark.parametrize("refuses", [False, True])
async def test_l44_an_unknown_model_is_asked_for_where_somebody_may_know_it(refuses):
    """Switched off, or a backend that has not listed its models."""
    story = Story()
    story.dispatcher._refuses_unknown_models = refuses
    story.models.update("a", [{"id": "m"}])
    if not refuses:
        story.models.update("b", [{"id": "m"}])

    assert await story.serve(model="x") is None
    assert len(story.forwarder.asked) == 1


async def test_a_model_whose_backends_are_down_is_not_unknown():
    """An engine of other models would say that it does not exist, and no client would come back."""
    story = Story()
    story.models.update("a", [{"id": "m"}])
    story.models.update("b", [{"id": "other"}])
    story.health.on_probe("a", Probe.DOWN)

    refusal = await story.serve(model="m")

    assert refusal is not None
    assert (Outcome.REFUSED_NO_BACKEND, 503, 2) == (refusal.outcome, refusal.status, refusal.retry_after_s)
    assert [] == story.forwarder.asked
