"""Coding agents on the simulated H200 meet the cliff where the real ones met it."""

from proxy.sim.agents import Agents
from proxy.sim.compare import compare_agents
from proxy.sim.presets import preset


def test_the_cliff_is_where_it_was_measured():
    """Up to 8 agents keep most of their own context, from 12 on nobody does; throughput is within 15 % all along."""
    for measured, simulated in compare_agents():
        ratio = simulated.output_tokens_per_s / measured.output_tokens_per_s
        assert abs(ratio - 1) < 0.15, (measured, simulated)
        if measured.agents <= 8:
            assert simulated.own_hit_ratio > 0.5
            assert simulated.first_token_p50_s < 0.5
        else:
            assert simulated.own_hit_ratio < 0.15
            assert simulated.first_token_p50_s > 1


def test_same_seed_same_agents():
    """A run repeats by its seed."""

    def run(seed):
        return Agents(preset("h200-8b"), 6, seed=seed).run(10, 20)

    assert run(1) == run(1) != run(2)


def test_a_saturated_engine_still_preempts_rarely():
    """Thrash hides from the gauges: usage below one, and hardly any preemption, while every turn misses."""
    agents = Agents(preset("h200-8b"), 16)
    result = agents.run(60, 60)
    assert result.own_hit_ratio < 0.05
    assert agents.engine.counters.preemptions < 20
