"""Replies in the shape that each API gives them, with the events and the error bodies of vLLM 0.32.

Compare tests/fixtures/vllm-0.32.0: what a client makes of an answer hangs on these.
"""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from tests.real.clients.replies import Cut, Refused, Text, ToolCall, ToolCalls

Answer = Text | ToolCalls | Cut

MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"

_OUTPUT_TOKENS: Final = 20
_ids = count(1)


def error_body(path: str, refused: Refused) -> dict[str, Any]:
    """The body of an error answer."""
    if refused.body is not None:
        return refused.body
    error: dict[str, Any] = {"type": _error_type(refused.status), "message": refused.message}
    if path.startswith(MESSAGES):
        return {"type": "error", "error": error}
    return {"error": {**error, "param": None, "code": refused.status}}


def _error_type(status: int) -> str:
    """The names that vLLM uses."""
    return {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}.get(status, "InternalServerError")


def whole(path: str, model: str, answer: Answer) -> dict[str, Any]:
    """A complete answer, not streamed."""
    number = next(_ids)
    calls = answer.calls if isinstance(answer, ToolCalls) else ()
    words = "" if isinstance(answer, ToolCalls) else answer.words
    if path == MESSAGES:
        texts = [{"type": "text", "text": words}] if words else []
        content = [*texts, *(_tool_use(number, call) for call in calls)]
        return _message(number, model, content, answer)
    if path == CHAT:
        message: dict[str, Any] = {"role": "assistant", "content": words or None}
        if calls:
            message["tool_calls"] = [_chat_call(number, index, call) for index, call in enumerate(calls)]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return {
            **_chat_head(number, model, "chat.completion"),
            "choices": [choice],
            "usage": _chat_usage(answer.prompt_tokens),
        }
    return _response(number, model, answer, _output(number, answer))


def events(path: str, model: str, answer: Answer) -> list[bytes]:
    """The events of a streamed answer. Those of one that is cut lack their end."""
    number = next(_ids)
    if path == MESSAGES:
        made = list(_message_events(number, model, answer))
        return made[:-3] if isinstance(answer, Cut) else made
    if path == CHAT:
        made = list(_chat_events(number, model, answer))
        return made[:-3] if isinstance(answer, Cut) else made
    made = list(_response_events(number, model, answer))
    return made[:-4] if isinstance(answer, Cut) else made


def _pieces(words: str) -> list[str]:
    return [word + " " for word in words.split(" ")]


def _named(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), json.dumps(event).encode())


# Messages


def _message(number: int, model: str, content: list[dict[str, Any]], answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": _stop_reason(answer),
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": _OUTPUT_TOKENS},
    }


def _stop_reason(answer: Answer) -> str:
    return "tool_use" if isinstance(answer, ToolCalls) else "end_turn"


def _tool_use(number: int, call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}_{next(_ids)}", "name": call.name, "input": call.arguments}


def _message_events(number: int, model: str, answer: Answer) -> Iterator[bytes]:
    start = _message(number, model, [], answer) | {"stop_reason": None, "stop_sequence": None}
    start["usage"] = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
    yield _named({"type": "message_start", "message": start})
    if isinstance(answer, ToolCalls):
        for index, call in enumerate(answer.calls):
            block = _tool_use(number, call) | {"input": {}}
            yield _named({"type": "content_block_start", "index": index, "content_block": block})
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
            yield _named({"type": "content_block_delta", "index": index, "delta": delta})
            yield _named({"type": "content_block_stop", "index": index})
    else:
        yield _named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for piece in _pieces(answer.words):
            delta = {"type": "text_delta", "text": piece}
            yield _named({"type": "content_block_delta", "index": 0, "delta": delta})
        yield _named({"type": "content_block_stop", "index": 0})
    stop = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": _OUTPUT_TOKENS}
    yield _named({"type": "message_delta", "delta": stop, "usage": usage})
    yield _named({"type": "message_stop"})


# Chat completions


def _chat_usage(prompt_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": _OUTPUT_TOKENS,
        "total_tokens": prompt_tokens + _OUTPUT_TOKENS,
    }


def _chat_head(number: int, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_796_058_127, "model": model}


def _chat_call(number: int, index: int, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": f"call_{number}_{index}", "type": "function", "function": function}


def _chat_events(number: int, model: str, answer: Answer) -> Iterator[bytes]:
    head = _chat_head(number, model, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %b\n\n" % json.dumps({**head, "choices": [choice], "usage": None}).encode()

    yield chunk({"role": "assistant", "content": ""})
    if isinstance(answer, ToolCalls):
        for index, call in enumerate(answer.calls):
            yield chunk({"tool_calls": [{"index": index, **_chat_call(number, index, call)}]})
    else:
        for piece in _pieces(answer.words):
            yield chunk({"content": piece})
    yield chunk({}, "tool_calls" if isinstance(answer, ToolCalls) else "stop")
    yield b"data: %b\n\n" % json.dumps({**head, "choices": [], "usage": _chat_usage(answer.prompt_tokens)}).encode()
    yield b"data: [DONE]\n\n"


# Responses


def _response(number: int, model: str, answer: Answer, output: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Complete, or only begun when it has no output yet."""
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": _OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + _OUTPUT_TOKENS,
    }
    return {
        "id": f"resp_{number:016x}",
        "object": "response",
        "created_at": 1_796_058_130,
        "model": model,
        "status": "in_progress" if output is None else "completed",
        "output": output or [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if output is not None else None,
    }


def _output(number: int, answer: Answer) -> list[dict[str, Any]]:
    if isinstance(answer, ToolCalls):
        return [
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": f"call_{number}_{index}",
                "name": call.name,
                "arguments": json.dumps(call.arguments),
                "status": "completed",
            }
            for index, call in enumerate(answer.calls)
        ]
    text = {"type": "output_text", "text": answer.words, "annotations": []}
    return [
        {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]},
    ]


def _response_events(number: int, model: str, answer: Answer) -> Iterator[bytes]:
    numbers = count()

    def event(kind: str, **fields: Any) -> bytes:
        return _named({"type": f"response.{kind}", "sequence_number": next(numbers), **fields})

    begun = _response(number, model, answer, None)
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    output = _output(number, answer)
    for index, item in enumerate(output):
        yield from _item_events(event, index, item)
    yield event("completed", response=_response(number, model, answer, output))


def _item_events(event: Any, index: int, item: dict[str, Any]) -> Iterator[bytes]:
    if item["type"] == "function_call":
        where = {"output_index": index, "item_id": item["id"]}
        yield event("output_item.added", output_index=index, item=item | {"arguments": "", "status": "in_progress"})
        yield event("function_call_arguments.delta", **where, delta=item["arguments"])
        yield event("function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
        yield event("output_item.done", output_index=index, item=item)
        return
    part = item["content"][0]
    where = {"output_index": index, "item_id": item["id"], "content_index": 0}
    yield event("output_item.added", output_index=index, item=item | {"content": [], "status": "in_progress"})
    yield event("content_part.added", **where, part=part | {"text": ""})
    for piece in _pieces(part["text"]):
        yield event("output_text.delta", **where, delta=piece, logprobs=[])
    yield event("output_text.done", **where, text=part["text"], logprobs=[])
    yield event("content_part.done", **where, part=part)
    yield event("output_item.done", output_index=index, item=item)
