"""Request bodies of the cases: one small prompt, a fixed seed, no chance in sampling."""

import base64
from typing import Any, Final

from tests.conformance.wire import JsonBody

PROMPT: Final = "Say hello."
"""Shorter than a KV block, so that no second asking finds it cached and every answer counts the same tokens."""

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
RESPONSES: Final = "/v1/responses"
GENERATING: Final = (CHAT, COMPLETIONS, MESSAGES)

_CITY_SCHEMA: Final[JsonBody] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
OPENAI_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": _CITY_SCHEMA},
}
ANTHROPIC_TOOL: Final[dict[str, Any]] = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": _CITY_SCHEMA,
}

ONE_PIXEL_PNG: Final = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
        "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
    )
).decode()


def said(text: str | list[Any] = PROMPT) -> list[Any]:
    """A conversation of one user turn."""
    return [{"role": "user", "content": text}]


def body_for(path: str, model: str, *, text: str = PROMPT, max_tokens: int = 12, **more: Any) -> JsonBody:
    """A body that the route of `path` takes; `more` is added to it or replaces what is in it."""
    sampling: JsonBody = {"temperature": 0, "max_tokens": max_tokens}
    fixed_length: JsonBody = {"seed": 7, "ignore_eos": True}
    if path == CHAT:
        return {"model": model, "messages": said(text), **sampling, **fixed_length, **more}
    if path == COMPLETIONS:
        return {"model": model, "prompt": text, **sampling, **fixed_length, **more}
    if path == MESSAGES:  # vLLM passes over what it does not know here; the simulated engine takes it
        return {"model": model, "messages": said(text), **sampling, **fixed_length, **more}
    if path == COUNT_TOKENS:
        return {"model": model, "messages": said(text), **more}
    assert path == RESPONSES, path
    return {"model": model, "input": text, "temperature": 0, "max_output_tokens": max_tokens, **more}
