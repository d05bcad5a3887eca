"""What the two dialects' answers have in common: one generation, and how its events and bodies are built.

Called by the HTTP face and by `wire_openai` and `wire_anthropic`, which write the shapes of vLLM 0.32. Pure.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from proxy.sim.answers import Answer
from proxy.sim.asks import Ask

FINGERPRINT = "vllm-0.32.0-tidegate"
"""`system_fingerprint`; the last part names the build."""


@dataclass(slots=True)
class Generation:
    """One answer on its way.

    Attributes:
        answer_id: without the dialect's prefix.
        created: Unix time in whole seconds.
        cached_tokens: prompt tokens found in the prefix cache; known from the first token on.
        sent: tokens handed to the client so far.
    """

    ask: Ask
    answer: Answer
    answer_id: str
    created: int
    prompt_tokens: int
    cached_tokens: int = 0
    sent: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every token was handed out."""
        return self.sent >= len(self.answer.pieces)

    def take(self, tokens: int) -> tuple[int, int]:
        """The engine gained `tokens`; the range of the answer's tokens to send."""
        start = self.sent
        self.sent = min(start + tokens, len(self.answer.pieces))
        return start, self.sent

    def text(self, start: int, end: int) -> str:
        """The text of some of the answer's tokens."""
        return "".join(self.answer.pieces[start:end])

    def tool_delta(self, start: int, end: int) -> tuple[bool, str]:
        """Of a tool call: whether its name becomes known in these tokens, and the part of the arguments in them."""
        call = self.answer.tool_call
        if call is None:
            raise ValueError("this answer calls no tool")
        lead = call.lead_tokens
        before, through = self._arguments_through(start), self._arguments_through(end)
        return start < lead <= end, call.arguments[before:through]

    def _arguments_through(self, tokens: int) -> int:
        """How much of the arguments' JSON the first `tokens` tokens contain."""
        call = self.answer.tool_call
        if call is None or tokens < call.lead_tokens:
            return 0
        text = self.text(0, tokens)
        begin = self.answer.text.index('"arguments": ') + len('"arguments": ')
        return max(min(len(text) - begin, len(call.arguments)), 0)


class Wire(Protocol):
    """How one route writes answers."""

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def first(self, generation: Generation) -> list[bytes]:
        """What a stream sends when the first token is there, before it."""

    def delta(self, generation: Generation, start: int, end: int) -> list[bytes]:
        """What a stream sends for tokens `start` to `end`; the last ones carry the finish reason."""

    def last(self, generation: Generation) -> list[bytes]:
        """What a stream sends after the last token."""


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
