"""What a prompt is made of, in any dialect: how much text, which head, and one digest a message. Pure.

Only for measuring and comparing: the bytes that are sent on are never touched. What engines ignore is ignored here too
(cache markers, key order, white space, the attribution line that changes from session to session).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct
from xxhash import xxh3_64_intdigest as digest_of

_IMAGE_TOKENS: Final = 1_024
"""What an image of common size costs; its base64 says nothing about that."""
_ATTRIBUTION: Final = "x-anthropic-billing-header:"
_BINARY_TYPES: Final = frozenset({"image", "image_url", "input_image", "document", "input_file", "input_audio", "file"})
_CHUNK_CHARS: Final = 2_048
_SORTED: Final = orjson.OPT_SORT_KEYS
_MAX_DEPTH: Final = 8
_HEAD_FIELDS: Final = ("tools", "system", "instructions")
_TEXT_KEYS: Final = frozenset({"type", "text", "cache_control"})


class PromptFacts(Struct, frozen=True, gc=False):
    """See `core.turns.Turn` for what each is; `opening` digests the head and the first message."""

    text_bytes: int
    extra_tokens: int
    head_bytes: int
    head: int
    chain: tuple[int, ...]
    opening: int


def facts_of(fields: Mapping[str, Any]) -> PromptFacts:
    """Measure a parsed request body of any generating route."""
    counter = _Counter()
    salt = fields.get("cache_salt")
    # Prompts with another salt share no block in the engine, however alike they are.
    head, head_bytes = digest_of(salt.encode("utf-8", "surrogatepass")) if salt and isinstance(salt, str) else 0, 0
    for name in _HEAD_FIELDS:
        part = fields.get(name)
        if part:
            piece = counter.dump(_without_attribution(part) if name == "system" else part)
            head, head_bytes = digest_of(piece, head), head_bytes + len(piece)
    text_bytes = head_bytes
    messages, leading = _messages(fields)
    chain: list[int] = []
    digest = 0
    for index, message in enumerate(messages):
        piece = counter.dump(message)
        text_bytes += len(piece)
        # The seed is what came before: one number stands for all messages up to here, the same in every process.
        digest = digest_of(piece, digest)
        chain.append(digest)
        if index < leading:
            head, head_bytes = digest_of(piece, head), head_bytes + len(piece)
    first = chain[min(leading, len(chain) - 1)] if chain else 0
    opening = digest_of(b"%d" % first, head)
    return PromptFacts(text_bytes, counter.binaries * _IMAGE_TOKENS, head_bytes, head, tuple(chain), opening)


class _Counter:
    """Turns parts into canonical bytes and counts what is not text."""

    def __init__(self) -> None:
        self.binaries = 0

    def dump(self, part: Any) -> bytes:
        """A part's canonical JSON."""
        return (
            part.encode("utf-8", "surrogatepass")
            if isinstance(part, str)
            else orjson.dumps(self._clean(part), option=_SORTED)
        )

    def _clean(self, node: Any, depth: int = 0) -> Any:
        if isinstance(node, list):
            return [self._clean(item, depth + 1) for item in node] if depth < _MAX_DEPTH else node
        if not isinstance(node, dict) or depth >= _MAX_DEPTH:
            return node
        kind = node.get("type")
        if isinstance(kind, str) and kind in _BINARY_TYPES:
            self.binaries += 1
            return {"type": kind, "digest": digest_of(orjson.dumps(node, option=_SORTED)) & 0xFFFFFFFF}
        if "cache_control" not in node and isinstance(node.get("content", ""), str):
            return node  # plain text, as most messages are
        return {
            key: self._clean(_plain(value), depth + 1) if key == "content" else value
            for key, value in node.items()
            if key != "cache_control"
        }


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


def _without_attribution(system: Any) -> Any:
    if not isinstance(system, list):
        return system
    return [
        block
        for block in system
        if not (isinstance(block, dict) and str(block.get("text", ""))[: len(_ATTRIBUTION)] == _ATTRIBUTION)
    ]


def _plain(content: Any) -> Any:
    """A list of one text block is that text: clients write it so while it carries a marker, and plain a turn later."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block = content[0]
        if block.get("type") == "text" and isinstance(block.get("text"), str) and block.keys() <= _TEXT_KEYS:
            return block["text"]
    return content
