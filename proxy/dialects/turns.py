"""Makes the `Turn` that admission sees out of a request's headers and parsed body. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from multidict import istr
from xxhash import xxh3_64_intdigest as digest_of

from proxy.core.turns import Turn
from proxy.dialects.prompts import PromptFacts, facts_of
from proxy.dialects.session_identity import credential_digest, named_session, session_key

_TIMEOUT_HEADERS: Final = (istr("x-stainless-timeout"), istr("x-stainless-read-timeout"))
CLAUDE_CODE: Final = "claude-cli/"
"""How Claude Code's user agent begins."""
_CLAUDE_CODE_PATIENCE_S: Final = 300.0
"""It says 600, but gives a silent connection up after 300 s, and one on which there are only pings too."""
_SECONDS: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
"""Whole from the TypeScript SDKs, with a decimal point from the Python ones."""
_USER_AGENT: Final = istr("user-agent")
_CLASS_HEADER: Final = istr("x-tidegate-class")
_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def turn_of(headers: Mapping[str, str], fields: Mapping[str, Any], body: bytes) -> Turn:
    """What a request of a generating route is to admission.

    Args:
        headers: the client's headers, looked up without regard to case.
        fields: the parsed body.
        body: the body's bytes.
    """
    credential = credential_digest(headers)
    try:
        prompt = facts_of(fields, credential)
    except (TypeError, ValueError, RecursionError):
        # Nested beyond measuring, or otherwise odd: the engine will judge it, by its plain size it counts here.
        whole = digest_of(body)
        prompt = PromptFacts(len(body), chain=(whole,), spans=(len(body),), opening=whole)
    named = named_session(headers, fields)
    return Turn(
        session=session_key(credential, named, prompt.opening),
        text_bytes=prompt.text_bytes,
        extra_tokens=prompt.extra_tokens,
        head_bytes=prompt.head_bytes,
        head=prompt.head,
        scope=prompt.scope,
        tools=prompt.tools,
        client=digest_of((headers.get(_USER_AGENT, "") + prompt.client_version).encode("utf-8", "surrogateescape")),
        chain=prompt.chain,
        spans=prompt.spans,
        output_limit_tokens=_output_limit(fields),
        patience_s=_patience_s(headers),
        # Copies are told from equal requests only where the client says whose turn it is.
        twin=digest_of(body) or 1 if named is not None else 0,
        is_batch=headers.get(_CLASS_HEADER, "").lower() == "batch",
    )


def _output_limit(fields: Mapping[str, Any]) -> int | None:
    for name in _LIMIT_FIELDS:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _patience_s(headers: Mapping[str, str]) -> float | None:
    for name in _TIMEOUT_HEADERS:
        value = headers.get(name)
        if value and _SECONDS.fullmatch(value):
            said_s = max(1.0, float(value))
            is_claude_code = headers.get(_USER_AGENT, "").startswith(CLAUDE_CODE)
            return min(said_s, _CLAUDE_CODE_PATIENCE_S) if is_claude_code else said_s
    return None
