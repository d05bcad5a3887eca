"""Weights of backends, over real sockets."""

from collections import Counter

from tests.net.test_models import BASE, LONG, fleet_of


async def test_a_backend_of_three_times_the_weight_gets_three_times_as_many_sessions():
    """Of newcomers, one at a time and with equal engines; its ranks share them."""
    async with fleet_of(BASE, BASE, data_parallel=2, each=({"weight": 3.0}, {"weight": 1.0})) as fleet:
        counts: Counter[str] = Counter()
        for number in range(48):
            _, backend, _ = await fleet.ask("m", text=f"{number} {LONG}", **{"x-session-id": f"s{number}"})
            counts[backend] += 1

        assert 2.0 < counts["b0"] / counts["b1"] < 4.5
