"""The built-in kinds of sessions have the sizes they are named after."""

import random
from statistics import mean, median

import pytest

from proxy.bench.plans import Limits, Workload
from proxy.bench.shapes import PRESETS, LogNormal


def sessions(name, count=400, seed=1):
    """Agents' first sessions, unscaled."""
    workload = Workload(PRESETS[name], seed=seed, limits=Limits(longest_think_s=1e9))
    return [workload.session(agent, 0) for agent in range(count)]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_seed_repeats(name):
    """The same agents do the same work against every URL."""
    assert sessions(name, 20) == sessions(name, 20) != sessions(name, 20, seed=2)


def test_agents_are_those_of_the_gpu_baseline():
    """Mean prompt 25,800 tokens by plan; never beyond 45,000."""
    prompts, answers, ends = [], [], []
    for plan in sessions("agents"):
        context = plan.shared_tokens
        for turn in plan.turns:
            context = plan.context_tokens(turn, context)
            prompts.append(context)
            answers.append(turn.answer_tokens)
            context += turn.answer_tokens
        ends.append(context)

    assert mean(prompts) == pytest.approx(25_800, rel=0.05)
    assert mean(answers) == pytest.approx(350, rel=0.05)
    assert max(ends) <= 45_000
    assert mean(len(plan.turns) for plan in sessions("agents")) == pytest.approx(10, abs=0.4)


def test_claude_code_is_long_tailed():
    """Medians and means as in the public traces."""
    plans = sessions("claude-code")
    later = [turn for plan in plans for turn in plan.turns[1:] if turn.kept_tokens is None]

    assert median(plan.shared_tokens + plan.turns[0].new_tokens for plan in plans) == pytest.approx(24_500, rel=0.15)
    assert median(turn.answer_tokens for turn in later) == pytest.approx(216, rel=0.1)
    assert mean(turn.new_tokens for turn in later) == pytest.approx(1_200, rel=0.15)
    assert median(len(plan.turns) for plan in plans) == pytest.approx(45, rel=0.2)
    assert mean(turn.think_s >= 10 for turn in later) == pytest.approx(0.19, abs=0.03)


def test_log_normal_keeps_its_quantiles_and_its_ends():
    """Median and p90 are what it is made of."""
    rng = random.Random(1)
    drawn = sorted(LogNormal(100, 1_000, 5, 4_000).draw(rng) for _ in range(4_000))

    assert drawn[2_000] == pytest.approx(100, rel=0.1)
    assert drawn[3_600] == pytest.approx(1_000, rel=0.12)
    assert (drawn[0], drawn[-1]) == (5, 4_000)
