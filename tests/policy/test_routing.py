"""What a backend would cost, and who wins between equals."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy import routing

NAMES = [f"engine-{number}" for number in range(8)]
SEEDS = {name: routing.seed_of(name) for name in NAMES}


def best(root, weights):
    """Who wins."""
    return max(weights, key=lambda name: routing.affinity(root, SEEDS[name], weights[name]))


def roots(count):
    """Sessions."""
    return [routing.root_of("key", f"session {number}") for number in range(count)]


def test_each_gets_its_share_of_the_weights():
    """One of eight weighs as much as three others."""
    weights = dict.fromkeys(NAMES, 1.0) | {"engine-3": 3.0}
    won = Counter(best(root, weights) for root in roots(10_000))

    assert won["engine-3"] == pytest.approx(3_000, rel=0.06)
    for name in set(NAMES) - {"engine-3"}:
        assert won[name] == pytest.approx(1_000, rel=0.12)


def test_whoever_goes_moves_its_own_only():
    """And so does whoever comes."""
    weights = dict.fromkeys(NAMES, 1.0)
    left = {name: 1.0 for name in NAMES if name != "engine-5"}
    for root in roots(1_000):
        was = best(root, weights)
        assert best(root, left) == was or was == "engine-5"


def test_the_order_is_the_same_for_ever():
    """Two versions of the proxy beside each other choose alike: whatever they are, these winners may never change."""
    weights = dict.fromkeys(NAMES, 1.0)
    assert "".join(best(root, weights)[-1] for root in roots(12)) == "712313562123"


def test_a_session_is_not_another_one_whose_names_join_to_the_same():
    """The credential ends where the id begins."""
    assert routing.root_of("ab", "c") != routing.root_of("a", "bc")


@given(st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1), st.floats(1e-6, 1e12))
def test_affinity_is_a_number(root, seed, weight):
    """Above nothing, and finite."""
    assert 0.0 < routing.affinity(root, seed, weight) < float("inf")


def test_a_backend_is_busy_with_what_it_computes_and_with_those_who_run():
    """Nobody there, nothing to wait for."""
    assert routing.busy_s(0, 3_000.0, 0) == 0.0
    assert routing.busy_s(6_000, 3_000.0, 0) == 2.0
    assert routing.busy_s(6_000, 3_000.0, 4) == 2.0 + 4 * routing.RUNNING_S


def test_room_that_is_there_is_not_waited_for():
    """And what is short comes at the rate of late, once in ten minutes at the least."""
    assert routing.wait_s(-5.0, 100.0, 60_000) == 0.0
    assert routing.wait_s(5_000.0, 1_000.0, 60_000) == 5.0
    assert routing.wait_s(5_000.0, 0.0, 60_000) == 50.0


@pytest.mark.parametrize(("refill_s", "gain_s"), [(0.5, 2.0), (8.0, 2.0), (20.0, 5.0)])
def test_who_has_something_at_home_moves_for_a_clear_gain_only(refill_s, gain_s):
    """A quarter of computing it anew, and two seconds."""
    assert routing.gain_to_move_s(refill_s) == gain_s


def test_half_of_computing_it_anew_is_long_enough_to_wait():
    """From then on any place is better."""
    assert not routing.has_waited_enough(9.9, 20.0)
    assert routing.has_waited_enough(10.0, 20.0)


@pytest.mark.parametrize(
    ("inflight", "mean", "is_too_busy"), [(2, 0, False), (3, 0, True), (7, 4, False), (8, 4, True)]
)
def test_a_load_is_bounded(inflight, mean, is_too_busy):
    """1.25 times the mean and two turns."""
    assert routing.is_too_busy(inflight, mean) is is_too_busy


@pytest.mark.parametrize(
    ("sessions", "mean", "may"), [(1, 0.25, True), (2, 0.5, False), (13, 10.0, True), (14, 10.0, False)]
)
def test_a_head_gathers_so_many_and_no_more(sessions, mean, may):
    """1.25 times the mean and one: of forty on four, thirteen."""
    assert routing.may_gather(sessions, mean) is may
