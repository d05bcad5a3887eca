"""Request bodies of the benchmark: a small chat, and an agent's turn of about 100 kB (system text, tools, history)."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson

from tests.bench.fake_backend import MODEL
from tests.bench.scenarios import Scenario

_AGENT_BYTES = 100_000
_PROSE = """read the file before you change it and run what the project offers to check it then say plainly what you saw
def return import class self path value result error async await for in if not none true false list dict str int"""
_WORDS = _PROSE.split()
_TOOLS = ("Bash", "Read", "Edit", "Write", "Glob", "Grep", "Task", "TodoWrite", "WebFetch", "WebSearch", "NotebookEdit")


def _text(rng: random.Random, characters: int) -> str:
    words: list[str] = []
    length = 0
    while length < characters:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)


def _tool(rng: random.Random, name: str) -> dict[str, Any]:
    fields = {f"{name.lower()}_{i}": {"type": "string", "description": _text(rng, 120)} for i in range(4)}
    schema = {"type": "object", "properties": fields, "required": [next(iter(fields))], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": _text(rng, 1800), "parameters": schema}}


@cache
def _shared_prefix() -> tuple[str, tuple[dict[str, Any], ...]]:
    """The system text and the tools that all agents share."""
    rng = random.Random(1)
    return _text(rng, 14_000), tuple(_tool(rng, name) for name in _TOOLS)


def _steps(rng: random.Random) -> Iterator[dict[str, Any]]:
    """An agent's own history, without end: a call of a tool, its result, ..."""
    for i in range(1_000_000):
        call = {"name": rng.choice(_TOOLS), "arguments": orjson.dumps({"command": _text(rng, 150)}).decode()}
        yield {
            "role": "assistant",
            "content": _text(rng, 200),
            "tool_calls": [{"id": f"call_{i}", "type": "function", "function": call}],
        }
        yield {"role": "tool", "tool_call_id": f"call_{i}", "content": _text(rng, 2500)}


def _agent_messages(number: int) -> list[dict[str, Any]]:
    rng = random.Random(number + 2)
    system, tools = _shared_prefix()
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": f"Task {number}: {_text(rng, 400)}"})
    size = len(orjson.dumps([messages, tools]))
    for message in _steps(rng):
        messages.append(message)
        size += len(orjson.dumps(message)) + 1
        if size >= _AGENT_BYTES:
            break
    return messages


def body(scenario: Scenario, number: int) -> bytes:
    """The body that connection `number` sends, the same each time."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 64}
    if scenario.body == "agent":
        asked["messages"] = _agent_messages(number)
        asked["tools"] = _shared_prefix()[1]
    else:
        asked["messages"] = [{"role": "user", "content": f"Say in one sentence what a tide gate is for. ({number})"}]
    if scenario.kind in {"streams", "idle"}:
        asked |= {"max_tokens": scenario.tokens, "stream": True, "stream_options": {"include_usage": True}}
        asked["vllm_xargs"] = {"interval_us": scenario.interval_us}
    return orjson.dumps(asked)


def request(scenario: Scenario, number: int, port: int) -> bytes:
    """The whole request that connection `number` sends, with an agent's headers."""
    content = body(scenario, number)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: claude-cli/2.1.220 (bench)\r\n"
        "Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nAuthorization: Bearer sk-bench\r\n"
        f"X-Claude-Code-Session-Id: 00000000-0000-4000-8000-{number:012d}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
