"""Answers of `/v1/chat/completions` and `/v1/completions`, key for key as vLLM 0.32 writes them.

Called by the HTTP face through the `Wire` protocol. Pure.
"""

from typing import Any
from uuid import uuid4

from proxy.sim.wire import FINGERPRINT, Generation, event

_DONE = b"data: [DONE]\n\n"


class ChatWire:
    """`/v1/chat/completions`."""

    def __init__(self) -> None:
        self._tool_id = f"chatcmpl-tool-{uuid4().hex[:16]}"

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        answer = generation.answer
        call = answer.tool_call
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if call else answer.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if call:
            function = {"name": call.name, "arguments": call.arguments}
            message["tool_calls"] = [{"id": self._tool_id, "type": "function", "function": function}]
        message["reasoning"] = None
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(generation),
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
        return {
            **_head(generation, "chatcmpl", "chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _whole_usage(generation, created_cache_tokens=0),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def first(self, generation: Generation) -> list[bytes]:
        """The event that opens the assistant's message."""
        delta = {"role": "assistant", "content": ""}
        chunk = _head(generation, "chatcmpl", "chat.completion.chunk")
        chunk["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
        if generation.ask.continuous_usage:
            chunk["usage"] = _running_usage(generation, 0)
        chunk |= {"prompt_token_ids": None, "prompt_text": None}
        return [event(chunk)]

    def delta(self, generation: Generation, start: int, end: int) -> list[bytes]:
        """One event for the tokens of one engine step; two when a tool's name and arguments come at once."""
        if generation.answer.tool_call is None:
            return [self._chunk(generation, {"content": generation.text(start, end)}, end)]
        is_named, arguments = generation.tool_delta(start, end)
        calls: list[dict[str, Any]] = []
        if is_named:
            name = {"name": generation.answer.tool_call.name}
            calls.append({"id": self._tool_id, "type": "function", "index": 0, "function": name})
        if arguments:
            calls.append({"index": 0, "function": {"arguments": arguments}})
        is_last = end == len(generation.answer.pieces)
        deltas: list[dict[str, Any]] = [{"content": None, "tool_calls": [call]} for call in calls]
        if is_last and not deltas:
            deltas = [{"content": ""}]
        # Only the last of several events may carry the finish reason.
        ends = [*[start] * (len(deltas) - 1), end]
        return [self._chunk(generation, delta, at) for delta, at in zip(deltas, ends, strict=False)]

    def last(self, generation: Generation) -> list[bytes]:
        """Usage, if asked for, and the terminal event."""
        head = _head(generation, "chatcmpl", "chat.completion.chunk")
        return _tail(generation, head, {"cached_tokens": generation.cached_tokens, "created_cache_tokens": 0})

    @staticmethod
    def _chunk(generation: Generation, delta: dict[str, Any], end: int) -> bytes:
        chunk = _head(generation, "chatcmpl", "chat.completion.chunk")
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        is_last = end == len(generation.answer.pieces)
        if is_last:
            choice |= {"finish_reason": _finish_reason(generation), "stop_reason": None}
        choice["token_ids"] = None
        chunk["choices"] = [choice]
        return event(_closed(generation, chunk, is_last=is_last, end=end))


class CompletionWire:
    """`/v1/completions`."""

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choice = {
            "index": 0,
            "text": generation.ask.echo + generation.answer.text,
            "logprobs": None,
            "finish_reason": generation.answer.finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        return {
            **_head(generation, "cmpl", "text_completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _whole_usage(generation, created_cache_tokens=None),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def first(self, _generation: Generation) -> list[bytes]:
        """Nothing: the first token comes at once."""
        return []

    def delta(self, generation: Generation, start: int, end: int) -> list[bytes]:
        """One event for the tokens of one engine step."""
        chunk = _head(generation, "cmpl", "text_completion")
        is_last = end == len(generation.answer.pieces)
        text = generation.text(start, end)
        choice = {
            "index": 0,
            "text": text if start else generation.ask.echo + text,
            "logprobs": None,
            "finish_reason": generation.answer.finish_reason if is_last else None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        chunk["choices"] = [choice]
        return [event(_closed(generation, chunk, is_last=is_last, end=end))]

    def last(self, generation: Generation) -> list[bytes]:
        """Usage, if asked for, and the terminal event."""
        head = _head(generation, "cmpl", "text_completion")
        return _tail(generation, head, {"cached_tokens": generation.cached_tokens})


def _head(generation: Generation, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{generation.answer_id}",
        "object": kind,
        "created": generation.created,
        "model": generation.ask.model,
    }


def _finish_reason(generation: Generation) -> str:
    """A tool that the client named ends with `stop`, any other with `tool_calls`."""
    if generation.answer.tool_call and not generation.ask.is_tool_named:
        return "tool_calls"
    return generation.answer.finish_reason


def _closed(generation: Generation, chunk: dict[str, Any], *, is_last: bool, end: int) -> dict[str, Any]:
    """Usage and fingerprint as far as this event carries them."""
    if generation.ask.continuous_usage:
        chunk["usage"] = _running_usage(generation, end)
    if is_last and not generation.ask.include_usage:
        chunk["system_fingerprint"] = FINGERPRINT
    return chunk


def _tail(generation: Generation, chunk: dict[str, Any], details: dict[str, int]) -> list[bytes]:
    if not generation.ask.include_usage:
        return [_DONE]
    chunk["choices"] = []
    chunk["usage"] = {**_tokens(generation, len(generation.answer.pieces)), "prompt_tokens_details": details}
    chunk["system_fingerprint"] = FINGERPRINT
    return [event(chunk), _DONE]


def _tokens(generation: Generation, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _running_usage(generation: Generation, completion_tokens: int) -> dict[str, Any]:
    return {**_tokens(generation, completion_tokens), "completion_tokens_details": None}


def _whole_usage(generation: Generation, *, created_cache_tokens: int | None) -> dict[str, Any]:
    return {
        **_tokens(generation, len(generation.answer.pieces)),
        "prompt_tokens_details": {
            "cached_tokens": generation.cached_tokens,
            "created_cache_tokens": created_cache_tokens,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }
