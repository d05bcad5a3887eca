"""The engine's `/metrics` page: vLLM 0.32's names, labels and order, as far as the simulation has something to say.

Called by the HTTP face. Pure: text from values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.sim.engine import Engine
from proxy.sim.histograms import Histogram
from proxy.sim.presets import EngineConfig
from proxy.sim.request_stats import RequestStats


@dataclass(slots=True)
class _Family:
    """One metric: its two lines of head, and its samples."""

    head: tuple[str, str]
    samples: list[str] = field(default_factory=list)


class _Page:
    """What one engine says; every sample gets its labels."""

    def __init__(self, model_name: str, rank: int) -> None:
        self._labels = {"engine": str(rank), "model_name": model_name}
        self.families: list[_Family] = []

    def family(self, name: str, kind: str, text: str, samples: Mapping[tuple[str, str] | None, float]) -> None:
        """A gauge or counter; samples by one more label's name and value, or None."""
        self._head(name, kind, text)
        for label, value in samples.items():
            self._sample(name, {**self._labels, **dict([label] if label else ())}, value)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        """A histogram."""
        self._head(name, "histogram", text)
        for bound, count in histogram.cumulative():
            self._sample(f"{name}_bucket", {**self._labels, "le": bound}, count)
        self._sample(f"{name}_count", self._labels, histogram.count)
        self._sample(f"{name}_sum", self._labels, histogram.sum)

    def info(self, name: str, text: str, labels: Mapping[str, str]) -> None:
        """A gauge whose labels are the message."""
        self._head(name, "gauge", text)
        self._sample(name, {**labels, "engine": self._labels["engine"]}, 1)

    def _head(self, name: str, kind: str, text: str) -> None:
        self.families.append(_Family((f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}")))

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        shown = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
        self.families[-1].samples.append(f"vllm:{name}{{{shown}}} {float(value)!r}")


def metrics_page(engines: Sequence[tuple[Engine, RequestStats]], model_name: str, started_at: float) -> str:
    """The whole page; `started_at` is the process's start in Unix seconds, its engines are in the order of rank."""
    pages = [_page(engine, stats, model_name, rank, len(engines)) for rank, (engine, stats) in enumerate(engines)]
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {float(started_at)!r}",
    ]
    for families in zip(*(page.families for page in pages), strict=True):
        lines += families[0].head
        for family in families:
            lines += family.samples
    return "\n".join(lines) + "\n"


def _page(engine: Engine, stats: RequestStats, model_name: str, rank: int, engines: int) -> _Page:
    page = _Page(model_name, rank)
    _gauges(page, engine)
    _counters(page, engine, stats)
    _histograms(page, stats)
    labels = cache_config_labels(engine.config, engines)
    page.info("cache_config_info", "Information of the LLMEngine CacheConfig", labels)
    return page


def cache_config_labels(config: EngineConfig, engines: int = 1) -> dict[str, str]:
    """The labels of `cache_config_info` from which a proxy computes capacity.

    On a hybrid model `block_size` is the smallest over the cache's groups and says nothing about attention blocks. Of
    several engines behind one server `num_gpu_blocks` is the sum, all else is each one's own.
    """
    is_hybrid = config.state_blocks > 0
    return {
        "_block_size_resolved": "True",
        "block_size": "16" if is_hybrid else str(config.block_tokens),
        "cache_dtype": config.cache_dtype,
        "effective_attention_block_size": str(config.block_tokens),
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92",
        "is_attention_free": "False",
        "kv_cache_max_concurrency": repr(config.max_concurrency),
        "kv_cache_size_tokens": str(config.size_tokens),
        "mamba_block_size": str(config.block_tokens) if is_hybrid else "None",
        "mamba_cache_mode": "align" if is_hybrid else "none",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(engines * config.num_gpu_blocks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }


def _gauges(page: _Page, engine: Engine) -> None:
    report = engine.report()
    page.family(
        "num_requests_running", "gauge", "Number of requests in model execution batches.", {None: report.running}
    )
    page.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", {None: report.waiting})
    page.family(
        "num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason.",
        {("reason", "capacity"): report.waiting, ("reason", "deferred"): 0},
    )
    page.family(
        "engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 1 means engine is awake.",
        {("sleep_state", state): float(state == "awake") for state in ("awake", "weights_offloaded", "discard_all")},
    )
    page.family(
        "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", {None: report.usage_ratio}
    )


def _counters(page: _Page, engine: Engine, stats: RequestStats) -> None:
    counters = engine.counters
    rows: list[tuple[str, str, Mapping[tuple[str, str] | None, float]]] = [
        ("prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", {None: counters.prefix_queries}),
        ("prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", {None: counters.prefix_hits}),
        ("num_preemptions", "Cumulative number of preemption from the engine.", {None: counters.preemptions}),
        ("prompt_tokens", "Number of prefill tokens processed.", {None: counters.prompt}),
        (
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            {
                ("source", "local_compute"): counters.prompt - counters.prompt_cached,
                ("source", "local_cache_hit"): counters.prompt_cached,
                ("source", "external_kv_transfer"): 0,
            },
        ),
        ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", {None: counters.prompt_cached}),
        ("generation_tokens", "Number of generation tokens processed.", {None: counters.generation}),
        (
            "request_success",
            "Count of successfully processed requests.",
            {("finished_reason", reason): count for reason, count in stats.endings.items()},
        ),
    ]
    for name, text, samples in rows:
        page.family(f"{name}_total", "counter", text, samples)


def _histograms(page: _Page, stats: RequestStats) -> None:
    rows = (
        ("request_prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
        ("request_generation_tokens", "Number of generation tokens processed.", stats.generation_tokens),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", stats.iteration_tokens),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", stats.max_tokens),
        ("time_to_first_token_seconds", "Histogram of time to first token.", stats.first_token_s),
        ("inter_token_latency_seconds", "Histogram of inter-token latency.", stats.token_gap_s),
        ("request_time_per_output_token_seconds", "Histogram of time per output token.", stats.per_token_s),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency.", stats.whole_s),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase.", stats.queue_s),
        ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase.", stats.inference_s),
        ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase.", stats.prefill_s),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase.", stats.decode_s),
        ("request_num_preemptions", "Histogram of preemptions per request.", stats.preemptions),
        (
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill.",
            stats.prefill_computed_tokens,
        ),
    )
    for name, text, histogram in rows:
        page.histogram(name, text, histogram)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
