"""What a client is told, or given, when no backend has the route that it asked for. Pure.

Nothing is translated into another dialect: engines speak them all themselves now, and translators are where streams
break. Only a count of tokens can be stood in for by a guess, which says that it is one.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.core.errors import RouteMissing
from proxy.core.outcomes import Outcome
from proxy.core.requests import Route
from proxy.dialects.prompts import facts_of
from proxy.dialects.routes import clipped

_SINCE: Final[dict[str, str]] = {
    "messages": "vLLM has it since 0.11.1",
    "count_tokens": "vLLM has it since 0.17",
    "responses": "vLLM has it since 0.10",
    "stored_response": "vLLM has it since 0.10, where VLLM_ENABLE_RESPONSES_API_STORE=1 is set",
    "embeddings": "vLLM has it where it serves an embedding model",
    "rerank": "vLLM has it where it serves a cross-encoder or an embedding model",
    "score": "vLLM has it where it serves a cross-encoder or an embedding model",
    "pooling": "vLLM has it where it serves a pooling model",
    "classify": "vLLM has it where it serves a classifier",
    "audio": "vLLM has it where it serves a speech model",
}
_BYTES_PER_TOKEN: Final = 4.0
"""3.95 to 4.11 in agents' prompts."""
ESTIMATE_HEADER: Final = (b"x-tidegate-estimate", b"input_tokens")
"""Stands on a count that is a guess."""


def refusal(route: Route, target: str) -> RouteMissing:
    """What a client is told; no 404, which makes Claude Code ask for the same without a stream.

    Args:
        route: what is missing everywhere.
        target: path and query as the client sent them.
    """
    path = clipped(target.split("?", 1)[0])
    since = _SINCE.get(route.name)
    hint = f" {since}." if since else ""
    message = f"No backend that serves this model has the route {path}; each answered that it does not know it.{hint}"
    return RouteMissing(Outcome.REFUSED_NOT_FOUND, 400, message)


def estimated_count(fields: Mapping[str, Any]) -> bytes:
    """A guess in the place of `/v1/messages/count_tokens`, from the size of the text.

    Args:
        fields: the parsed body.
    """
    try:
        facts = facts_of(fields)
        tokens = round(facts.text_bytes / _BYTES_PER_TOKEN) + facts.extra_tokens
    except (TypeError, ValueError, RecursionError):
        tokens = round(len(orjson.dumps(fields, default=str)) / _BYTES_PER_TOKEN)
    return orjson.dumps({"input_tokens": max(1, tokens)})
