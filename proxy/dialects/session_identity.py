"""Whose thread of turns a request belongs to, from what clients send, in order of trust. Pure.

A session id covers a parent and its sub-agents, which are threads of their own; ids of single requests and addresses
are never taken. Two credentials never share a session, whatever they send.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
from multidict import istr

from proxy.core.turns import UNNAMED, SessionKey

_SESSION_HEADERS: Final = tuple(map(istr, (
    "x-claude-code-session-id",
    "session-id", "session_id", "thread-id",  # Codex
    "x-opencode-session", "x-session-id", "x-session-affinity", "x-qwen-code-session-id", "x-litellm-session-id",
    "conversation-id", "x-amp-thread-id",
)))  # fmt: skip
"""As the multidict keeps names, so that looking for each of them in every request costs half."""
_AGENT_HEADER: Final = istr("x-claude-code-agent-id")
_AUTHORIZATION: Final = istr("authorization")
_API_KEY: Final = istr("x-api-key")
_HARMLESS: Final = re.compile(r"[!-~]{1,256}")


def credential_digest(headers: Mapping[str, str]) -> str:
    """A short digest of the client's credential, or nothing when it sent none. It goes nowhere but here."""
    credential = headers.get(_AUTHORIZATION) or headers.get(_API_KEY)
    return _digest(credential) if credential else ""


@lru_cache(maxsize=128)
def _digest(credential: str) -> str:
    return hashlib.blake2b(credential.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def named_session(headers: Mapping[str, str], fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """The session and agent that a request names, or None when it names none.

    Args:
        headers: request headers, looked up without regard to case.
        fields: the parsed body.
    """
    agent = _harmless(headers.get(_AGENT_HEADER)) or ""
    for name in _SESSION_HEADERS:
        session = _harmless(headers.get(name))
        if session:
            return session, agent
    session = _harmless(fields.get("prompt_cache_key")) or _from_metadata(fields.get("metadata"))
    return (session, agent) if session else None


def session_key(credential: str, named: tuple[str, str] | None, fallback: int) -> SessionKey:
    """The key of a request's session.

    Args:
        credential: see `credential_digest`.
        named: see `named_session`.
        fallback: a digest of the prompt's head and first message, which stay the same over a session's turns.
    """
    if named is not None:
        return SessionKey(credential, named[0], named[1])
    return SessionKey(credential, f"{UNNAMED}{fallback & 0xFFFFFFFFFFFFFFFF:016x}")


def _from_metadata(metadata: Any) -> str | None:
    """Claude Code puts a JSON document with a `session_id` into `metadata.user_id`."""
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str) or not user_id.startswith("{") or len(user_id) > 4_096:
        return None
    try:
        parsed = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    return _harmless(parsed.get("session_id")) if isinstance(parsed, dict) else None


def _harmless(value: Any) -> str | None:
    return value if isinstance(value, str) and _HARMLESS.fullmatch(value) else None
