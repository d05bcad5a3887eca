"""Finds out what must be known of a URL before agents start: its model, how it counts tokens, where its metrics are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import orjson

from proxy.bench.client import Target
from proxy.bench.dialects import Answer, Api, StreamFailedError, body, headers
from proxy.bench.engine_pages import read_engines
from proxy.bench.plans import chance
from proxy.bench.words import CANDIDATES, Conversation, Words, one_token_words

_SAMPLE_WORDS: Final = 800
_LEAST_WORDS: Final = 64
"""Fewer different words than this would make texts alike."""
_PATIENCE: Final = aiohttp.ClientTimeout(total=120, sock_connect=10)
"""A probe may stand in an engine's queue."""


class UnfitTargetError(Exception):
    """Nothing can be measured there; the text says why."""


@dataclass(frozen=True, slots=True)
class KnownTarget:
    """A target and what was found out about it.

    Attributes:
        context_tokens: the longest context of its model, when it says so.
    """

    target: Target
    words: Words
    context_tokens: int | None
    metrics_urls: tuple[str, ...]


async def probe(http: aiohttp.ClientSession, target: Target, metrics_urls: Sequence[str]) -> KnownTarget:
    """Look at a URL. An empty model in `target` takes the first one listed; no metrics URL tries the target's own.

    Raises:
        UnfitTargetError: it does not answer, or has no such model.
    """
    model, context_tokens = await _model(http, target)
    target = replace(target, model=model)
    words = await _tokenized_words(http, target)
    if target.api is Api.CHAT or words is None:
        target, words = await _asked_words(http, target, words)
    urls = tuple(map(_page_url, metrics_urls))
    if not urls and await read_engines(http, [_page_url(target.url)]):
        urls = (_page_url(target.url),)
    return KnownTarget(target, words, context_tokens, urls)


def _page_url(url: str) -> str:
    return url if url.rstrip("/").endswith("/metrics") else url.rstrip("/") + "/metrics"


async def _model(http: aiohttp.ClientSession, target: Target) -> tuple[str, int | None]:
    """The model's name and its longest context."""
    try:
        status, answer = await _json(http, "GET", f"{target.url}/v1/models", target)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnfitTargetError(f"{target.url} does not answer: {str(error) or type(error).__name__}") from None
    cards = answer.get("data") if isinstance(answer, dict) else None
    named = {card["id"]: card for card in cards or () if isinstance(card, dict) and isinstance(card.get("id"), str)}
    name = target.model or next(iter(named), "")
    if not name:
        raise UnfitTargetError(f"{target.url}/v1/models lists no model (status {status}); give --model")
    limit = named.get(name, {}).get("max_model_len")
    return name, limit if isinstance(limit, int) else None


async def _tokenized_words(http: aiohttp.ClientSession, target: Target) -> Words | None:
    """Words as the server's tokenizer sees them; None when it has no route that says so."""
    try:
        found = await _tokenized(http, target, " ".join(CANDIDATES))
        chosen = one_token_words(found.get("token_strs") or ()) if found else ()
        if len(chosen) < _LEAST_WORDS:
            chosen = CANDIDATES
        text = " ".join(chance("tokenize").choices(chosen, k=_SAMPLE_WORDS))
        counted = await _tokenized(http, target, text) if found else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    return Words(chosen, counted["count"] / _SAMPLE_WORDS) if counted else None


async def _tokenized(http: aiohttp.ClientSession, target: Target, text: str) -> dict[str, Any] | None:
    asked = {"model": target.model, "prompt": text, "add_special_tokens": False, "return_token_strs": True}
    status, answer = await _json(http, "POST", f"{target.url}/tokenize", target, orjson.dumps(asked))
    return answer if status == 200 and isinstance(answer, dict) and isinstance(answer.get("count"), int) else None


async def _asked_words(http: aiohttp.ClientSession, target: Target, words: Words | None) -> tuple[Target, Words]:
    """Ask for one token: learns whether lengths can be fixed and, with no tokenizer route, what a word counts."""
    status, short_tokens = await _prompt_tokens(http, target, 1)
    if status == 400 and target.has_fixed_lengths:
        target = replace(target, has_fixed_lengths=False)
        status, short_tokens = await _prompt_tokens(http, target, 1)
    if status in {401, 403, 404}:
        raise UnfitTargetError(f"{target.url}{target.api.path} answered {status} for the model {target.model!r}")
    if words is not None:
        return target, words
    _, long_tokens = await _prompt_tokens(http, target, 1 + _SAMPLE_WORDS)
    if short_tokens is None or long_tokens is None:
        return target, Words()
    return target, Words(tokens_per_word=max((long_tokens - short_tokens) / _SAMPLE_WORDS, 0.1))


async def _prompt_tokens(http: aiohttp.ClientSession, target: Target, words: int) -> tuple[int, int | None]:
    """Status and prompt tokens of a question of so many words."""
    conversation = Conversation(Words(tokens_per_word=1.0), run="probe", shared_tokens=1, session=words)
    conversation.add_user(" ".join(chance("probe").choices(CANDIDATES, k=words)), words)
    asked = body(target.api, target.model, conversation, 1, has_fixed_length=target.has_fixed_lengths)
    answer = Answer(target.api)
    try:
        async with http.post(
            target.url + target.api.path,
            data=orjson.dumps(asked),
            headers=headers(target.api, target.key),
            timeout=_PATIENCE,
        ) as response:
            if response.status == 200:
                answer.feed(await response.read() + b"\n")
            return response.status, answer.prompt_tokens
    except (aiohttp.ClientError, TimeoutError, OSError, StreamFailedError):
        return 0, None


async def _json(
    http: aiohttp.ClientSession, method: str, url: str, target: Target, data: bytes | None = None
) -> tuple[int, Any]:
    async with http.request(
        method, url, data=data, headers=headers(target.api, target.key), timeout=_PATIENCE
    ) as response:
        text = await response.read()
    try:
        return response.status, orjson.loads(text)
    except orjson.JSONDecodeError:
        return response.status, None
