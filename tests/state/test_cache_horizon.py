from collections import OrderedDict
from random import Random

import pytest

from proxy.state.cache_horizon import CacheHorizon

BLOCK = 16
NEVER = float("-inf")


def horizon_of(*stored, **more):
    """A horizon that was told of these blocks, each at its time."""
    horizon = CacheHorizon(**more)
    for block, at in stored:
        horizon.stored([block], BLOCK, at)
    return horizon


def test_nothing_is_gone_before_something_goes():
    """Storing alone tells nothing."""
    assert horizon_of((1, 10.0), (2, 20.0)).stored_at == NEVER


def test_a_block_that_goes_takes_along_what_is_older():
    """The engine gives away what was released longest ago."""
    horizon = horizon_of((1, 10.0), (2, 20.0), (3, 30.0))
    horizon.removed([2])
    assert horizon.stored_at == 20.0

    horizon.removed([1])
    assert horizon.stored_at == 20.0  # what was stored early may have been used late


def test_a_block_that_is_not_known_tells_nothing():
    """It was stored before anybody listened."""
    horizon = horizon_of((1, 10.0))
    horizon.removed([7, b"7"])

    assert horizon.stored_at == NEVER


def test_a_block_that_came_back_has_its_new_time():
    """It was computed again."""
    horizon = horizon_of((1, 10.0))
    horizon.removed([1])
    horizon.stored([1], BLOCK, 50.0)
    horizon.removed([1])

    assert horizon.stored_at == 50.0


def test_of_two_copies_the_older_one_counts_until_both_are_gone():
    """Which of them went is not told."""
    horizon = horizon_of((1, 10.0), (1, 50.0))
    horizon.removed([1])
    assert horizon.stored_at == 10.0
    assert len(horizon) == 1

    horizon.stored([1], BLOCK, 60.0)
    horizon.removed([1])
    horizon.removed([1])
    assert horizon.stored_at == 10.0
    assert len(horizon) == 0


def test_a_block_that_is_not_full_is_not_followed():
    """Its entry is taken back when it is full, while its request runs."""
    horizon = horizon_of((1, 10.0))
    horizon.stored([2], BLOCK - 4, 50.0)
    horizon.removed([2])

    assert horizon.stored_at == NEVER


def test_what_came_before_the_first_full_block_is_not_followed_either():
    """Which size is a full one shows when it comes."""
    horizon = CacheHorizon()
    horizon.stored([2], BLOCK - 4, 10.0)
    horizon.stored([3], BLOCK, 50.0)
    horizon.removed([2])

    assert horizon.stored_at == NEVER


def test_forgetting_leaves_nothing():
    """A cleared cache begins anew."""
    horizon = horizon_of((1, 10.0), (2, 20.0))
    horizon.removed([1])
    horizon.forget()
    horizon.removed([2])

    assert (horizon.stored_at, len(horizon)) == (NEVER, 0)


def test_memory_is_bounded_and_the_oldest_go_first():
    """What is forgotten tells nothing when it goes."""
    horizon = horizon_of(*((number, float(number)) for number in range(11)), capacity=10)
    assert len(horizon) == 5

    horizon.removed([5])
    assert horizon.stored_at == NEVER
    horizon.removed([6])
    assert horizon.stored_at == 6.0


@pytest.mark.parametrize("seed", range(20))
def test_it_never_goes_past_what_an_lru_still_holds(seed):
    """Against a cache with vLLM's order: whoever was idle since before the horizon has no block left."""
    rng, now = Random(seed), 0.0
    free: OrderedDict[tuple[str, int], None] = OrderedDict()
    idle_since: dict[str, float] = {}
    horizon, reached = CacheHorizon(), 0
    for turn in range(300):
        now += rng.random()
        session = f"s{rng.randrange(12)}"
        prompt = [(session, index) for index in range(rng.randrange(1, 12))]
        found = [block for block in prompt if block in free]
        for block in found:
            del free[block]
        for block in prompt:
            if block not in found:
                if len(free) + len(prompt) > 40 and free:
                    gone, _ = free.popitem(last=False)
                    horizon.removed([hash(gone)])
                horizon.stored([hash(block)], BLOCK, now)
        now += rng.random()
        free.update(OrderedDict.fromkeys(reversed(prompt)))
        idle_since[session] = now
        for other, since in idle_since.items():
            if since < horizon.stored_at:
                reached += 1
                assert not any(block[0] == other for block in free), f"turn {turn}: {other} is still there"
    assert reached
