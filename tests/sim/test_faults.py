"""Refusals in the real vLLM's status, shape and words. The file beside holds what the real one answered."""

import json
from pathlib import Path

import pytest

from tests.sim.shapes import post

REFUSALS = json.loads((Path(__file__).parent / "vllm_0_32_refusals.json").read_text())
LONG = {"messages": [{"role": "user", "content": "hello there " * 90_000}], "max_tokens": 5}
TOO_LONG = (
    "This model's maximum context length is 126976 tokens. However, your prompt contains {} input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value={})"
)


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: f"{case['path']} {case['body'][:60]}")
async def test_word_for_word(http, engine, case):
    """The same body gets the same refusal."""
    status, headers, text = await post(http, engine, case["path"], case["body"].encode())
    assert headers["Content-Type"] == "application/json"
    assert (status, json.loads(text)) == (case["status"], case["answer"])


async def test_context_overflow_of_chat(http, engine):
    """A text that is too long is counted up to the first token too many."""
    status, _, text = await post(http, engine, "/v1/chat/completions", LONG)
    error = json.loads(text)["error"]
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", "input_tokens")
    assert error["message"] == TOO_LONG.format("at least 126977", 126_977)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_context_overflow_of_messages(http, engine, path):
    """The Messages routes say the same in their own envelope, counting included."""
    status, _, text = await post(http, engine, path, LONG)
    message = TOO_LONG.format("at least 126977", 126_977)
    assert status == 400
    assert json.loads(text) == {"type": "error", "error": {"type": "BadRequestError", "message": message}}


async def test_context_overflow_of_token_numbers(http, engine):
    """Token numbers need no tokenizer, so they are counted exactly."""
    _, _, text = await post(http, engine, "/v1/completions", {"prompt": [5] * 126_990})
    assert json.loads(text)["error"]["message"] == TOO_LONG.format(126_990, 126_990)


async def test_prompt_that_leaves_no_room(http, engine):
    """A prompt as long as the context leaves nothing to generate."""
    _, _, text = await post(http, engine, "/v1/completions", {"prompt": [5] * 126_976})
    message = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    assert json.loads(text)["error"]["message"] == message


async def test_wrong_media_type(http, engine):
    """A body that is not declared as JSON is refused in vLLM's words."""
    status, _, text = await post(http, engine, "/v1/chat/completions", {}, headers={"Content-Type": "text/plain"})
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    expected = {"message": message, "type": "Bad Request", "param": None, "code": 400}
    assert (status, json.loads(text)) == (400, {"error": expected})


async def test_what_the_simulation_cannot_do(http, engine):
    """Several prompts or choices at once are refused rather than half answered."""
    chat = {"messages": [{"role": "user", "content": "x"}], "n": 2}
    for path, body in (("/v1/completions", {"prompt": ["a", "b"]}), ("/v1/chat/completions", chat)):
        status, _, text = await post(http, engine, path, body)
        assert status == 400
        assert "the simulated engine" in json.loads(text)["error"]["message"]
