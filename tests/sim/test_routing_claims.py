"""What routing and admission are worth over several backends: short versions of the runs in docs/benchmarks.md."""

from proxy.sim.closed_loop import ClosedLoop
from proxy.sim.presets import preset
from proxy.sim.simulate_command import ENGINES, build_policy
from proxy.sim.workloads import ClaudeCode, FanOut


def run(spec, agents, *, config=ENGINES["card-243k"], load=None, backends=4, seconds=(240, 300)):
    """What came of a rule."""
    policy = build_policy(spec, backends, config)
    return ClosedLoop(config, load or ClaudeCode(), policy, agents, seed=1).run(*seconds)


def test_forty_eight_agents_on_four_cards():
    """Nearly twice what fits. Over an hour it is 2.7 times sticky sessions; the first minutes are cheap for all."""
    gate = run("gate", 48)

    assert gate.turns_per_min > 1.6 * run("pass", 48).turns_per_min
    assert gate.turns_per_min > 1.5 * run("thunderagent", 48).turns_per_min
    assert gate.hit_ratio > 0.88
    assert gate.preemptions == 0


def test_twenty_four_agents_on_four_cards():
    """Where all but fits, it loses nothing against the best router: sticky, and told when each session ends."""
    assert run("gate", 24).turns_per_min > 0.95 * run("pass", 24).turns_per_min


def test_a_herd_that_is_held_back_is_computed_once():
    """Six sub-agents at once with a system prompt of their own, on two fast engines."""
    fleet = {"config": preset("h200-8b"), "load": FanOut(), "backends": 2, "seconds": (30, 60)}
    held, free = run("gate", 4, **fleet), run("gate:no-herd", 4, **fleet)

    assert held.facts["herd_holds"] > 20
    assert held.computed_tokens_per_turn < 0.85 * free.computed_tokens_per_turn
    assert held.turns_per_min > free.turns_per_min
