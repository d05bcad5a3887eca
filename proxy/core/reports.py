"""What one scrape says about one engine, as frozen values. `None` is unknown, and unknown is never free.

Made by the parsers in `engines`, handed on by `net.scrape`, read when deciding and when exporting. Nothing here is
negative: a number that an engine cannot mean is left out by the parser.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique


@unique
class EngineKind(StrEnum):
    """Whose metrics page it is."""

    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFacts:
    """What an engine says about its KV cache and its limits, as it says it. `engines.capacity` makes sense of it.

    Attributes:
        num_gpu_blocks: blocks of this engine alone, those that it keeps for itself included.
        reserved_blocks: how many of them no request can ever get.
        block_tokens: the configured block size; on a hybrid the smallest of its cache's groups (L51).
        attention_block_tokens: the size of one full-attention block.
        size_tokens: tokens that fit when every request is as long as the longest allowed.
        max_concurrency: how many requests of the longest allowed context fit at once.
        max_model_len_tokens: the longest allowed context.
        has_state: whether each request also holds a state of fixed size, as on a hybrid.
        has_prefix_caching: whether finished requests leave their prefix behind.
    """

    num_gpu_blocks: int | None = None
    reserved_blocks: int = 0
    block_tokens: int | None = None
    attention_block_tokens: int | None = None
    size_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    has_state: bool | None = None
    has_prefix_caching: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """What only grows while an engine process lives.

    Attributes:
        preemptions: requests put back to the queue because memory ran out (SGLang: retractions).
        external_queries_tokens: asked of a KV connector (LMCache, offload, another instance) after the local cache.
        prompt_tokens_by_source: computed here, found here, or brought in from outside.
        cached_tokens_by_tier: found tokens by where they lay: device, host, disk…
        iterations: engine steps; the best pulse there is (L54).
        drafts: speculations made; each proposes some draft tokens, of which some are accepted.
        prefilled_tokens: prompt tokens computed for requests that have ended; `prefill_s` is how long each of those
            took for it, added up: those that are computed together count the same time once each.
    """

    preemptions: int | None = None
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    external_queries_tokens: int | None = None
    external_hits_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_by_source: Mapping[str, int] = field(default_factory=dict)
    cached_tokens_by_tier: Mapping[str, int] = field(default_factory=dict)
    generation_tokens: int | None = None
    iterations: int | None = None
    successes: int | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    prefilled_tokens: int | None = None
    prefill_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One scrape's facts of one engine.

    Attributes:
        rank: the `engine` label (SGLang: `dp_rank`); one backend may hold several engines.
        kv_usage_ratio: share of blocks that running requests hold. Cached blocks that nobody uses count as free, so an
            idle engine full of warm prefixes says 0 (L52).
        waiting_capacity: waiting for room, of those waiting.
        waiting_deferred: held back by something else (adapters, transfers, grammars), of those waiting (L56).
        retracted: put back by the last batch; a gauge that only SGLang has.
        cache_hit_ratio: the engine's own figure over its own window; only SGLang has one.
        draft_accept_ratio: accepted of proposed draft tokens.
        tokens_per_draft: tokens gained a speculation, the one that comes anyway included.
        process_start_time_s: Unix seconds; only ever compared for equality and order.
        is_asleep: it takes no work until it is woken (L63).
    """

    kind: EngineKind
    rank: str = "0"
    model_name: str | None = None
    capacity: CapacityFacts = field(default_factory=CapacityFacts)
    kv_usage_ratio: float | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None
    waiting_deferred: int | None = None
    retracted: int | None = None
    counters: EngineCounters = field(default_factory=EngineCounters)
    cache_hit_ratio: float | None = None
    draft_accept_ratio: float | None = None
    tokens_per_draft: float | None = None
    process_start_time_s: float | None = None
    is_asleep: bool | None = None


@unique
class Continuity(StrEnum):
    """How a report follows the one before it."""

    FIRST = "first"
    CONTINUED = "continued"
    UNSURE = "unsure"
    """Counters went back; the next report tells whether they stay there."""
    RESTARTED = "restarted"
    """Another process: nothing of what it had cached is left."""
    ALTERNATING = "alternating"
    """Several processes answer in turn behind one address (L57); their counters cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDelta:
    """What happened between two reports of one engine. Everything but `continuity` is None unless it continued.

    Attributes:
        preemptions: how many, not a rate.
        prefix_hit_ratio: found of asked prompt tokens, in the engine's own cache.
        external_hit_ratio: found of asked tokens, outside.
        computed_tokens: prompt tokens that were really prefilled; a prompt counts when its last token is.
        fetched_tokens: prompt tokens that were brought in from outside instead (LMCache, offload, another instance).
        computed_tokens_per_s: the former, by the interval.
        prefill_tokens_per_s: the speed at which they were, at least; idle time is no part of it.
        has_progressed: whether any token was made or any step done; None when no such counter is known.
    """

    continuity: Continuity
    interval_s: float | None = None
    preemptions: int | None = None
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    prefix_hit_ratio: float | None = None
    external_hits_tokens: int | None = None
    external_hit_ratio: float | None = None
    prompt_tokens_per_s: float | None = None
    computed_tokens: int | None = None
    fetched_tokens: int | None = None
    computed_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    iterations_per_s: float | None = None
    successes: int | None = None
    draft_accept_ratio: float | None = None
    tokens_per_draft: float | None = None
    has_progressed: bool | None = None


@unique
class ScrapeFailure(StrEnum):
    """Why a scrape brought nothing."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    MISSING = "missing"
    """There is no such page: metrics are off, or it is another kind of server."""
    STATUS = "status"
    """Any other answer than 200: a key is asked for, a redirect, an error."""
    TOO_LARGE = "too_large"
    ENCODED = "encoded"
    """Compressed although we asked for plain text."""
    NOT_AN_ENGINE = "not_an_engine"
    """A page without one fact about an engine: HTML, another exporter, an empty answer."""
