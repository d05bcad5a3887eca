"""SGLang's metrics page as reports: one for each `dp_rank`, or a single one. Pure; never raises.

Its tensor and pipeline ranks are copies of one engine; a number said by several counts once, at its largest. Token
counters carry no rank, so with several engines on a page they belong to nobody.
"""

from typing import Final

from proxy.core.reports import CapacityFacts, EngineCounters, EngineKind, EngineReport
from proxy.engines.exposition import spelled
from proxy.engines.readings import START_TIME, Layout, Readings, gather, ratio, usage

_NAMES: Final = {
    "max_total_num_tokens": "size",
    "page_size": "page",
    "num_pages": "pages",
    "context_len": "context",
    "max_running_requests": "max_running",
    "max_prefill_tokens": "max_prefill",
    "token_usage": "usage",
    "full_token_usage": "full_usage",
    "num_used_tokens": "used",
    "kv_used_tokens": "used",
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "num_grammar_queue_reqs": "deferred",
    "num_retracted_reqs": "retracted",
    "num_retracted_requests": "preemptions",
    "cache_hit_rate": "hit_ratio",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "generation_tokens": "generation_tokens",
    "realtime_tokens": "realtime",
    "num_requests": "successes",
    "spec_accept_length": "accept_length",
    "spec_accept_rate": "accept_ratio",
}
_LAYOUT: Final = Layout(
    wanted=spelled("sglang", _NAMES) | {"process_start_time_seconds": START_TIME},
    rank_label="dp_rank",
    split_by={"cached_tokens": "cache_source", "realtime": "mode"},
    known_parts={
        "cached_tokens": frozenset({"", "device", "host"}),
        "realtime": frozenset({"prefill_compute", "prefill_cache", "decode"}),
    },
)


def parse(text: str) -> tuple[EngineReport, ...]:
    """One report a rank, by rank; none without any fact."""
    page = gather(text, _LAYOUT)
    return tuple(_report(rank, seen, page.start_time_s) for rank, seen in page.ranks.items())


def _report(rank: str, seen: Readings, start_time_s: float | None) -> EngineReport:
    queued, deferred = seen.count("queued"), seen.count("deferred")
    return EngineReport(
        kind=EngineKind.SGLANG,
        rank=rank,
        model_name=seen.model_name,
        capacity=_capacity(seen),
        kv_usage_ratio=_usage(seen),
        running=seen.count("running"),
        waiting=None if queued is None else queued + (deferred or 0),
        waiting_capacity=queued,
        waiting_deferred=deferred,
        retracted=seen.count("retracted"),
        counters=_counters(seen),
        cache_hit_ratio=ratio(seen.number("hit_ratio"), 1.0),
        draft_accept_ratio=ratio(seen.number("accept_ratio") or None, 1.0),
        tokens_per_draft=seen.number("accept_length") or None,
        process_start_time_s=start_time_s,
    )


def _capacity(seen: Readings) -> CapacityFacts:
    size_tokens, page_tokens = seen.count("size") or None, seen.count("page") or None
    pages = seen.count("pages") or None
    if pages is None and size_tokens is not None:
        pages = size_tokens // (page_tokens or 1)
    return CapacityFacts(
        num_gpu_blocks=pages,
        block_tokens=page_tokens or (1 if size_tokens is not None else None),
        attention_block_tokens=page_tokens,
        size_tokens=size_tokens,
        max_model_len_tokens=seen.count("context") or None,
        max_num_seqs=seen.count("max_running") or None,
        max_num_batched_tokens=seen.count("max_prefill") or None,
    )


def _usage(seen: Readings) -> float | None:
    """The fullest of its pools; that is what makes it retract."""
    for fact in ("usage", "full_usage"):
        known = usage(seen.number(fact))
        if known is not None:
            return known
    return ratio(seen.number("used"), seen.number("size"))


def _counters(seen: Readings) -> EngineCounters:
    cached, live = seen.parts("cached_tokens"), seen.parts("realtime")
    computed, found = live.get("prefill_compute"), live.get("prefill_cache")
    prompt_tokens = seen.count("prompt_tokens")
    if prompt_tokens is None and (computed is not None or found is not None):
        prompt_tokens = (computed or 0) + (found or 0)
    generation_tokens = seen.count("generation_tokens")
    fetched = cached.get("host", 0) + cached.get("other", 0) if "device" in cached else None
    if computed is None and cached and prompt_tokens is not None and prompt_tokens >= sum(cached.values()):
        computed = prompt_tokens - sum(cached.values())
    by_source = {"local_compute": computed, "local_cache_hit": found, "external_kv_transfer": fetched}
    return EngineCounters(
        preemptions=seen.count("preemptions"),
        prefix_queries_tokens=prompt_tokens if cached or found is not None else None,
        prefix_hits_tokens=cached.get("device", cached.get("")) if cached else found,
        external_hits_tokens=fetched,
        prompt_tokens=prompt_tokens,
        prompt_tokens_by_source={source: tokens for source, tokens in by_source.items() if tokens is not None},
        cached_tokens_by_tier={tier or "device": tokens for tier, tokens in cached.items()},
        generation_tokens=live.get("decode") if generation_tokens is None else generation_tokens,
        successes=seen.count("successes"),
    )
