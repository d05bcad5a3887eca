"""The packaged recordings, and how packed ones are read."""

import gzip
import json

import pytest

from proxy.core.turns import StopReason
from proxy.sim.traces import SLICE, cut_to, recorded_sessions


def test_the_packaged_slice_has_the_known_shape():
    """Sizes as the admission brief states them for the whole recording."""
    sessions = recorded_sessions()
    turns = [turn for session in sessions for turn in session.turns]
    firsts = sorted(session.turns[0].prompt_tokens for session in sessions)
    assert len(sessions) == 564
    assert 15_000 < firsts[len(firsts) // 2] < 25_000
    assert sum(turn.kept_tokens is not None for turn in turns) / len(turns) < 0.05
    assert any(session.children for session in sessions)


def test_the_slice_is_small_and_carries_its_licence():
    """It is part of the wheel; the notice goes with it."""
    assert SLICE.stat().st_size < 300_000
    assert "Apache License, Version 2.0" in (SLICE.parent / "NOTICE.md").read_text()


def test_a_packed_session_is_read(tmp_path):
    """Kept tokens are told only where more than the cut last block differs; a missing pause is none."""
    requests = [
        [0.0, 1_000, 50, 1.0, None, "tool_use", "m", 0, []],
        [9.0, 1_200, 60, 1.0, 7.0, "end_turn", "m", 15, []],
        [20.0, 900, 10, 1.0, 3.0, "", "m", 4, []],
    ]
    child = {"tool_tokens": 10, "system_tokens": 5, "after": 2, "reqs": requests[:1]}
    path = tmp_path / "packed.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        lines.write(json.dumps({"tool": 100, "sys": 20, "reqs": requests, "subs": [child]}) + "\n")
    (session,) = recorded_sessions(path)
    assert session.head_tokens == 120
    assert [turn.kept_tokens for turn in session.turns] == [None, None, 256]
    assert [turn.think_s for turn in session.turns] == [0.0, 7.0, 3.0]
    assert [turn.stop for turn in session.turns] == [StopReason.TOOL_USE, StopReason.END_TURN, StopReason.OTHER]
    assert session.children[0].starts_after == 2
    cut = cut_to(session, 1_100)
    assert len(cut.turns) == 1
    assert not cut.children


def test_another_file_is_refused_by_name(tmp_path):
    """Something that is no packed trace says so."""
    path = tmp_path / "other.gz"
    path.write_text("not gzip")
    with pytest.raises(ValueError, match=r"other\.gz"):
        recorded_sessions(path)
