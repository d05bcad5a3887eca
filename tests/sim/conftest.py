"""A served engine like the small real one that the expected shapes were taken from."""

from dataclasses import replace

import aiohttp
import pytest

from proxy.sim.presets import preset
from proxy.sim.running import start_engine

REAL = replace(
    preset("h200-8b"), name="tiny", block_tokens=128, num_gpu_blocks=1_000, max_model_len=126_976, max_num_seqs=16
)
"""1,000 blocks of 128 tokens: the geometry of the real vLLM whose answers the tests expect."""


@pytest.fixture
async def engine():
    """A fast engine that serves two names."""
    async with await start_engine(REAL, speed=1_000, model_names=["tiny", "claude-sonnet-4-5"]) as running:
        yield running


@pytest.fixture
async def slow_engine():
    """An engine whose answers take about ten seconds, for what happens in between."""
    async with await start_engine(REAL, speed=0.1, model_names=["tiny"]) as running:
        yield running


@pytest.fixture
async def http():
    """A plain client."""
    async with aiohttp.ClientSession() as session:
        yield session
