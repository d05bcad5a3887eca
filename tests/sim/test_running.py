"""Starting and stopping a whole engine."""

import pytest

from proxy.engines import parse_page
from proxy.sim.running import start_engine


async def test_two_engines_side_by_side(http):
    """Port 0 gives each its own port, and each shows its own name."""
    async with (
        await start_engine("card-32gb", model_names=["a"]) as first,
        await start_engine("h200-8b", model_names=["b"], name="second") as second,
    ):
        roots = []
        for engine in (first, second):
            async with http.get(engine.url + "/v1/models") as response:
                roots.append((await response.json())["data"][0]["root"])
        assert roots == ["card-32gb", "second"]
        assert first.failure is second.failure is None


async def test_stop_twice(http):
    """Stopping again does nothing, and nobody listens any more."""
    engine = await start_engine("h200-8b", model_names=["a"])
    await engine.stop()
    await engine.stop()
    with pytest.raises(OSError, match="Cannot connect"):
        await http.get(engine.url + "/health")


async def test_port_in_use():
    """A port that cannot be had is an error, and leaves nothing running."""
    async with await start_engine("h200-8b", model_names=["a"]) as engine:
        port = int(engine.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="address already in use"):
            await start_engine("h200-8b", port=port, model_names=["a"])


async def test_mtp():
    """The MTP depth can be chosen beside the preset."""
    async with await start_engine("card-32gb", mtp=1, model_names=["a"]) as engine:
        assert engine.engine.config.mtp == 1


async def test_nothing_to_serve():
    """An engine without a model name makes no sense."""
    with pytest.raises(ValueError, match="at least one model name"):
        await start_engine("card-32gb", model_names=[])


async def test_ipv6_url():
    """An IPv6 address is bracketed in the URL."""
    async with await start_engine("h200-8b", host="::1", model_names=["a"]) as engine:
        assert engine.url.startswith("http://[::1]:")


async def test_data_parallel_engines_behind_one_address(http):
    """Each has its own cache and its own label; a header names one, a wrong one is refused, without one all share."""
    body = {"model": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "word " * 4_000}]}
    async with await start_engine("h200-8b", speed=1_000, model_names=["a"], data_parallel=2) as server:

        async def ask(rank=None):
            headers = {} if rank is None else {"X-data-parallel-rank": rank}
            async with http.post(server.url + "/v1/chat/completions", json=body, headers=headers) as response:
                return response.status, await response.json()

        assert [(await ask(rank))[0] for rank in ("1", "1", "x")] == [200, 200, 200]
        first, second = (engine.counters for engine in server.engines)
        assert (first.prefix_hits, first.prefix_queries > 0) == (0, True)
        assert second.prefix_hits > 0

        status, answer = await ask("2")
        assert status == 400
        assert "data_parallel_rank 2 is out of range [0, 2)" in answer["error"]["message"]

        async with http.get(server.url + "/metrics") as response:
            reports = parse_page(await response.text())
        assert [report.rank for report in reports] == ["0", "1"]
        assert {report.capacity.num_gpu_blocks for report in reports} == {server.engine.config.num_gpu_blocks}
        assert [report.counters.prefix_hits_tokens for report in reports] == [0, second.prefix_hits]


async def test_adapters_come_and_go(http):
    """Listed with their base model as parent, and without a context of their own."""
    async with await start_engine("h200-8b", model_names=["a"], adapters=["tuned"]) as server:

        async def cards():
            async with http.get(server.url + "/v1/models") as response:
                return [(card["id"], card["parent"], card["max_model_len"]) for card in (await response.json())["data"]]

        context = server.engine.config.max_model_len
        assert await cards() == [("a", None, context), ("tuned", "a", None)]
        server.adapters.remove("tuned")
        assert await cards() == [("a", None, context)]
