import pytest

from proxy.core.capacity import KvCapacity, together

PLAIN = KvCapacity(total_blocks=100, block_tokens=16)
HYBRID = KvCapacity(total_blocks=158, block_tokens=808, beta_blocks=3.0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 1), (1, 1), (16, 1), (17, 2), (160, 10), (161, 11)])
def test_a_context_holds_whole_blocks(tokens, blocks):
    """A block that is begun is held, and nothing holds less than one."""
    assert blocks == PLAIN.blocks_for(tokens)


def test_a_hybrid_holds_its_state_besides():
    """Each request costs its fixed pages however short it is."""
    assert HYBRID.blocks_for(1) == 4
    assert HYBRID.blocks_for(809) == 5


@pytest.mark.parametrize(("pages", "most"), [(3, 39), (6, 22), (9, 15), (12, 12)])
def test_the_users_sweep_comes_out_of_the_labels(pages, most):
    """158 blocks of 808 tokens with MTP 0 to 3: the measured queue starts lie at these numbers."""
    capacity = KvCapacity(total_blocks=158, block_tokens=808, beta_blocks=float(pages))

    assert most == capacity.max_concurrent(500)


def test_a_share_of_the_cache_takes_a_share_of_the_requests():
    """The limit is a ratio of the blocks."""
    assert PLAIN.max_concurrent(160) == 10
    assert PLAIN.max_concurrent(160, limit_ratio=0.55) == 5


def test_all_blocks_in_tokens():
    """What a person is told."""
    assert PLAIN.total_tokens == 1_600


def test_several_engines_together():
    """Their sum or a share of it; unknown as soon as one is; one alone is itself."""
    small, large = KvCapacity(total_blocks=100, block_tokens=16), KvCapacity(total_blocks=300, block_tokens=16)

    assert together([small]) is small
    assert together([small], 0.5) is small
    assert together([small, large]) == KvCapacity(total_blocks=400, block_tokens=16)
    assert together([small, large], 0.5) == KvCapacity(total_blocks=200, block_tokens=16)
    assert together([small, None]) is together([]) is None
