"""What the simulated model says."""

import json
from statistics import median

import jsonschema

from proxy.sim.answers import MEDIAN_TOKENS, plan_answer


def test_lengths_are_those_of_coding_agents():
    """Left alone, answers have the measured median length and a long tail."""
    lengths = [len(plan_answer(str(number).encode(), 100_000).pieces) for number in range(2_000)]
    assert abs(median(lengths) - MEDIAN_TOKENS) < 25
    assert max(lengths) > 2_000


def test_cap():
    """An answer longer than allowed is cut and says so; one that ends by itself has an end token without text."""
    cut = plan_answer(b"a", 5)
    assert (len(cut.pieces), cut.finish_reason) == (5, "length")
    whole = plan_answer(b"a", 100_000)
    assert (whole.pieces[-1], whole.finish_reason) == ("", "stop")


def test_ignoring_the_end():
    """With `ignore_eos` the answer is exactly as long as allowed."""
    assert len(plan_answer(b"a", 3_000, ignore_eos=True).pieces) == 3_000


def test_minimum():
    """An answer is not shorter than asked."""
    assert len(plan_answer(b"a", 9_000, min_tokens=5_000).pieces) == 5_000


def test_same_prompt_same_answer():
    """Answers depend on the prompt alone."""
    assert plan_answer(b"a", 900) == plan_answer(b"a", 900) != plan_answer(b"b", 900)


def test_tool_arguments_satisfy_the_schema():
    """A tool call's arguments fit what the tool requires."""
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "deep": {"type": "boolean"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "mode": {"type": "string", "enum": ["read", "write"]},
            "where": {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]},
            "unasked": {"type": "string"},
        },
        "required": ["path", "deep", "lines", "mode", "where"],
    }
    call = plan_answer(b"a", 500, tool={"function": {"name": "read", "parameters": schema}}).tool_call
    assert call
    arguments = json.loads(call.arguments)
    jsonschema.validate(arguments, schema)
    assert "unasked" not in arguments


def test_tool_call_that_does_not_fit():
    """When the cap is too low for the call, the model talks instead."""
    answer = plan_answer(b"a", 5, tool={"function": {"name": "read"}})
    assert answer.tool_call is None
    assert answer.finish_reason == "length"
