from proxy.core.reports import EngineKind
from proxy.engines.sglang import parse
from tests.engines.pages import line, page


def test_an_old_page_says_little_and_the_rest_is_unknown():
    """No capacity, no retractions."""
    (report,) = parse(page("sglang-0.4"))

    assert (EngineKind.SGLANG, "0", 0.28) == (report.kind, report.rank, report.kv_usage_ratio)
    assert (162, 2_826, 2_826, None) == (
        report.running, report.waiting, report.waiting_capacity, report.waiting_deferred
    )  # fmt: skip
    assert 0.007507552643049313 == report.cache_hit_ratio
    assert report.capacity.num_gpu_blocks is None
    assert report.counters.preemptions is None
    assert report.counters.prefix_hits_tokens is None
    assert (8_128_902, 7_557_572) == (report.counters.prompt_tokens, report.counters.generation_tokens)


def test_ranks_are_engines_of_their_own():
    """Each has its pool; the server's own token counters belong to neither."""
    first, second = parse(page("sglang-0.5-dp2"))

    assert ("0", "1") == (first.rank, second.rank)
    assert (0.45, 0.9) == (first.kv_usage_ratio, second.kv_usage_ratio)
    assert (2, 1, 1) == (second.waiting, second.waiting_capacity, second.waiting_deferred)
    assert (7, 1) == (second.counters.preemptions, second.retracted)
    assert (1_563, 64, 32_768) == (
        first.capacity.num_gpu_blocks, first.capacity.attention_block_tokens, first.capacity.max_model_len_tokens
    )  # fmt: skip
    assert (10_000, 6_000, 900) == (
        first.counters.prefix_queries_tokens, first.counters.prefix_hits_tokens, first.counters.generation_tokens
    )  # fmt: skip
    assert (0.7, 2.4) == (first.draft_accept_ratio, first.tokens_per_draft)


def test_underscored_names_copies_and_cache_tiers():
    """Tensor ranks say the same twice; host and storage hits are not the device's."""
    (report,) = parse(page("sglang-0.5-underscores"))

    assert (2, 1, 0.45) == (report.running, report.waiting, report.kv_usage_ratio)
    assert (1_000_000, 1) == (report.capacity.num_gpu_blocks, report.capacity.block_tokens)
    assert {"device": 2_000, "host": 300, "other": 50} == report.counters.cached_tokens_by_tier
    assert (2_000, 350) == (report.counters.prefix_hits_tokens, report.counters.external_hits_tokens)


def test_speculation_switched_off_is_no_acceptance_of_zero():
    """Its gauges are there all the same."""
    (report,) = parse(line("sglang:spec_accept_length", 0.0, tp_rank="0") + line("sglang:spec_accept_rate", 0.0, a="b"))

    assert report.draft_accept_ratio is None
    assert report.tokens_per_draft is None


def test_a_usage_that_makes_no_sense_gives_way_to_the_next_best():
    """The pool's own share, then used of all tokens."""
    broken, pool = line("sglang:token_usage", "NaN"), line("sglang:full_token_usage", 0.5)
    used = line("sglang:num_used_tokens", 30) + line("sglang:max_total_num_tokens", 40)

    assert [0.5, 0.75, None] == [parse(text)[0].kv_usage_ratio for text in (broken + pool, broken + used, used[:29])]


def test_host_and_storage_count_as_brought_in_from_outside():
    """What was neither there nor brought in was computed; a page without tiers says nothing of it."""
    (tiers,), (plain,) = parse(page("sglang-0.5-underscores")), parse(page("sglang-0.4"))

    assert {"local_compute": 1_650, "external_kv_transfer": 350} == tiers.counters.prompt_tokens_by_source
    assert {} == plain.counters.prompt_tokens_by_source
