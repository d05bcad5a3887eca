"""The allow-list: which paths are forwarded, and as what. Anything else never reaches a backend.

Called by `net.server`; matches the exact bytes that would be sent on, never a normalised form of them.
"""

import re
from typing import Final

from proxy.core.errors import Refusal
from proxy.core.outcomes import Outcome
from proxy.core.requests import Dialect, Route, StreamEnd

_ANTHROPIC_PREFIX: Final = "/v1/messages"

_RERANK: Final = Route("rerank")
_SCORE: Final = Route("score")
# In vLLM 0.32 `entrypoints/openai/responses/serving.py` hands the engine no rank, whatever the header says; chat,
# completions and messages do (`openai/chat_completion/`, `openai/completion/`, `anthropic/serving.py`).
_RESPONSES: Final = Route("responses", stream_end=StreamEnd.RESPONSE_COMPLETED, generates=True, takes_rank=False)
_STORED_RESPONSE: Final = Route("stored_response", stream_end=StreamEnd.RESPONSE_COMPLETED)

# The forms that vLLM 0.32 serves, less every path that steers the engine (sleep, pause, LoRA loading, cache reset,
# weight updates, collective_rpc) or that would let a client in by another door (/invocations).
_FORWARDED: Final[dict[str, dict[str, Route]]] = {
    "/v1/chat/completions": {"POST": Route("chat_completions", stream_end=StreamEnd.DONE, generates=True)},
    "/v1/completions": {"POST": Route("completions", stream_end=StreamEnd.DONE, generates=True)},
    "/v1/responses": {"POST": _RESPONSES},
    "/v1/messages": {
        "POST": Route("messages", dialect=Dialect.ANTHROPIC, stream_end=StreamEnd.MESSAGE_STOP, generates=True)
    },
    "/v1/messages/count_tokens": {"POST": Route("count_tokens", dialect=Dialect.ANTHROPIC)},
    "/v1/embeddings": {"POST": Route("embeddings")},
    "/v2/embed": {"POST": Route("embeddings")},
    "/rerank": {"POST": _RERANK},
    "/v1/rerank": {"POST": _RERANK},
    "/v2/rerank": {"POST": _RERANK},
    "/score": {"POST": _SCORE},
    "/v1/score": {"POST": _SCORE},
    "/pooling": {"POST": Route("pooling")},
    "/classify": {"POST": Route("classify")},
    "/tokenize": {"POST": Route("tokenize")},
    "/detokenize": {"POST": Route("detokenize")},
    "/v1/audio/transcriptions": {"POST": Route("audio", stream_end=StreamEnd.DONE, is_multipart=True)},
    "/v1/audio/translations": {"POST": Route("audio", stream_end=StreamEnd.DONE, is_multipart=True)},
}

_RESPONSE_BY_ID: Final = re.compile(r"/v1/responses/(?P<id>[A-Za-z0-9_-]{1,128})(?P<action>/cancel)?")
_RESPONSE_METHODS: Final[dict[str | None, str]] = {None: "GET", "/cancel": "POST"}

ROUTE_NAMES: Final[frozenset[str]] = frozenset(
    {route.name for methods in _FORWARDED.values() for route in methods.values()} | {_STORED_RESPONSE.name}
)


def dialect_of(path: str) -> Dialect:
    """The error shape that a client of this path expects, known route or not."""
    return Dialect.ANTHROPIC if path.startswith(_ANTHROPIC_PREFIX) else Dialect.OPENAI


def match(method: str, path: str) -> tuple[Route, str | None]:
    """Find the route of a path (without its query).

    Returns:
        The route, and the id of the stored response that the path names, if it names one.

    Raises:
        Refusal: 404 for a path that is not forwarded, 405 for a method that the path does not take.
    """
    methods = _FORWARDED.get(path)
    if methods is not None:
        route = methods.get(method)
        if route is None:
            raise method_not_allowed(method, path, ", ".join(sorted(methods)))
        return route, None
    by_id = _RESPONSE_BY_ID.fullmatch(path)
    if by_id is not None:
        allowed = _RESPONSE_METHODS[by_id["action"]]
        if method != allowed:
            raise method_not_allowed(method, path, allowed)
        return _STORED_RESPONSE, by_id["id"]
    raise Refusal(Outcome.REFUSED_NOT_FOUND, 404, f"There is no route {clipped(path)} here.")


def method_not_allowed(method: str, path: str, allow: str) -> Refusal:
    """The refusal of a known path under the wrong method."""
    message = f"{clipped(path)} does not take {clipped(method)}; it takes {allow}."
    return Refusal(Outcome.REFUSED_NOT_FOUND, 405, message, allow=allow)


def clipped(text: str, limit: int = 80) -> str:
    """Client text made safe for a message: printable ASCII only, bounded."""
    safe = "".join(char if " " <= char <= "~" else "?" for char in text[: limit + 1])
    return safe if len(safe) <= limit else safe[:limit] + "..."
