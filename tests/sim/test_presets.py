"""The presets print what the users' engines printed."""

from dataclasses import replace

import pytest

from proxy.sim.presets import PRESETS, preset


@pytest.mark.parametrize(
    ("name", "size_tokens", "concurrency"),
    [
        ("card-32gb", 128_341, None),
        ("two-24gb-rdna", 638_075, 4.87),
        ("two-24gb-ada", 329_510, 1.26),
        ("h200-8b", 131_200, None),
        ("h200-32b", 131_200, None),
    ],
)
def test_printed_capacity(name, size_tokens, concurrency):
    """Capacity in tokens is within a thousandth of the printed one, and so is the concurrency."""
    config = preset(name)
    assert config.size_tokens == pytest.approx(size_tokens, rel=0.001)
    if concurrency:
        assert round(config.max_concurrency, 2) == concurrency


@pytest.mark.parametrize("name", PRESETS)
def test_fixed_blocks_follow_from_the_labels(name):
    """Blocks over concurrency, minus the blocks of a longest request, are the blocks a request holds in any case."""
    config = preset(name)
    longest = -(-config.max_model_len // config.block_tokens)
    assert config.num_gpu_blocks / config.max_concurrency - longest == pytest.approx(config.fixed_blocks)


@pytest.mark.parametrize(("mtp", "at_once"), [(0, 43), (1, 24), (2, 17), (3, 13)])
def test_short_requests_at_once_on_the_card(mtp, at_once):
    """The 32 GB card holds as many short requests as the sweeps show."""
    config = preset("card-32gb", mtp=mtp)
    assert config.usable_blocks // config.blocks_for(300) == at_once


def test_unknown_preset():
    """The message names the choices."""
    with pytest.raises(ValueError, match=r"no preset 'card'; choose from card-32gb, .*h200-32b"):
        preset("card")


def test_impossible_configurations():
    """A depth without figures and a context that cannot fit are refused."""
    with pytest.raises(ValueError, match="MTP depth must be 0 to 3, got 4"):
        preset("card-32gb", mtp=4)
    with pytest.raises(ValueError, match="does not fit the pool"):
        replace(preset("h200-8b"), max_model_len=200_000)
