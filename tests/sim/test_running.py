"""Starting and stopping a whole engine."""

import pytest

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
