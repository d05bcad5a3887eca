import pytest

from proxy.core.reports import EngineKind
from proxy.engines.vllm import parse
from tests.engines.pages import line, page


def only(text):
    """The only report of a page."""
    (report,) = parse(text)
    return report


@pytest.mark.parametrize(
    ("name", "gauges", "counts"),
    [
        ("vllm-0.8", (0.4375, 3, 1), (1_200, 900, 2, 1_250, 640, 8)),
        ("vllm-0.10", (0.25, 5, 0), (32_000, 24_000, 0, 4_100, 900, 42)),
        ("vllm-0.11", (0.125, 2, 0), (8_000, 0, 0, 120, 130, 1)),
        ("vllm-0.24-hybrid", (0.2, 2, 487), (1_000, 0, 1, 10, None, None)),
        ("vllm-0.32-idle", (0.0, 0, 0), (0, 0, 0, 0, 0, 0)),
        ("vllm-0.32-used", (0.0, 0, 0), (2_667, 1_280, 0, 80, 80, 4)),
        ("vllm-0.32-busy", (0.9899497487437185, 8, 16), (24_282, 1_280, 0, 3_108, 460, 4)),
        ("vllm-0.32-hybrid-busy", (0.8894472361809045, 7, 17), (24_251, 1_280, 0, 106, 85, 4)),
    ],
)
def test_every_version_says_how_busy_it_is(name, gauges, counts):
    """L50: names changed, the facts did not."""
    report = only(page(name))
    seen = report.counters

    assert (EngineKind.VLLM, "0") == (report.kind, report.rank)
    assert gauges == (report.kv_usage_ratio, report.running, report.waiting)
    assert counts[:3] == (seen.prefix_queries_tokens, seen.prefix_hits_tokens, seen.preemptions)
    assert counts[3:] == (seen.generation_tokens, seen.iterations, seen.successes)


@pytest.mark.parametrize(
    ("name", "blocks", "tokens", "has_caching"),
    [
        ("vllm-0.8", (6_413, 16, None), (None, None), True),
        ("vllm-0.10", (102_563, 16, None), (None, None), True),
        ("vllm-0.11", (745, 16, None), (None, None), None),
        ("vllm-0.24-hybrid", (753, 832, None), (614_935, 262_144), True),
        ("vllm-0.32-idle", (200, 128, 128), (25_600, 24_576), True),
        ("vllm-0.32-hybrid-busy", (200, 128, 128), (24_824, 24_576), True),
    ],
)
def test_every_version_says_what_it_knows_of_its_cache(name, blocks, tokens, has_caching):
    """What a version does not say stays unknown; the longest context follows from the capacity."""
    facts = only(page(name)).capacity

    assert blocks == (facts.num_gpu_blocks, facts.block_tokens, facts.attention_block_tokens)
    assert tokens == (facts.size_tokens, facts.max_model_len_tokens)
    assert has_caching is facts.has_prefix_caching


def test_engines_of_one_page_are_kept_apart():
    """One report a rank; the block count is the sum over them, speculation is each one's own."""
    first, second = parse(page("vllm-0.13-dp2-mtp"))

    assert ("0", "1") == (first.rank, second.rank)
    assert (10_000, 10_000) == (first.capacity.num_gpu_blocks, second.capacity.num_gpu_blocks)
    assert (0.5, 0.97) == (first.kv_usage_ratio, second.kv_usage_ratio)
    assert (0.62, 2.24) == (first.draft_accept_ratio, first.tokens_per_draft)
    assert (0.5, 2.0) == (second.draft_accept_ratio, second.tokens_per_draft)
    assert (4_000, 2_000) == (first.counters.external_queries_tokens, first.counters.external_hits_tokens)
    assert 1_766_000_000 == first.process_start_time_s == second.process_start_time_s


def test_two_real_engines_behind_one_address():
    """Several API servers share one page, which then has no start time; sizes are each engine's own but for blocks."""
    reports = parse(page("vllm-0.32-dp2"))

    assert ["0", "1"] == [report.rank for report in reports]
    assert {200} == {report.capacity.num_gpu_blocks for report in reports}
    assert {25_600} == {report.capacity.size_tokens for report in reports}
    assert all(report.counters.prefix_hits_tokens for report in reports)
    assert {None} == {report.process_start_time_s for report in reports}


def test_blocks_are_not_divided_where_the_capacity_says_that_they_are_one_engines_own():
    """A frontend that does not add its engines up."""
    labels = {"num_gpu_blocks": "1000", "effective_attention_block_size": "16", "kv_cache_size_tokens": "16000"}
    text = "".join(line("vllm:cache_config_info", 1, engine=rank, **labels) for rank in ("0", "1"))

    assert [1_000, 1_000] == [report.capacity.num_gpu_blocks for report in parse(text)]


def test_waiting_is_told_apart_by_reason():
    """L56: a backlog with free memory is not a full cache."""
    report = only(page("vllm-0.24-hybrid"))

    assert (487, 0, 487) == (report.waiting, report.waiting_capacity, report.waiting_deferred)


def test_found_tokens_are_told_apart_by_where_they_came_from():
    """What LMCache or offload bring in is a hit at its own price."""
    real, mixed = only(page("vllm-0.32-used")).counters, only(page("vllm-0.24-hybrid")).counters

    expected = {"local_compute": 1_387, "local_cache_hit": 1_280, "external_kv_transfer": 0}
    assert expected == real.prompt_tokens_by_source
    assert 1_280 == real.cached_tokens_by_tier["device"]
    assert 600 == mixed.prompt_tokens_by_source["external_kv_transfer"]


def test_unknown_sources_share_one_name():
    """They become label values of ours, and those are a closed set."""
    text = "".join(line("vllm:prompt_tokens_by_source_total", 5, engine="0", source=f"new{at}") for at in range(9))

    assert {"other": 5} == only(text).counters.prompt_tokens_by_source


def test_a_hybrid_is_told_from_a_plain_model():
    """It holds blocks for each request besides its context; older versions do not say."""
    names = ("vllm-0.32-hybrid-busy", "vllm-0.32-idle", "vllm-0.8")

    assert [True, False, None] == [only(page(name)).capacity.has_state for name in names]


def test_sleep_is_seen():
    """L63: asleep, awake, or nothing said."""
    names = ("vllm-0.24-hybrid", "vllm-0.32-idle", "vllm-0.8")

    assert [True, False, None] == [only(page(name)).is_asleep for name in names]


def test_names_with_and_without_total_and_with_underscores_are_the_same():
    """Prometheus clients and collectors differ in both."""
    for name in ("vllm:num_preemptions_total", "vllm:num_preemptions", "vllm_num_preemptions_total"):
        assert 3 == only(line(name, 3, engine="0")).counters.preemptions


@pytest.mark.parametrize("value", ["NaN", "-1", "-0.5", "+Inf", "1e400", "45.0", "x", ""])
def test_a_usage_that_makes_no_sense_is_unknown_and_not_free(value):
    """Row 96: unknown is None, never 0."""
    text = line("vllm:kv_cache_usage_perc", value, engine="0") + line("vllm:num_requests_running", 2, engine="0")

    report = only(text)

    assert report.kv_usage_ratio is None
    assert 2 == report.running


def test_a_usage_a_little_above_one_is_full():
    """Rounding is no other unit."""
    assert 1.0 == only(line("vllm:kv_cache_usage_perc", 1.0000001, engine="0")).kv_usage_ratio


def test_a_sample_said_twice_counts_at_its_largest():
    """Several processes behind one page: never freer than any of them says."""
    text = line("vllm:num_requests_waiting", 4, engine="0", pid="7") + line("vllm:num_requests_waiting", 1, engine="0")

    assert 4 == only(text).waiting


def test_what_has_no_rank_belongs_to_the_only_engine_and_to_nobody_among_several():
    """Numbers of several engines cannot be shared out."""
    unranked = line("vllm:num_preemptions_total", 3)
    ranked = [line("vllm:num_requests_running", 1, engine=rank) for rank in ("0", "1")]

    assert 3 == only(unranked + ranked[0]).counters.preemptions
    assert [None, None] == [report.counters.preemptions for report in parse(unranked + "".join(ranked))]


def test_settings_that_say_none_are_unknown():
    """An engine that has not sized its cache yet says None or 0."""
    labels = {
        "num_gpu_blocks": "None",
        "block_size": "0",
        "kv_cache_size_tokens": "-5",
        "kv_cache_max_concurrency": "nan",
    }

    facts = only(line("vllm:cache_config_info", 1, engine="0", **labels)).capacity

    assert (None, None) == (facts.num_gpu_blocks, facts.block_tokens)
    assert (None, None, None) == (facts.size_tokens, facts.max_concurrency, facts.max_model_len_tokens)


def test_the_users_start_up_lines_come_out():
    """638,075 tokens are 4.87 requests of 131,072; 329,510 are 1.26 of 262,144."""
    for size, longest, shown in ((638_075, 131_072, "4.87"), (329_510, 262_144, "1.26")):
        labels = {"kv_cache_size_tokens": str(size), "kv_cache_max_concurrency": repr(size / longest)}
        facts = only(line("vllm:cache_config_info", 1, engine="0", **labels)).capacity

        assert longest == facts.max_model_len_tokens
        assert shown == f"{facts.max_concurrency:.2f}"


def test_limits_are_read_where_an_engine_exposes_them():
    """vLLM itself does not."""
    labels = {"max_num_seqs": "8", "max_num_batched_tokens": "2048", "max_model_len": "4096"}

    facts = only(line("vllm:scheduler_config_info", 1, engine="0", **labels)).capacity

    assert (8, 2_048, 4_096) == (facts.max_num_seqs, facts.max_num_batched_tokens, facts.max_model_len_tokens)
