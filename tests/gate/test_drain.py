import pytest

from tests.gate.random_walk import RandomWalk


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_everything_has_ended_nothing_is_left(seed):
    """Every sum and every count is exactly zero, whatever came before; `make bench-gate` walks a million steps."""
    walk = RandomWalk(seed)
    for _ in range(5_000):
        walk.step()
    assert walk.placed > 500
    walk.drain()

    assert walk.remainders() == {}
