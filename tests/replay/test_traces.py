"""The packed Claude Code trace becomes plans with the prompts that were recorded."""

import gzip
import json
import random

import pytest

from proxy.bench.plans import TurnPlan
from proxy.bench.traces import TraceError, read_trace


def turn(prompt, answer, think=1.0, common=0):
    """A recorded turn."""
    return [0.0, prompt, answer, 5.0, think, "tool_use", "m", common, []]


def written(path, *sessions):
    """A trace file of these sessions."""
    lines = [json.dumps({"id": "s", "bs": 64, "tool": 600, "sys": 400, "reqs": reqs}) for reqs in sessions]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def prompts(plan):
    """The prompts that a plan leads to."""
    context = plan.shared_tokens
    for planned in plan.turns:
        context = plan.context_tokens(planned, context)
        yield context
        context += planned.answer_tokens


def test_prompts_come_out_as_recorded(tmp_path):
    """What a turn adds is what is left after the answer before it; a lost prefix is cut off."""
    reqs = [turn(2_000, 100), turn(2_600, 50, 3.0, common=31), turn(1_640, 10, common=20)]
    plan = read_trace(written(tmp_path / "t.jsonl.gz", reqs)).draw(random.Random(1))

    assert plan.shared_tokens == 1_000
    assert list(prompts(plan)) == [2_000, 2_600, 1_640]
    assert plan.turns[:2] == (TurnPlan(1_000, 100, 1.0), TurnPlan(500, 50, 3.0))
    assert plan.turns[2] == TurnPlan(360, 10, 1.0, kept_tokens=1_280)


def test_a_prompt_that_only_lost_its_last_block_has_grown(tmp_path):
    """A block that was cut short, or a reminder that moved, is no compaction."""
    reqs = [turn(2_000, 100), turn(2_300, 50, common=30)]

    assert read_trace(written(tmp_path / "t.jsonl.gz", reqs)).draw(random.Random(1)).turns[1].kept_tokens is None


def test_a_head_longer_than_the_first_prompt_is_bounded_by_it(tmp_path):
    """Something of the session's own is left."""
    plan = read_trace(written(tmp_path / "t.jsonl.gz", [turn(500, 10)])).draw(random.Random(1))

    assert (plan.shared_tokens, plan.turns[0].new_tokens) == (499, 1)


def test_sessions_without_turns_are_left_out(tmp_path):
    """They would end before they begin."""
    assert len(read_trace(written(tmp_path / "t.jsonl.gz", [], [turn(500, 10)]))) == 1


@pytest.mark.parametrize(
    "content", [b"not gzip", gzip.compress(b"{"), gzip.compress(b'{"reqs": []}'), gzip.compress(b"")]
)
def test_another_file_is_refused(tmp_path, content):
    """Said at once, with the file's name."""
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=r"t\.jsonl\.gz"):
        read_trace(path)
