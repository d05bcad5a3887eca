"""The metrics page, read as Prometheus reads it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.sim.engine import Engine
from proxy.sim.metrics_page import cache_config_labels, metrics_page
from proxy.sim.presets import preset
from proxy.sim.request_stats import RequestStats
from tests.sim.engines import engine, request, run


def samples(subject, stats=None, model="tiny"):
    """Every sample's value by name and by its labels beside the engine's."""
    page = metrics_page([(subject, stats or RequestStats())], model, 123.5)
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("engine", "model_name")}
            found[sample.name, *labels.values()] = sample.value
    return found


def test_counters_and_gauges():
    """Counters carry what the engine counted, under vLLM's names."""
    subject = engine()
    keys = [("a", 0), ("a", 1)]
    for name in "ab":
        subject.submit(request(name, 25, output=3, keys=keys), 0.0)
        run(subject)
    found = samples(subject)
    assert found["vllm:prefix_cache_queries_total",] == 50
    assert found["vllm:prefix_cache_hits_total",] == 20
    assert found["vllm:prompt_tokens_total",] == 50
    assert found["vllm:prompt_tokens_by_source_total", "local_compute"] == 30
    assert found["vllm:prompt_tokens_cached_total",] == 20
    assert found["vllm:generation_tokens_total",] == 6
    assert found["vllm:num_preemptions_total",] == 0
    assert found["vllm:kv_cache_usage_perc",] == 0
    assert found["process_start_time_seconds",] == 123.5


def test_usage_counts_running_blocks_only():
    """Usage is the part of the pool that running requests hold."""
    subject = engine()
    subject.submit(request("a", 25, output=3), 0.0)
    subject.step(0.0)
    assert samples(subject)["vllm:kv_cache_usage_perc",] == pytest.approx(0.3)


def test_endings_and_histograms():
    """Every ending of vLLM has a sample from the start, and histograms add up."""
    stats = RequestStats()
    stats.endings["stop"] += 2
    stats.first_token_s.observe(0.07)
    stats.iteration_tokens.observe(5, 3)
    found = samples(engine(), stats)
    endings = {key[1]: value for key, value in found.items() if key[0] == "vllm:request_success_total"}
    assert endings == {"stop": 2, "length": 0, "abort": 0, "error": 0, "repetition": 0}
    assert found["vllm:time_to_first_token_seconds_bucket", "0.06"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket", "0.08"] == 1
    assert found["vllm:time_to_first_token_seconds_bucket", "+Inf"] == 1
    assert found["vllm:iteration_tokens_total_count",] == 3
    assert found["vllm:iteration_tokens_total_sum",] == 15


def test_labels_of_a_hybrid():
    """On a hybrid `block_size` is not the attention block, and capacity is concurrency times context."""
    labels = cache_config_labels(preset("card-32gb"))
    assert labels["block_size"] != labels["effective_attention_block_size"] == "808"
    capacity = float(labels["kv_cache_max_concurrency"]) * 98_304
    assert int(labels["kv_cache_size_tokens"]) == int(capacity) == 128_382


def test_labels_of_a_plain_model():
    """On a plain model both block sizes are the same and blocks times size is the capacity."""
    labels = cache_config_labels(preset("h200-8b"))
    assert labels["block_size"] == labels["effective_attention_block_size"] == "16"
    assert int(labels["num_gpu_blocks"]) * 16 == int(labels["kv_cache_size_tokens"])


def test_odd_model_names():
    """A model's name cannot break the page."""
    assert samples(Engine(preset("h200-8b")), model='a"b\\c\nd')
