"""What a prompt is made of, in any dialect: how much text, which head, and one digest a message. Pure.

Only for measuring and comparing: the bytes that are sent on are never touched. What engines ignore is ignored here too
(cache markers, key order, white space), and the attribution line that changes from session to session.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct
from xxhash import xxh3_64_intdigest as digest_of

_IMAGE_TOKENS: Final = 1_024
"""What an image of common size costs; its base64 says nothing about that."""
ATTRIBUTION: Final = "x-anthropic-billing-header:"
"""How the line begins that Claude Code puts before its system prompt, with a hash that changes (L01)."""
_LATER_LINE: Final = "\n" + ATTRIBUTION
_LATER_LINES: Final = re.compile(rf"\n{ATTRIBUTION}[^\n]*+")
_LOOKED_THROUGH_CHARS: Final = 512
"""So far into a system prompt a later line is looked for: what joins blocks may put a few words of its own first."""
_CLIENT_VERSION: Final = re.compile(r"cc_version=([0-9]+\.[0-9]+\.[0-9]+)")
_BINARY_TYPES: Final = frozenset({"image", "image_url", "input_image", "document", "input_file", "input_audio", "file"})
_CHUNK_CHARS: Final = 2_048
_SORTED: Final = orjson.OPT_SORT_KEYS
_MAX_DEPTH: Final = 8
_SYSTEM_FIELDS: Final = ("system", "instructions")
_TEXT_KEYS: Final = frozenset({"type", "text", "cache_control"})


class PromptFacts(Struct, frozen=True, gc=False):
    """See `core.turns.Turn` for what most of them are.

    Attributes:
        opening: a digest of the head and the first message.
        client_version: the version that an attribution line names, or nothing.
    """

    text_bytes: int
    extra_tokens: int = 0
    head_bytes: int = 0
    head: int = 0
    scope: int = 0
    tools: int = 0
    chain: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()
    opening: int = 0
    client_version: str = ""


def facts_of(fields: Mapping[str, Any], credential: str = "") -> PromptFacts:
    """Measure a parsed request body of any generating route.

    Args:
        fields: the body.
        credential: a digest of the client's credential; prompts of different ones never match.
    """
    counter = _Counter()
    scope = _scope(fields)
    # The seed is what came before: one number stands for the whole prompt up to here, the same in every process.
    head, text_bytes = scope, 0
    part = fields.get("tools")
    if part:
        piece = counter.dump(part)
        head, text_bytes = digest_of(piece, head), len(piece)
    tools = head if part else 0
    for name in _SYSTEM_FIELDS:
        part = fields.get(name)
        if part:
            piece = counter.dump(counter.without_attribution(part))
            head, text_bytes = digest_of(piece, head), text_bytes + len(piece)
    messages, leading = _messages(fields)
    for message in messages[:leading]:
        piece = counter.dump(_with_content(message, counter.without_attribution))
        head, text_bytes = digest_of(piece, head), text_bytes + len(piece)
    head_bytes = text_bytes
    digest = digest_of(credential.encode(), head) if credential else head
    chain: list[int] = []
    spans: list[int] = []
    for message in messages[leading:] if leading else messages:
        piece = counter.dump(message)
        digest = digest_of(piece, digest)
        text_bytes += len(piece)
        chain.append(digest)
        spans.append(text_bytes)
    return PromptFacts(
        text_bytes=text_bytes,
        extra_tokens=counter.binaries * _IMAGE_TOKENS,
        head_bytes=head_bytes,
        head=head if head_bytes else 0,
        scope=scope,
        tools=tools,
        chain=tuple(chain),
        spans=tuple(spans),
        opening=chain[0] if chain else digest,
        client_version=counter.client_version,
    )


def system_texts(fields: Mapping[str, Any]) -> Iterator[str]:
    """The texts that a body's system prompt is made of, wherever its dialect puts them."""
    messages, leading = _messages(fields)
    parts = [fields.get(name) for name in _SYSTEM_FIELDS] + [message.get("content") for message in messages[:leading]]
    for part in parts:
        for block in part if isinstance(part, list) else [part]:
            text = block.get("text") if isinstance(block, dict) else block
            if isinstance(text, str):
                yield text


class _Counter:
    """Turns parts into canonical bytes and counts what is not text."""

    def __init__(self) -> None:
        self.binaries = 0
        self.client_version = ""

    def dump(self, part: Any) -> bytes:
        """A part's canonical JSON."""
        if isinstance(part, str):
            return part.encode("utf-8", "surrogatepass")
        return orjson.dumps(part if _is_clean(part) else self._clean(part), option=_SORTED)

    def _clean(self, node: Any, depth: int = 0) -> Any:
        if isinstance(node, list):
            return [self._clean(item, depth + 1) for item in node] if depth < _MAX_DEPTH else node
        if not isinstance(node, dict) or depth >= _MAX_DEPTH:
            return node
        kind = node.get("type")
        if isinstance(kind, str) and kind in _BINARY_TYPES:
            self.binaries += 1
            if "cache_control" in node:
                node = {key: value for key, value in node.items() if key != "cache_control"}
            return {"type": kind, "digest": digest_of(orjson.dumps(node, option=_SORTED))}
        if "cache_control" not in node and isinstance(node.get("content", ""), str):
            return node  # plain text, as most messages are
        return {
            key: self._clean(_plain(value), depth + 1) if key == "content" else value
            for key, value in node.items()
            if key != "cache_control"
        }

    def without_attribution(self, content: Any) -> Any:
        """A system prompt's text or blocks without the attribution line, whatever else stands there."""
        if isinstance(content, str):
            return self._shorn(content)
        if not isinstance(content, list):
            return content
        kept = []
        for block in content:
            text = block.get("text") if isinstance(block, dict) else block
            if isinstance(text, str) and (rest := self._shorn(text)) is not text:
                if rest:
                    kept.append(rest if text is block else {**block, "text": rest})
            else:
                kept.append(block)
        return kept

    def _shorn(self, text: str) -> str:
        """Only whole lines: a text that mentions it is kept."""
        line = ""
        if text.startswith(ATTRIBUTION):
            line, _, text = text.partition("\n")
        if text.find(_LATER_LINE, 0, _LOOKED_THROUGH_CHARS) >= 0:
            line = line or text
            text = _LATER_LINES.sub("", text, 1)
        if line and (version := _CLIENT_VERSION.search(line)):
            self.client_version = version[1]
        return text


def _is_clean(message: Any) -> bool:
    """Whether a message is certainly canonical, as nearly all are: then nothing of it need be copied."""
    if not isinstance(message, dict) or "cache_control" in message or message.get("type", "message") != "message":
        return False
    content = message.get("content")
    if not isinstance(content, list):
        return isinstance(content, str)
    for block in content:
        if not isinstance(block, dict) or "cache_control" in block or not isinstance(block.get("content", ""), str):
            return False
        kind = block.get("type")
        if not isinstance(kind, str) or kind in _BINARY_TYPES:
            return False
    return len(content) != 1 or kind != "text"


def _scope(fields: Mapping[str, Any]) -> int:
    """What keeps equal prompts apart in an engine: the model (or adapter), and the salt of the cache (L61)."""
    model, salt = fields.get("model"), fields.get("cache_salt")
    scope = digest_of(model.encode("utf-8", "surrogatepass")) if isinstance(model, str) else 0
    return digest_of(salt.encode("utf-8", "surrogatepass"), scope) if salt and isinstance(salt, str) else scope


def _with_content(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    content = message.get("content")
    changed = change(content)
    return message if changed is content else {**message, "content": changed}


def _messages(fields: Mapping[str, Any]) -> tuple[list[Any], int]:
    """The messages in the order of the prompt, and how many leading ones belong to its head."""
    messages = fields.get("messages", fields.get("input"))
    if isinstance(messages, list):
        return messages, _leading_system(messages)
    if isinstance(messages, str):
        return [messages], 0
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [prompt[at : at + _CHUNK_CHARS] for at in range(0, len(prompt), _CHUNK_CHARS)], 0
    return ([prompt], 0) if prompt is not None else ([], 0)


def _leading_system(messages: Iterable[Any]) -> int:
    count = 0
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ("system", "developer"):
            break
        count += 1
    return count


def _plain(content: Any) -> Any:
    """A list of one text block is that text: clients write it so while it carries a marker, and plain a turn later."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block = content[0]
        if block.get("type") == "text" and isinstance(block.get("text"), str) and block.keys() <= _TEXT_KEYS:
            return block["text"]
    return content
