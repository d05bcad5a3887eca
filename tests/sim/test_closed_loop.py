"""Agents in a closed loop before the product's gate and before what it is compared with."""

from dataclasses import replace

import pytest

from proxy.sim.agents import Agents
from proxy.sim.closed_loop import ClosedLoop
from proxy.sim.presets import preset
from proxy.sim.simulate_command import ENGINES, build_policy
from proxy.sim.trouble import Trouble
from proxy.sim.workloads import ClaudeCode, GeneratedAgents

H200 = preset("h200-8b")
CARD = ENGINES["card-243k"]


def loop(spec, agents, *, config=H200, load=None, seed=1, backends=1, capacity_error=1.0, **trouble):
    """A closed loop ready to run."""
    policy = build_policy(spec, backends, config, capacity_error=capacity_error)
    return ClosedLoop(config, load or GeneratedAgents(), policy, agents, seed=seed, trouble=Trouble(**trouble))


def test_without_a_proxy_it_is_the_measured_baseline():
    """The same engine and load as in `agents`, which is held to the measurements: as close as two draws are."""
    mine = loop("pass", 16).run(60, 90)
    theirs = Agents(H200, 16).run(60, 90)
    assert mine.tokens_per_s == pytest.approx(theirs.output_tokens_per_s, rel=0.15)
    assert mine.first_token_s[0] == pytest.approx(theirs.first_token_p50_s, rel=0.2)
    assert mine.own_hit_ratio < 0.05


def test_a_run_repeats_by_its_seed():
    """Bit for bit, the gate included."""

    def run(seed):
        return loop("gate", 10, seed=seed).run(0, 15)

    assert run(1) == run(1) != run(2)


def test_the_gate_keeps_the_engine_off_both_cliffs():
    """Twice the agents that fit: own context found, no preemption, no queue in the engine; a turn cap cannot."""
    gate = loop("gate", 16).run(40, 60)
    capped = loop("turn-cap:8", 16).run(40, 60)
    assert gate.own_hit_ratio > 0.6
    assert gate.preemptions == 0
    assert gate.waiting_mean < 0.5
    assert gate.first_token_s[0] < 0.5
    assert capped.own_hit_ratio < 0.1
    assert gate.good_turns_per_min > 3 * capped.good_turns_per_min


def test_recorded_sessions_at_twice_what_fits():
    """On the Claude Code recordings returning turns find their prefix, and more turns get done; minutes are short."""
    load = ClaudeCode()
    gate = loop("gate", 16, config=CARD, load=load).run(240, 480)
    passed = loop("pass", 16, config=CARD, load=load).run(240, 480)
    assert gate.hit_ratio > 0.8
    assert passed.hit_ratio < 0.6
    assert gate.first_token_s[0] < 2
    assert passed.first_token_s[0] > 20
    assert gate.turns_per_min > 1.2 * passed.turns_per_min
    assert gate.preemptions == 0


@pytest.mark.parametrize(
    "spec",
    ["turn-cap:3", "kv-gate", "thunderagent", "concur", "session-cap:4", "working-set:90000", "round-robin"],
)
def test_every_baseline_serves_everybody(spec):
    """No agent is forgotten, on two backends."""
    result = loop(spec, 8, backends=2).run(0, 20)
    assert result.fewest_turns > 0


def test_a_working_set_cap_holds():
    """One head of 12,000 and at least as much a session: five fit in 80,000 when they begin, never more."""
    capped = loop("working-set:80000", 8)
    capped.run(0, 60)
    live = capped._policy._own_tokens[0]
    assert 1 < len(live) <= 5
    assert set(live) == set(capped._policy._homes)


def test_a_turn_cap_holds():
    """Never more in the engine than the cap."""
    capped = loop("turn-cap:3", 8)
    result = capped.run(0, 10)
    assert result.usage_mean > 0
    assert capped._policy.inflight[0] <= 3
    assert capped._backends[0].engine.running <= 3


def test_a_refused_client_keeps_its_ticket_and_comes_back():
    """Holds end at four minutes; the turn goes on waiting under its first arrival."""
    result = loop("gate", 24, config=CARD, load=ClaudeCode()).run(0, 720)
    assert result.refusals > 0
    assert result.facts["tickets_redeemed"] > 0
    assert result.hold_max_s > 240


def test_a_restart_is_lived_through():
    """The engine loses everything once: nothing leaks, work goes on."""
    run = loop("gate", 12, restart_at_s=20.0)
    result = run.run(0, 60)
    assert result.facts["restarts"] == 1
    assert result.turns_per_min > 20
    room = run._policy.gate.rooms["engine-0"]
    assert len(room.ledger.holds) == run._policy.inflight[0] == len(run._backends[0].turns)


def test_trouble_of_every_kind_at_once():
    """Wrong sizes, lost scrapes, sessions left and a burst: agents still get turns, and the ledger adds up."""
    run = loop(
        "gate",
        8,
        capacity_error=1.4,
        token_error=0.2,
        poll_interval_s=2.0,
        dropped_polls=0.3,
        abandoned=0.3,
        burst=20,
        burst_at_s=20.0,
    )
    result = run.run(10, 50)
    assert result.turns_per_min > 10
    assert len(run._policy.gate.rooms["engine-0"].ledger.holds) == run._policy.inflight[0]


def test_sub_agents_run_while_their_parent_waits():
    """A parent's next turn comes after all its sub-agents have ended, and nobody is stuck."""
    load = ClaudeCode()
    load._threads = [thread for thread in load._threads if thread.children]
    run = loop("gate", 6, config=replace(CARD, num_gpu_blocks=1_900, max_model_len=65_536), load=load)
    assert any(thread.children for thread in load._threads)
    result = run.run(0, 900)
    assert result.fewest_turns > 0
    assert result.oldest_pending_s < 1_200
