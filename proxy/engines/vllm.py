"""vLLM's metrics page, versions 0.8 to 0.33, as reports: one for each `engine` label. Pure; never raises.

Names changed on the way (L50): `gpu_cache_usage_perc` became `kv_cache_usage_perc`, `gpu_prefix_cache_*` became
`prefix_cache_*`. What a version does not say stays None. Up to 0.8 prefix queries and hits count blocks, not tokens:
their ratio holds, their sum does not.
"""

import math
from typing import Final

from proxy.core.reports import CapacityFacts, EngineCounters, EngineKind, EngineReport
from proxy.engines.exposition import spelled
from proxy.engines.readings import SETTINGS, START_TIME, Layout, Readings, gather, ratio, usage

_NAMES: Final = {
    "kv_cache_usage_perc": "kv_usage",
    "gpu_cache_usage_perc": "kv_usage",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_requests_waiting_by_reason": "waiting_by_reason",
    "engine_sleep_state": "sleep",
    "num_preemptions": "preemptions",
    "prefix_cache_queries": "prefix_queries",
    "gpu_prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "gpu_prefix_cache_hits": "prefix_hits",
    "external_prefix_cache_queries": "external_queries",
    "connector_prefix_cache_queries": "external_queries",
    "external_prefix_cache_hits": "external_hits",
    "connector_prefix_cache_hits": "external_hits",
    "prompt_tokens": "prompt_tokens",
    "prompt_tokens_by_source": "prompt_by_source",
    "prompt_tokens_cached_by_source": "cached_by_tier",
    "generation_tokens": "generation_tokens",
    "iteration_tokens_total_count": "iterations",
    "request_prefill_kv_computed_tokens_sum": "prefilled_tokens",
    "request_prefill_time_seconds_sum": "prefill_s",
    "request_success": "successes",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
    "cache_config_info": SETTINGS,
    "scheduler_config_info": SETTINGS,
}
_LAYOUT: Final = Layout(
    wanted=spelled("vllm", _NAMES) | {"process_start_time_seconds": START_TIME},
    rank_label="engine",
    split_by={
        "waiting_by_reason": "reason",
        "sleep": "sleep_state",
        "prompt_by_source": "source",
        "cached_by_tier": "source",
        "successes": "finished_reason",
    },
    known_parts={
        "prompt_by_source": frozenset({"local_compute", "local_cache_hit", "external_kv_transfer"}),
        "cached_by_tier": frozenset({"device", "host", "p2p", "disk", "external_unspecified"}),
    },
)


def parse(text: str) -> tuple[EngineReport, ...]:
    """One report a rank, by rank; none without any fact."""
    page = gather(text, _LAYOUT)
    return tuple(_report(rank, seen, len(page.ranks), page.start_time_s) for rank, seen in page.ranks.items())


def _report(rank: str, seen: Readings, engines: int, start_time_s: float | None) -> EngineReport:
    counters = _counters(seen)
    drafts, accepted = counters.drafts, counters.accepted_draft_tokens
    return EngineReport(
        kind=EngineKind.VLLM,
        rank=rank,
        model_name=seen.model_name,
        capacity=_capacity(seen, engines),
        kv_usage_ratio=usage(seen.number("kv_usage")),
        running=seen.count("running"),
        waiting=seen.count("waiting"),
        waiting_capacity=seen.count("waiting_by_reason", "capacity"),
        waiting_deferred=seen.count("waiting_by_reason", "deferred"),
        counters=counters,
        draft_accept_ratio=ratio(accepted, counters.draft_tokens),
        tokens_per_draft=1 + accepted / drafts if drafts and accepted is not None else None,
        process_start_time_s=start_time_s,
        is_asleep=_is_asleep(seen),
    )


def _counters(seen: Readings) -> EngineCounters:
    return EngineCounters(
        preemptions=seen.count("preemptions"),
        prefix_queries_tokens=seen.count("prefix_queries"),
        prefix_hits_tokens=seen.count("prefix_hits"),
        external_queries_tokens=seen.count("external_queries"),
        external_hits_tokens=seen.count("external_hits"),
        prompt_tokens=seen.count("prompt_tokens"),
        prompt_tokens_by_source=seen.parts("prompt_by_source"),
        cached_tokens_by_tier=seen.parts("cached_by_tier"),
        generation_tokens=seen.count("generation_tokens"),
        iterations=seen.count("iterations"),
        successes=seen.total("successes"),
        drafts=seen.count("drafts"),
        draft_tokens=seen.count("draft_tokens"),
        accepted_draft_tokens=seen.count("accepted_tokens"),
        prefilled_tokens=seen.count("prefilled_tokens"),
        prefill_s=seen.number("prefill_s"),
    )


def _capacity(seen: Readings, engines: int) -> CapacityFacts:
    size_tokens = seen.whole_setting("kv_cache_size_tokens")
    concurrency = seen.setting("kv_cache_max_concurrency")
    attention_block = seen.whole_setting("effective_attention_block_size")
    caching, state = seen.settings.get("enable_prefix_caching"), seen.settings.get("mamba_cache_mode")
    return CapacityFacts(
        num_gpu_blocks=_own_blocks(seen.whole_setting("num_gpu_blocks"), attention_block, size_tokens, engines),
        reserved_blocks=1,
        block_tokens=seen.whole_setting("block_size"),
        attention_block_tokens=attention_block,
        size_tokens=size_tokens,
        max_concurrency=concurrency,
        max_model_len_tokens=_longest_context(size_tokens, concurrency) or seen.whole_setting("max_model_len"),
        max_num_seqs=seen.whole_setting("max_num_seqs"),
        max_num_batched_tokens=seen.whole_setting("max_num_batched_tokens"),
        has_state=None if state is None else state != "none",
        has_prefix_caching=None if caching not in {"True", "False"} else caching == "True",
    )


def _own_blocks(labelled: int | None, block_tokens: int | None, size_tokens: int | None, engines: int) -> int | None:
    """The blocks of one engine: vLLM's label is the sum over all engines of a frontend, the other labels are not."""
    if labelled is None or engines == 1:
        return labelled
    if block_tokens and size_tokens and labelled * block_tokens <= 1.1 * size_tokens:
        return labelled
    return labelled // engines or None


def _longest_context(size_tokens: int | None, concurrency: float | None) -> int | None:
    """The longest allowed context M: the engine reports int(K * M)."""
    if size_tokens is None or concurrency is None:
        return None
    longest = size_tokens / concurrency
    return math.ceil(longest - 1e-6 * longest) if math.isfinite(longest) else None


def _is_asleep(seen: Readings) -> bool | None:
    awake = seen.number("sleep", "awake")
    if seen.number("sleep", "weights_offloaded") or seen.number("sleep", "discard_all"):
        return True
    return None if awake is None else awake == 0
