"""Answers of `/v1/messages`, event for event as vLLM 0.32 writes them.

Called by the HTTP face through the `Wire` protocol. Pure. Note what vLLM does: `message_start` counts the whole prompt
as input, the final usage only its uncached part.
"""

import json
from typing import Any
from uuid import uuid4

from proxy.sim.wire import Generation, event


class MessagesWire:
    """`/v1/messages`."""

    def __init__(self) -> None:
        self._tool_id = f"chatcmpl-tool-{uuid4().hex[:16]}"
        self._is_block_open = False

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        call = generation.answer.tool_call
        if call:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": self._tool_id,
                "name": call.name,
                "input": json.loads(call.arguments),
            }
        else:
            block = {"type": "text", "text": generation.answer.text}
        return {
            "id": f"chatcmpl-{generation.answer_id}",
            "type": "message",
            "role": "assistant",
            "content": [block],
            "model": generation.ask.model,
            "stop_reason": _stop_reason(generation),
            "usage": _usage(generation),
        }

    def first(self, generation: Generation) -> list[bytes]:
        """The event that opens the message."""
        message: dict[str, Any] = {
            "id": f"chatcmpl-{generation.answer_id}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": generation.ask.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": generation.prompt_tokens, "output_tokens": 0},
        }
        return [event({"type": "message_start", "message": message}, "message_start")]

    def delta(self, generation: Generation, start: int, end: int) -> list[bytes]:
        """The events for the tokens of one engine step, opening the content block if it is not open yet."""
        call = generation.answer.tool_call
        if call is None:
            text = generation.text(start, end)
            return self._in_block({"type": "text", "text": ""}, {"type": "text_delta", "text": text} if text else None)
        is_named, arguments = generation.tool_delta(start, end)
        if not is_named and not arguments:
            return []
        block = {"type": "tool_use", "id": self._tool_id, "name": call.name, "input": {}}
        return self._in_block(block, {"type": "input_json_delta", "partial_json": arguments} if arguments else None)

    def last(self, generation: Generation) -> list[bytes]:
        """The end of the block, of the message, and usage."""
        events: list[bytes] = []
        if self._is_block_open:
            events.append(event({"type": "content_block_stop", "index": 0}, "content_block_stop"))
        delta = {"stop_reason": _stop_reason(generation), "stop_sequence": None}
        events.append(event({"type": "message_delta", "delta": delta, "usage": _usage(generation)}, "message_delta"))
        events.append(event({"type": "message_stop"}, "message_stop"))
        return events

    def _in_block(self, block: dict[str, Any], delta: dict[str, Any] | None) -> list[bytes]:
        events: list[bytes] = []
        if not self._is_block_open and (delta or block["type"] == "tool_use"):
            self._is_block_open = True
            start = {"type": "content_block_start", "content_block": block, "index": 0}
            events.append(event(start, "content_block_start"))
        if delta:
            events.append(event({"type": "content_block_delta", "delta": delta, "index": 0}, "content_block_delta"))
        return events


def _stop_reason(generation: Generation) -> str:
    if generation.answer.tool_call:
        return "tool_use"
    return "max_tokens" if generation.answer.finish_reason == "length" else "end_turn"


def _usage(generation: Generation) -> dict[str, int]:
    return {
        "input_tokens": generation.prompt_tokens - generation.cached_tokens,
        "output_tokens": len(generation.answer.pieces),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": generation.cached_tokens,
    }
