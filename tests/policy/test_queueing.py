import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.queueing import charge, hold_limit_s, retry_after_s, score, slice_s


def test_small_ones_go_first_and_waiting_makes_small():
    """A whale that has waited long enough is not overtaken by what has just come."""
    assert score(1_000, 0.0) < score(10_000, 0.0)
    assert score(100_000, 3_000.0) < score(1_000, 0.0)
    assert score(1_000, -5.0) == score(1_000, 0.0)


@pytest.mark.parametrize(
    ("patience_s", "configured_s", "hold_s"),
    [
        (None, 240.0, 240.0),
        (600.0, 240.0, 240.0),
        (100.0, 240.0, 80.0),
        (100.0, 20.0, 20.0),
        (1.0, 240.0, 0.8),
    ],
)
def test_a_hold_ends_before_its_client_would(patience_s, configured_s, hold_s):
    """L24: four fifths of what the client says it bears, and never more than was configured."""
    assert hold_s == hold_limit_s(patience_s, configured_s)


@given(st.floats(-10.0, 1e9), st.floats(0.0, 1.0, exclude_max=True))
def test_retry_after_is_a_whole_number_from_1_to_60(wait_s, spread):
    """L15: at 61 Claude Code gives up."""
    hint = retry_after_s(wait_s, spread)

    assert isinstance(hint, int)
    assert 1 <= hint <= 60


def test_refused_clients_come_back_spread_out():
    """L17: fifty of them do not return in the same second."""
    hints = [retry_after_s(80.0, spread / 50) for spread in range(50)]

    assert (32, 48) == (min(hints), max(hints))
    assert len(set(hints)) > 10


@pytest.mark.parametrize(
    ("residents", "waiting", "seconds"), [(7, 7, 900.0), (7, 14, 450.0), (1, 100, 60.0), (7, 0, 6_300.0), (0, 3, 60.0)]
)
def test_a_slice_shrinks_with_who_waits(residents, waiting, seconds):
    """So that nobody waits much longer than the target; never under a minute."""
    assert seconds == slice_s(900.0, residents, waiting)


def test_idle_room_is_charged():
    """Else a key with many large contexts that compute nothing would be free."""
    assert charge(100, 10, 0, 0.0) == 120.0
    assert charge(0, 0, 200_000, 60.0) == 200_000.0
