"""Sessions as the agents get them."""

from random import Random

import pytest

from proxy.sim import agents
from proxy.sim.workloads import ClaudeCode, ContentKeys, GeneratedAgents


def test_generated_sessions_keep_to_the_baseline():
    """Contexts begin with the shared head, only grow, and stay below the cap."""
    for seed in range(50):
        plan = GeneratedAgents().session(Random(seed))
        sizes = [turn.prompt_tokens for turn in plan.turns]
        assert sizes == sorted(sizes)
        assert sizes[0] > plan.head_tokens == agents.SHARED_TOKENS
        assert sizes[-1] + plan.turns[-1].answer_tokens <= agents.LONGEST_CONTEXT_TOKENS


def test_recorded_sessions_keep_to_their_limits():
    """No context beyond the limit and no longer thought, sub-agents included."""
    load = ClaudeCode(longest_context_tokens=60_000, longest_think_s=30.0)
    for seed in range(200):
        plan = load.session(Random(seed), is_aged=seed % 2 == 0)
        assert plan.turns
        for part in (plan, *plan.children):
            assert all(turn.prompt_tokens + turn.answer_tokens <= 60_000 for turn in part.turns)
            assert all(turn.think_s <= 30.0 for turn in part.turns)
        assert all(child.starts_after > 0 for child in plan.children)


def test_a_limit_that_nothing_meets_is_refused():
    """Better than an endless draw from nothing."""
    with pytest.raises(ValueError, match="100 tokens"):
        ClaudeCode(longest_context_tokens=100)


def test_a_rewritten_prompt_keeps_its_beginning_only():
    """Keys up to what was kept are the same, later ones differ; the shared head always stays."""
    keys = ContentKeys(16, "head", 64)
    before = list(keys.prompt(320, 0).keys)
    keys.rewrite(160)
    after = list(keys.prompt(320, 0).keys)
    assert before[:10] == after[:10]
    assert not set(before[10:]) & set(after[10:])
    keys.rewrite(0)
    assert list(keys.prompt(320, 0).keys)[:4] == before[:4]
    assert before[:4] == list(ContentKeys(16, "head", 64).prompt(64, 0).keys)
