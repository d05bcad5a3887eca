"""What the simulated model says: how long, which words, and whether it calls a tool. Decided before it is generated.

Called by the HTTP face. The same prompt always gets the same answer.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.sim.chat_template import tool_call_text
from proxy.sim.text import Special, encode, filler, slices

MEDIAN_TOKENS = 216
"""Median answer of 48,631 Claude Code turns (admission brief 1.4)."""
SPREAD = 1.1
"""Sigma of the log-normal that meets their quartile (430) and their 95 % (1,544) about equally badly."""
LONGEST_TOKENS = 4_000


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an answer; `arguments` is JSON text, `lead_tokens` the tokens before the arguments begin."""

    name: str
    arguments: str
    lead_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer.

    Attributes:
        pieces: the text of each token; the end token has none.
        encoded: the same as the prompt of the next turn will contain it, for the prefix cache.
        finish_reason: `stop` or `length`, in the engine's words.
    """

    pieces: tuple[str, ...]
    encoded: bytes
    finish_reason: str
    tool_call: ToolCall | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


def plan_answer(
    seed: bytes,
    max_tokens: int,
    *,
    ignore_eos: bool = False,
    min_tokens: int = 0,
    tool: Mapping[str, Any] | None = None,
) -> Answer:
    """The answer to a prompt.

    Args:
        seed: names the prompt.
        max_tokens: at most so many tokens, the end token included.
        ignore_eos: speak until `max_tokens`.
        min_tokens: at least so many tokens.
        tool: the chat tool to call, if it fits in `max_tokens`.
    """
    if tool is not None and (answer := _tool_answer(tool, max_tokens)) is not None:
        return answer
    natural = max_tokens + 1
    if not ignore_eos:
        # The brackets keep the median: clipping a log-normal's tails does not move it.
        drawn = round(MEDIAN_TOKENS * random.Random(seed + b"length").lognormvariate(0, SPREAD))
        natural = max(min(drawn, LONGEST_TOKENS), 8, min_tokens)
    if natural > max_tokens:
        words = filler(seed, max_tokens)
        return Answer(tuple(words), encode("".join(words)), "length")
    words = filler(seed, natural - 1)
    return Answer((*words, ""), encode("".join(words)) + Special.TURN_END.encoded, "stop")


def _tool_answer(tool: Mapping[str, Any], max_tokens: int) -> Answer | None:
    function = tool.get("function", {})
    name = str(function.get("name", "tool"))
    arguments = json.dumps(_example(function.get("parameters") or {}))
    text = tool_call_text(name, arguments)
    pieces = slices(text)
    if len(pieces) + 1 > max_tokens:
        return None
    lead_tokens = len(slices(text[: text.index('"arguments": ') + len('"arguments": ')]))
    call = ToolCall(name, arguments, lead_tokens)
    return Answer((*pieces, ""), encode(text) + Special.TURN_END.encoded, "stop", call)


_EXAMPLES: dict[str, Any] = {"string": "example", "boolean": True, "integer": 1, "number": 1, "array": [], "null": None}


def _example(schema: Mapping[str, Any]) -> Any:
    """A value that the schema's required parts accept."""
    if choices := schema.get("enum"):
        return choices[0]
    kind = schema.get("type", "object")
    if kind != "object":
        return _EXAMPLES.get(str(kind), "example")
    properties = schema.get("properties") or {}
    return {name: _example(properties.get(name, {"type": "string"})) for name in schema.get("required") or ()}
