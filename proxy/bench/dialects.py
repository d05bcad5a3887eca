"""How a turn is asked for and its answer read, in the two APIs that agents speak. Pure."""

from collections.abc import Mapping
from enum import StrEnum, unique
from typing import Any, Final

import orjson

from proxy.bench.words import Conversation


@unique
class Api(StrEnum):
    """Which API the agents speak."""

    CHAT = "chat"
    MESSAGES = "messages"

    @property
    def path(self) -> str:
        """Where a turn is sent."""
        return "/v1/chat/completions" if self is Api.CHAT else "/v1/messages"

    @property
    def session_header(self) -> str:
        """Where the client says which session it is."""
        return "x-session-id" if self is Api.CHAT else "x-claude-code-session-id"


def headers(api: Api, key: str | None) -> dict[str, str]:
    """What every request carries, as the API's own clients send it."""
    named = {"content-type": "application/json"}
    if key:
        named["authorization"] = f"Bearer {key}"
    if api is Api.MESSAGES:
        named["anthropic-version"] = "2023-06-01"
        if key:
            named["x-api-key"] = key
    return named


def body(
    api: Api, model: str, conversation: Conversation, answer_tokens: int, *, has_fixed_length: bool
) -> dict[str, Any]:
    """One streamed turn. `has_fixed_length` asks an engine that knows it to go on past an early end."""
    messages = [{"role": message.role, "content": message.text} for message in conversation.messages]
    asked: dict[str, Any] = {"model": model, "max_tokens": answer_tokens, "temperature": 0, "stream": True}
    if api is Api.CHAT:
        asked["messages"] = [{"role": "system", "content": conversation.head}, *messages]
        asked["stream_options"] = {"include_usage": True}
        if has_fixed_length:
            asked["ignore_eos"] = True
    else:
        asked["system"] = [{"type": "text", "text": conversation.head}]
        asked["messages"] = messages
    return asked


class StreamFailedError(Exception):
    """An error instead of more answer, inside a stream that began well."""


_LAST: Final = b"[DONE]"


class Answer:
    """Reads a streamed answer piece by piece.

    Attributes:
        has_begun: a token has come.
        is_complete: the stream said its own end.
        pieces: events that carried tokens.
    """

    def __init__(self, api: Api) -> None:
        self._read = self._read_chat if api is Api.CHAT else self._read_messages
        self._rest = b""
        self._texts: list[str] = []
        self.has_begun = False
        self.is_complete = False
        self.pieces = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.answer_tokens: int | None = None

    @property
    def text(self) -> str:
        """What has come, to be sent back with the next turn."""
        return "".join(self._texts)

    def feed(self, data: bytes) -> None:
        """Take bytes in.

        Raises:
            StreamFailedError: the stream says that it failed.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if data == _LAST:
            self.is_complete = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise StreamFailedError("an event is no JSON") from None
        if not isinstance(event, dict):
            raise StreamFailedError("an event is no object")
        if event.get("error"):
            raise StreamFailedError(str(event["error"])[:200])
        self._read(event)

    def _read_chat(self, event: Mapping[str, Any]) -> None:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
            if text or delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls"):
                self._piece(text)
            elif choice.get("finish_reason"):
                self.has_begun = True
        if usage := event.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.answer_tokens = usage.get("completion_tokens")
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def _read_messages(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "content_block_delta":
                self._piece((event.get("delta") or {}).get("text") or "")
            case "message_start":
                self._take_usage((event.get("message") or {}).get("usage") or {})
            case "message_delta":
                self.has_begun = True
                self._take_usage(event.get("usage") or {})
            case "message_stop":
                self.is_complete = True

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        """Later figures replace earlier ones; the prompt is what was computed, found and stored together."""
        if usage.get("output_tokens"):
            self.answer_tokens = usage["output_tokens"]
        if usage.get("input_tokens") is None:
            return
        found, stored = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        prompt_tokens = usage["input_tokens"] + (found or 0) + (stored or 0)
        if prompt_tokens:
            self.prompt_tokens, self.cached_tokens = prompt_tokens, found

    def _piece(self, text: str) -> None:
        self.has_begun = True
        self.pieces += 1
        self._texts.append(text)
