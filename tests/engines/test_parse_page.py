import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.engines import parse_page
from tests.engines.pages import NAMES, line, page

PAGES = [page(name) for name in NAMES]
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(["NaN", "-1", "-0.0", "+Inf", "1e999", "0x10", "", "1 2", "None", "\u0661", "1_0"]),
    st.text(max_size=8),
)
LABELS = st.dictionaries(
    st.sampled_from(["engine", "model_name", "reason", "source", "dp_rank", "num_gpu_blocks", "kv_cache_size_tokens"]),
    VALUES,
    max_size=4,
)
METRICS = st.sampled_from(
    [
        "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting_by_reason",
        "vllm:cache_config_info", "vllm:request_success_total", "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_accepted_tokens_total", "sglang:token_usage", "sglang:max_total_num_tokens",
        "sglang:num_pages", "sglang:page_size", "sglang:cached_tokens_total", "process_start_time_seconds",
    ]
)  # fmt: skip


def numbers_in(value):
    """Every number anywhere in a report."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from numbers_in(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def check(text):
    """What holds for every page."""
    for report in parse_page(text):
        assert all(math.isfinite(number) and number >= 0 for number in numbers_in(report))
        shares = (report.kv_usage_ratio, report.cache_hit_ratio, report.draft_accept_ratio)
        assert all(share is None or share <= 1 for share in shares)


@given(st.text())
def test_no_text_is_too_strange(text):
    """Never raises, never negative."""
    check(text)
    check("vllm:num_requests_running 1\n" + text)


@given(st.lists(st.tuples(METRICS, LABELS, VALUES), max_size=12))
def test_no_sample_is_too_strange(lines):
    """Known names with any labels and values."""
    check("".join(line(name, value, **labels) for name, labels, value in lines))


@settings(max_examples=50)
@given(st.sampled_from(PAGES), st.integers(0, 60_000), st.integers(0, 60_000), VALUES)
def test_no_damage_is_too_great(text, start, length, instead):
    """A real page with a piece replaced, and cut off there."""
    check(text[:start] + instead + text[start + length :])
    check(text[:start])


def test_a_page_cut_off_anywhere_never_says_more_than_the_whole():
    """A number whose end is missing is not believed."""
    text = page("vllm-0.8")
    (whole,) = parse_page(text)

    for end in range(len(text)):
        for report in parse_page(text[:end]):
            assert report.running in {None, whole.running}
            assert report.counters.successes in {None, 7, whole.counters.successes}


def test_pages_of_no_engine_give_no_report():
    """Row 96: HTML, nothing, another exporter."""
    for text in ("", "<html><body>404</body></html>\n", "node_load1 3\n", '{"detail":"Not Found"}'):
        assert () == parse_page(text)
