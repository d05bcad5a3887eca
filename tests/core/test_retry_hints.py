from collections import Counter

import pytest

from proxy.core.retry_hints import hint_s

IDS = [f"{number:032x}" for number in range(3_000)]


@pytest.mark.parametrize("seconds", [-5, 0, 0.2, 1])
def test_at_once_stays_at_once(seconds):
    """One second is the least that a client takes for a wait."""
    assert {hint_s(seconds, one) for one in IDS} == {1}


def test_l17_two_seconds_are_spread_over_three():
    """Clients that were refused together do not come back together."""
    counts = Counter(hint_s(2, one) for one in IDS)

    assert set(counts) == {1, 2, 3}
    assert min(counts.values()) > 0.25 * len(IDS)


def test_l17_a_longer_wait_is_moved_by_a_fifth():
    """Either way, and no further."""
    hints = {hint_s(30, one) for one in IDS}

    assert (min(hints), max(hints)) == (24, 36)


@pytest.mark.parametrize("seconds", [1.5, 2, 7.3, 59, 60, 61, 3_600, 1e9])
def test_l15_never_beyond_what_claude_code_waits(seconds):
    """Whole seconds from 1 to 60, whatever the engine or the queue would say."""
    hints = [hint_s(seconds, one) for one in IDS]

    assert all(isinstance(hint, int) for hint in hints)
    assert 1 <= min(hints) <= max(hints) <= 60


def test_one_request_gets_one_answer():
    """Chance comes from its id alone."""
    assert hint_s(30, "a") == hint_s(30, "a")
