import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.turns import OutputStats, StopReason
from proxy.policy.sizing import growth_tokens, lease_s, miss_cost, prompt_tokens, refill_tokens_per_s

SLOW = {"capacity_tokens": 243_000, "prefill_tokens_per_s": 2_600}


def test_a_new_prompt_is_guessed_from_its_text():
    """Four bytes a token, images at their own price."""
    assert prompt_tokens(4_000, 0, 4.0) == 1_000
    assert prompt_tokens(4_000, 1_024, 4.0) == 2_024
    assert prompt_tokens(0, 0, 4.0) == 1


def test_a_returning_prompt_is_the_counted_one_and_what_was_added():
    """Only the addition is a guess, so an error of 20 % there is nothing."""
    assert prompt_tokens(404_000, 0, 4.0, last_text_bytes=400_000, last_prompt_tokens=123_456) == 124_456


def test_a_prompt_that_shrank_is_guessed_anew():
    """After a compaction the counted size says nothing."""
    assert prompt_tokens(4_000, 0, 4.0, last_text_bytes=400_000, last_prompt_tokens=123_456) == 1_000


@given(st.integers(0, 10**8), st.integers(0, 10**5), st.floats(1.5, 8.0), st.integers(0, 10**8), st.integers(0, 10**6))
def test_an_estimate_is_at_least_one_token(text_bytes, extra, ratio, last_bytes, last_tokens):
    """Nothing is free."""
    size = prompt_tokens(text_bytes, extra, ratio, last_text_bytes=last_bytes, last_prompt_tokens=last_tokens)

    assert size >= 1


def test_the_risk_of_long_answers_is_pooled():
    """Each one's own tail would reserve far too much: the share of each falls with their number."""
    stats = OutputStats()
    shares = [growth_tokens(n, stats) / n for n in (1, 4, 16, 64)]

    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 3_450
    assert growth_tokens(0, stats) == 0


@pytest.mark.parametrize(
    ("stop", "seconds"), [(StopReason.TOOL_USE, 65.4), (StopReason.OTHER, 65.4), (StopReason.END_TURN, 9.3)]
)
def test_a_lease_follows_how_the_turn_ended(stop, seconds):
    """After a tool call an agent is back soon; after an answer a person thinks."""
    assert lease_s(stop, **SLOW) == pytest.approx(seconds, abs=0.1)


def test_a_lease_has_bounds():
    """However fast or slow the engine computes."""
    assert lease_s(StopReason.TOOL_USE, 10**6, 1.0) == 300
    assert lease_s(StopReason.TOOL_USE, 1_000, 10**6) == 15
    assert lease_s(StopReason.END_TURN, 10**6, 1.0) == 30
    assert lease_s(StopReason.END_TURN, 1_000, 10**6) == 5


def test_a_lease_is_shortened_by_what_was_seen():
    """Who is away for longer than nineteen of twenty has probably finished."""
    assert 10.0 <= lease_s(StopReason.TOOL_USE, **SLOW, usual_gap_s=10.0) <= 15.0
    assert lease_s(StopReason.TOOL_USE, **SLOW, usual_gap_s=0.1) == 2.0
    assert lease_s(StopReason.TOOL_USE, **SLOW, usual_gap_s=500.0) == pytest.approx(65.4, abs=0.1)


@given(st.sampled_from(StopReason), st.floats(1e3, 1e8), st.floats(1.0, 1e6), st.none() | st.floats(0.0, 1e4))
def test_a_lease_is_never_shorter_than_a_moment_nor_longer_than_five_minutes(stop, capacity, rate, gap):
    """Whatever was learned."""
    assert 2.0 <= lease_s(stop, capacity, rate, gap) <= 300.0


@pytest.mark.parametrize(("ratio", "cost"), [(None, 1.0), (0.0, 1.0), (0.4, 0.8), (1.0, 0.5)])
def test_what_comes_from_outside_costs_half(ratio, cost):
    """And unknown is never free."""
    assert miss_cost(ratio) == pytest.approx(cost)
    assert refill_tokens_per_s(2_600.0, ratio) == pytest.approx(2_600.0 / cost)


def test_a_lease_is_half_as_long_where_everything_comes_back_from_outside():
    """Losing a session costs half as much then, so holding it is worth half as long."""
    rate = refill_tokens_per_s(SLOW["prefill_tokens_per_s"], 1.0)

    assert lease_s(StopReason.TOOL_USE, SLOW["capacity_tokens"], rate) == pytest.approx(65.4 / 2, abs=0.1)
