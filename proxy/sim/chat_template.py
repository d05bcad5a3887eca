"""Chat messages as one prompt: what a model's chat template does, and how Messages requests become chat ones.

Called by the HTTP face. Lenient: a part that it does not know costs no tokens, as nothing here depends on meaning.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from proxy.sim.text import Special, encode, encode_image

Message = Mapping[str, Any]


def render_chat(messages: Iterable[Message], tools: Any, image_tokens: int) -> bytes:
    """The encoded prompt of a chat, ending where the assistant is to speak."""
    pieces: list[bytes] = []
    if tools:
        pieces += _turn("system", [encode(json.dumps(tools))])
    for message in messages:
        pieces += _turn(str(message.get("role", "user")), _content(message, image_tokens))
    pieces += [Special.TURN_START.encoded, encode("assistant\n")]
    return b"".join(pieces)


def tool_call_text(name: str, arguments: str) -> str:
    """How a model writes a tool call; `arguments` is JSON text."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def messages_to_chat(body: Mapping[str, Any]) -> list[Message]:
    """The chat messages that a Messages request stands for."""
    chat: list[Message] = []
    system = body.get("system")
    if system:
        chat.append({"role": "system", "content": system})
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, str):
            chat.append(message)
        else:
            chat += _blocks_to_chat(message["role"], content)
    return chat


def tools_to_chat(tools: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    """The chat tools that a Messages request's tools stand for."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description"),
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools
    ]


def last_user_text(messages: list[Message]) -> str:
    """The text of the last message if a user wrote it, else nothing."""
    if not messages or messages[-1].get("role") != "user":
        return ""
    content = messages[-1].get("content")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


def _turn(role: str, content: list[bytes]) -> list[bytes]:
    return [Special.TURN_START.encoded, encode(role + "\n"), *content, Special.TURN_END.encoded, encode("\n")]


def _content(message: Message, image_tokens: int) -> list[bytes]:
    content = message.get("content")
    if isinstance(content, str):
        pieces = [encode(content)]
    else:
        pieces = [_part(part, image_tokens) for part in content or () if isinstance(part, Mapping)]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        pieces.append(encode(tool_call_text(str(function.get("name")), str(function.get("arguments")))))
    return pieces


def _part(part: Mapping[str, Any], image_tokens: int) -> bytes:
    if isinstance(text := part.get("text"), str):
        return encode(text)
    if image := part.get("image_url"):
        return encode_image(json.dumps(image), image_tokens)
    return b""


def _blocks_to_chat(role: str, blocks: Iterable[Mapping[str, Any]]) -> list[Message]:
    """One Messages message; each tool result becomes a message of its own, before what the user says beside it."""
    results: list[Message] = []
    parts: list[Mapping[str, Any]] = []
    calls: list[Mapping[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result":
            results.append({"role": "tool", "content": _result_content(block.get("content"))})
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input", {}))
            calls.append({"function": {"name": block.get("name"), "arguments": arguments}})
        elif kind == "image":
            parts.append(_image(block))
        elif kind == "text":
            parts.append({"type": "text", "text": block.get("text", "")})
    if parts or calls or not results:
        results.append({"role": role, "content": parts, "tool_calls": calls})
    return results


def _result_content(content: Any) -> Any:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return [_image(block) if block.get("type") == "image" else block for block in content]


def _image(block: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "image_url", "image_url": block.get("source")}
