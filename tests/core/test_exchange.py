import asyncio

import pytest

from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.requests import AttemptResult, Usage
from tests.fakes.clock import FakeClock
from tests.fakes.recorder import FakeRecorder


@pytest.fixture
def clock():
    """Time that the test moves."""
    return FakeClock()


@pytest.fixture
def recorder():
    """Where the record goes."""
    return FakeRecorder()


@pytest.fixture
def exchange(recorder, clock):
    """A request that has just arrived."""
    return Exchange(request_id="r", recorder=recorder, clock=clock)


def test_what_was_measured_is_told_from_the_arrival_on(exchange, recorder, clock):
    """Duration, overhead and time to the first token all begin when the request arrived."""
    with exchange:
        clock.advance(0.5)
        exchange.sent_at = clock()
        clock.advance(1.0)
        first_token_at = clock()
        clock.advance(2.0)
        usage = Usage(10, 4, 2)
        exchange.finish_with(
            AttemptResult(Outcome.COMPLETED, 200, usage, first_token_at=first_token_at, bytes_relayed=99)
        )

    record = recorder.only
    assert (0.5, 1.5, 3.5) == (record.overhead_s, record.ttft_s, record.duration_s)
    assert (Outcome.COMPLETED, 200, usage, 99) == (record.outcome, record.status, record.usage, record.response_bytes)


def test_what_never_happened_is_unknown_and_not_zero(exchange, recorder):
    """A refused request was sent nowhere, so it has neither overhead nor first token nor usage."""
    with exchange:
        exchange.finish(Outcome.REFUSED_NOT_FOUND, 404, "why")

    record = recorder.only
    assert (None, None, None, Usage()) == (record.overhead_s, record.ttft_s, record.backend, record.usage)
    assert "why" == record.note


def test_the_first_statement_stands(exchange, recorder):
    """What is said later about the ending changes neither outcome, status nor note."""
    with exchange:
        exchange.finish(Outcome.UPSTREAM_ERROR_RESET, 502, "first")
        exchange.finish(Outcome.INTERNAL_ERROR, 500, "second")

    record = recorder.only
    assert (Outcome.UPSTREAM_ERROR_RESET, 502, "first") == (record.outcome, record.status, record.note)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.INTERNAL_ERROR),
        (ValueError("a fault"), Outcome.INTERNAL_ERROR),
        (asyncio.CancelledError(), Outcome.CLIENT_CLOSED),
    ],
    ids=["nothing was said", "a fault", "cancelled"],
)
def test_leaving_without_a_statement_still_leaves_one_record(exchange, recorder, error, outcome):
    """Nothing is lost: a fault of ours and a client that left are told apart, and the error goes on."""
    caught = None
    try:
        with exchange:
            if error is not None:
                raise error
    except (ValueError, asyncio.CancelledError) as raised:
        caught = raised

    assert error is caught
    assert (outcome, 0) == (recorder.only.outcome, recorder.only.status)


def test_retries_are_counted_by_reason(exchange, recorder):
    """Each repeated attempt is one more under its reason."""
    with exchange:
        for reason in ("connect", "stale_connection", "connect"):
            exchange.count_retry(reason)
        exchange.finish(Outcome.COMPLETED, 200)

    assert {"connect": 2, "stale_connection": 1} == recorder.only.retries


def test_the_status_is_the_one_on_the_wire(exchange, recorder):
    """Whoever was given a stream early has its 200, whatever became of the request."""
    with exchange:
        exchange.is_open_early = True
        exchange.finish(Outcome.REFUSED_OVERLOADED, 429)

    assert (Outcome.REFUSED_OVERLOADED, 200, True) == (
        recorder.only.outcome,
        recorder.only.status,
        recorder.only.is_open_early,
    )
