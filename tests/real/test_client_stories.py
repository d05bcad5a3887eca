"""What the real clients are played against must itself be right: it looks like vLLM, and a missing client is told."""

import json
from itertools import groupby
from pathlib import Path

import pytest

from tests.conformance.programs import ROOT
from tests.fakes.backend import SeenRequest
from tests.real import run_clients
from tests.real.clients import commands, scenario
from tests.real.clients.replies import Asked, Cut, Text, ToolCall, ToolCalls, in_turn
from tests.real.clients.shapes import CHAT, MESSAGES, RESPONSES, events, whole

VLLM = ROOT / "tests" / "fixtures" / "vllm-0.32.0"
STREAMS = {MESSAGES: "messages-stream.sse", CHAT: "chat-stream-usage.sse", RESPONSES: "responses-stream.sse"}
WHOLE = {MESSAGES: "messages.json", CHAT: "chat.json", RESPONSES: "responses.json"}
READ = ToolCalls((ToolCall("read", {"path": "a"}), ToolCall("read", {"path": "b"})))


def kinds(stream):
    """The kinds of a stream's events, each run of the same kind once."""
    data = [line.removeprefix("data: ") for line in stream.decode().splitlines() if line.startswith("data: ")]
    named = [one if one == "[DONE]" else json.loads(one).get("type", "chunk") for one in data]
    return [kind for kind, _ in groupby(named)]


@pytest.mark.parametrize("path", STREAMS)
def test_streams_look_like_the_engines(path):
    """The same kinds of events in the same order as a recorded stream."""
    assert kinds(b"".join(events(path, "m", Text("One two three")))) == kinds((VLLM / STREAMS[path]).read_bytes())


@pytest.mark.parametrize("path", WHOLE)
def test_whole_answers_look_like_the_engines(path):
    """No field but those of a recorded answer."""
    assert set(whole(path, "m", Text("One"))) <= set(json.loads((VLLM / WHOLE[path]).read_bytes()))


@pytest.mark.parametrize("path", STREAMS)
def test_a_cut_stream_lacks_its_end(path):
    """It begins like a whole one and stops after some words."""
    cut, complete = events(path, "m", Cut("One two three")), events(path, "m", Text("One two three"))

    assert len(cut) < len(complete)
    assert b"three" in b"".join(cut)
    assert kinds(b"".join(cut)) == kinds(b"".join(complete))[: len(kinds(b"".join(cut)))]


@pytest.mark.parametrize("path", STREAMS)
def test_every_tool_call_has_an_id_of_its_own(path):
    """Results come back by it."""
    answer = json.dumps(whole(path, "m", READ))

    assert answer.count('"read"') == 2
    assert b'{\\"path\\": \\"b\\"}' in b"".join(events(path, "m", READ))


def test_the_last_reply_is_for_ever():
    """A client that asks once more is not left without an answer."""
    first, second = Text("a"), Text("b")
    story = in_turn(first, second)
    asked = Asked(0.0, SeenRequest("POST / HTTP/1.1", [], b"", 1), {})

    assert [story(asked) for _ in range(3)] == [first, second, second]


def test_a_missing_client_is_told_with_what_installs_it(monkeypatch, tmp_path, capsys):
    """Not a traceback in the middle of a run."""
    monkeypatch.setattr(commands, "MODULES", tmp_path)
    claude = tmp_path / "claude"
    claude.write_text("#!/bin/sh\necho '2.0.0 (Claude Code)'\n")
    claude.chmod(0o755)

    assert run_clients.main(claude, []) == 2
    assert "@openai/codex is not installed; run tests/real/setup-clients.sh" in capsys.readouterr().err


def test_what_is_no_claude_code_is_told(capsys):
    """The path may be wrong."""
    assert run_clients.main(Path("/bin/true"), []) == 2
    assert "setup-claude.sh" in capsys.readouterr().err


def test_few_words_are_one_short_line():
    """The table at the end has one line a scenario."""
    assert scenario.few_words("a\n b" + "c" * 200, 10) == "a bccccccc..."
