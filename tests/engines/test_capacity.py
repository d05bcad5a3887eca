import pytest

from proxy.core.capacity import CapacityWarning, KvCapacity
from proxy.core.reports import CapacityFacts
from proxy.engines import parse_page
from proxy.engines.capacity import capacity_of, capacity_of_tokens
from tests.engines.pages import page


def known(facts, **more):
    """A capacity that the labels do say."""
    capacity = capacity_of(facts, **more)
    assert capacity is not None
    return capacity


def labelled(*, blocks, block, longest, per_request, **more):
    """What an engine says that holds `per_request` blocks for a request of the longest context."""
    concurrency = blocks / per_request
    return CapacityFacts(
        num_gpu_blocks=blocks,
        reserved_blocks=1,
        attention_block_tokens=block,
        size_tokens=int(concurrency * longest),
        max_concurrency=concurrency,
        max_model_len_tokens=longest,
        **more,
    )


@pytest.mark.parametrize(("draft_tokens", "fit"), [(0, 39), (1, 22), (2, 15), (3, 12)])
def test_speculation_multiplies_what_a_hybrid_holds(draft_tokens, fit):
    """The users' table: 158 blocks of 808, three state pages each, times one more than the draft tokens."""
    capacity = KvCapacity(total_blocks=158, block_tokens=808, beta_blocks=3 * (1 + draft_tokens))

    assert fit == capacity.max_concurrent(500)


def test_a_hybrid_engine_is_worked_out_from_its_labels():
    """The CPU hybrid: 200 blocks of 256, 1.4925 requests of 32,768 tokens, so 6 blocks besides the context."""
    capacity = known(labelled(blocks=200, block=256, longest=32_768, per_request=134))

    assert (199, 256, 6, False, None) == (
        capacity.total_blocks, capacity.block_tokens, capacity.beta_blocks, capacity.is_approximate, capacity.warning
    )  # fmt: skip
    assert 134 == capacity.blocks_for(32_768)
    assert 1 == capacity.max_concurrent(32_768)
    assert 28 == capacity.max_concurrent(50)


@pytest.mark.parametrize(("size", "longest", "shown"), [(638_075, 131_072, "4.87"), (329_510, 262_144, "1.26")])
def test_a_plain_model_holds_its_context_and_nothing_else(size, longest, shown):
    """The users' start-up lines."""
    facts = labelled(blocks=size // 16, block=16, longest=longest, per_request=longest // 16)

    capacity = known(facts)

    assert shown == f"{facts.max_concurrency:.2f}"
    assert (0, None) == (capacity.beta_blocks, capacity.warning)
    assert int(float(shown)) == capacity.max_concurrent(longest)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm-0.8", KvCapacity(total_blocks=6_412, block_tokens=16, is_approximate=True)),
        ("vllm-0.11", KvCapacity(total_blocks=744, block_tokens=16, is_approximate=True)),
        ("vllm-0.13-dp2-mtp", KvCapacity(total_blocks=9_999, block_tokens=16, is_approximate=True)),
        ("vllm-0.24-hybrid", KvCapacity(total_blocks=752, block_tokens=832, beta_blocks=5, is_approximate=True)),
        ("vllm-0.32-idle", KvCapacity(total_blocks=199, block_tokens=128)),
        ("vllm-0.32-hybrid-busy", KvCapacity(total_blocks=199, block_tokens=128, beta_blocks=6)),
        ("sglang-0.5-dp2", KvCapacity(total_blocks=1_563, block_tokens=64)),
        ("sglang-0.5-underscores", KvCapacity(total_blocks=1_000_000, block_tokens=1, is_approximate=True)),
        ("sglang-0.4", None),
    ],
)
def test_capacity_of_every_version(name, expected):
    """Exact from 0.32's labels, approximate before, unknown without any."""
    assert expected == capacity_of(parse_page(page(name))[0].capacity)


def test_a_block_size_that_contradicts_the_capacity_is_not_believed():
    """L51: 4 or 16 shown, 256 or 528 used."""
    facts = CapacityFacts(num_gpu_blocks=1_000, reserved_blocks=1, block_tokens=16, size_tokens=520_000)

    capacity = known(facts)

    assert (520, True, CapacityWarning.BLOCK_SIZE) == (
        capacity.block_tokens, capacity.is_approximate, capacity.warning
    )  # fmt: skip


def test_a_difference_within_a_tenth_is_none():
    """The block that an engine keeps for itself, rounding, a few fixed blocks."""
    facts = CapacityFacts(num_gpu_blocks=1_000, reserved_blocks=1, block_tokens=16, size_tokens=15_000)

    assert known(facts).warning is None


def test_more_fixed_blocks_than_context_are_flagged():
    """Two attention groups look like that; short requests hold less than the labels say."""
    labels = {"blocks": 3_000, "block": 16, "longest": 16_000, "per_request": 2_100}
    capacity = known(labelled(**labels))

    assert (1_100, True, CapacityWarning.FIXED_BLOCKS) == (
        capacity.beta_blocks, capacity.is_approximate, capacity.warning
    )  # fmt: skip
    assert known(labelled(**labels, has_state=True)).warning is None


def test_the_longest_context_may_come_from_elsewhere():
    """Labels with K alone: `/v1/models` knows M."""
    facts = CapacityFacts(num_gpu_blocks=200, attention_block_tokens=256, size_tokens=48_907, max_concurrency=200 / 134)

    assert 6 == known(facts, max_model_len_tokens=32_768).beta_blocks
    assert 0 == known(facts).beta_blocks


def test_blocks_follow_from_tokens_where_only_those_are_known():
    """Better than nothing."""
    assert 100 == known(CapacityFacts(block_tokens=16, size_tokens=1_600)).total_blocks


@pytest.mark.parametrize(
    "facts",
    [
        CapacityFacts(),
        CapacityFacts(num_gpu_blocks=5),
        CapacityFacts(block_tokens=16, num_gpu_blocks=1, reserved_blocks=1),
    ],
)
def test_too_little_said_is_no_capacity(facts):
    """Unknown is not unlimited."""
    assert capacity_of(facts) is None


def test_a_size_that_somebody_states_is_one_of_usual_blocks():
    """Approximate: nobody states what a request holds besides."""
    capacity = capacity_of_tokens(100_000)

    assert (capacity.total_tokens, capacity.block_tokens, capacity.is_approximate) == (100_000, 16, True)
    assert capacity_of_tokens(1).total_blocks == 1


def test_a_request_holds_whole_blocks_and_never_none():
    """One token more needs one block more."""
    capacity = KvCapacity(total_blocks=10, block_tokens=16)

    assert [1, 1, 1, 2] == [capacity.blocks_for(tokens) for tokens in (0, 1, 16, 17)]
    assert (10, 8, 0) == (
        capacity.max_concurrent(16), capacity.max_concurrent(16, 0.85), capacity.max_concurrent(161)
    )  # fmt: skip
    assert 160 == capacity.total_tokens
