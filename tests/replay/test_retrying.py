"""Pauses between attempts are Claude Code's."""

import pytest

from proxy.bench.retrying import RETRIES, wait_before_retry


@pytest.mark.parametrize(
    ("retries_done", "retry_after", "wait_s"),
    [
        (0, None, 0.5),
        (0, "7", 7),
        (0, "60", 60),
        (3, "1", 4),  # its own pause has grown beyond the hint
        (9, "1", 32),
        (0, "-5", 0.5),
        (0, "Wed, 21 Oct 2026 07:28:00 GMT", 0.5),
    ],
)
def test_the_larger_of_hint_and_own_pause(retries_done, retry_after, wait_s):
    """Doubling from half a second to half a minute."""
    assert wait_before_retry(retries_done, retry_after, 0.0) == wait_s


def test_clients_spread():
    """By up to a quarter, and never earlier than they were told."""
    assert wait_before_retry(0, "8", 0.999) == pytest.approx(10, abs=0.01)


@pytest.mark.parametrize(("retries_done", "retry_after"), [(RETRIES, "1"), (0, "61")])
def test_giving_up(retries_done, retry_after):
    """After ten attempts more, or when told to wait for over a minute."""
    assert wait_before_retry(retries_done, retry_after, 0.0) is None
