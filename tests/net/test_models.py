"""Several models over several engines: adapters, names that come later, tags. Simulated engines over real sockets."""

import asyncio
import io
import json
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from proxy.app import running
from proxy.config import TidegateConfig
from proxy.sim.running import start_engine
from proxy.telemetry.logs import configure

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
LONG = "word " * 4_000


class Fleet:
    """A proxy, the simulated engines behind it, and a client."""

    def __init__(self, proxy, engines, client, log):
        self.proxy = proxy
        self.engines = engines
        self.log = log
        self._client = client

    async def ask(self, model, *, path=CHAT, text="hello", **headers):
        """One request of one token; its status, the backend that answered, and the answer."""
        body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
        async with self._client.post(self.proxy.url + path, json=body, headers=headers) as answer:
            return answer.status, answer.headers.get("x-tidegate-backend"), json.loads(await answer.read())

    async def believed(self, model, text, **headers):
        """What the proxy believed of a prompt."""
        body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
        async with self._client.post(self.proxy.url + CHAT, json=body, headers=headers) as answer:
            assert answer.status == 200
            return answer.headers["x-tidegate-prefix"]

    async def until(self, what):
        """Wait until a condition holds."""
        async with asyncio.timeout(5):
            while not what():  # noqa: ASYNC110 - the condition is somebody else's state
                await asyncio.sleep(0.005)

    async def asked_often(self, model, times=12):
        """Who answered so many requests of as many sessions at the same time."""
        asked = (self.ask(model, text=str(number)) for number in range(times))
        return [backend for _, backend, _ in await asyncio.gather(*asked)]


@asynccontextmanager
async def fleet_of(*engines, tags=(), data_parallel=1, backend=None, each=(), **sections):
    """A fleet; `engines` are the models and adapters of each, `tags` what each backend has."""
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(
                await start_engine(
                    "card-32gb", speed=200, model_names=models, adapters=adapters, data_parallel=data_parallel
                )
            )
            for models, adapters in engines
        ]
        backends = [
            {
                "url": engine.url,
                "name": f"b{at}",
                "tags": tags[at] if tags else (),
                **(backend or {}),
                **(each[at] if each else {}),
            }
            for at, engine in enumerate(started)
        ]
        config = TidegateConfig.model_validate({"listen": {"port": 0}, "backends": backends, **sections})
        stream = io.StringIO()
        log = configure("json", "debug", stream)
        stack.callback(log.close)
        proxy = await stack.enter_async_context(running(config, log))
        yield Fleet(proxy, started, await stack.enter_async_context(aiohttp.ClientSession()), stream)


BASE = (("m",), ())
TUNED = (("m",), ("tuned",))


async def test_an_adapter_is_served_by_backends_that_list_it_only():
    """And its base model by all."""
    async with fleet_of(BASE, TUNED) as fleet:
        assert set(await fleet.asked_often("tuned")) == {"b1"}
        assert set(await fleet.asked_often("m")) == {"b0", "b1"}


async def test_an_adapter_that_was_just_loaded_is_found_at_once():
    """The first request for it makes the proxy look again, half a minute before it would have."""
    async with fleet_of(BASE, BASE) as fleet:
        fleet.engines[1].adapters.append("tuned")

        assert (await fleet.ask("tuned"))[:2] == (200, "b1")


async def test_an_adapter_that_was_loaded_just_after_it_was_refused_is_found():
    """The list that the refusal went by is a moment old, and says nothing of it."""
    async with fleet_of(BASE) as fleet:
        assert (await fleet.ask("tuned"))[0] == 404
        fleet.engines[0].adapters.append("tuned")

        assert (await fleet.ask("tuned"))[:2] == (200, "b0")


async def test_an_adapter_that_was_unloaded_is_asked_for_no_more():
    """Its engine's own 404 comes in the client's dialect; from the next probe on another engine is asked."""
    async with fleet_of(TUNED, TUNED, health={"interval_s": 0.05}) as fleet:
        fleet.engines[0].adapters.clear()
        answers = [await fleet.ask("tuned", path=MESSAGES, text=str(number)) for number in range(12)]
        missing = [answer for status, _, answer in answers if status == 404]
        assert missing
        assert {answer["type"] for answer in missing} == {"error"}

        await fleet.until(lambda: not fleet.proxy.fleet.models.serves("b0", "tuned"))

        assert set(await fleet.asked_often("tuned")) == {"b1"}


async def test_an_adapter_and_its_base_model_share_no_prefix():
    """The engine keeps them apart, and so does what the proxy believes of it."""
    async with fleet_of(TUNED) as fleet:

        async def turn(model):
            _, _, answer = await fleet.ask(model, text=LONG, **{"x-session-id": "one"})
            return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

        assert [await turn(model) > 0 for model in ("m", "m", "tuned", "tuned")] == [False, True, False, True]
        room = fleet.proxy.waiting_room.gate.rooms["b0"]
        assert room.ghost_misses == 0


async def test_an_adapter_that_took_anothers_place_shares_no_prefix_with_it():
    """New weights under the old name, as a training loop loads them: its sessions are not believed cached."""
    async with fleet_of(TUNED) as fleet:

        async def believed(model):
            return await fleet.believed(model, LONG, **{"x-session-id": model})

        assert [await believed("tuned") for _ in range(2)] == ["cold", "warm"]
        await believed("m")
        cards = fleet.proxy.fleet.models.merged()
        fleet.proxy.fleet.models.update("b0", [{**card, "root": f"{card['root']}-2"} for card in cards[1:]] + cards[:1])

        assert [await believed("tuned") for _ in range(2)] == ["cold", "warm"]
        assert await believed("m") == "warm"


TAGGED = {"models": {"tags": {"big-*": ["h200"]}}}


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_a_model_goes_to_backends_with_its_tags(mode):
    """Though all list it; other models go anywhere."""
    models = (("big-1", "small"), ())
    async with fleet_of(models, models, tags=([], ["h200"]), admission={"mode": mode}, **TAGGED) as fleet:
        assert set(await fleet.asked_often("big-1")) == {"b1"}
        assert set(await fleet.asked_often("small")) == {"b0", "b1"}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_model_whose_backends_are_gone_or_lack_the_tags(path):
    """503 while they are down, 404 where they never had it; both in the client's dialect, and nobody else is asked."""
    big, small = (("big-1", "big-2"), ()), (("big-1",), ())
    async with fleet_of(big, small, tags=([], ["h200"]), health={"interval_s": 0.05}, **TAGGED) as fleet:
        status, backend, answer = await fleet.ask("big-2", path=path)
        assert (status, backend) == (404, None)
        assert "h200" in answer["error"]["message"]

        await fleet.engines[1].stop()
        await fleet.until(lambda: not fleet.proxy.fleet.health.is_up("b1"))
        status, backend, answer = await fleet.ask("big-1", path=path)

        assert (status, backend) == (503, None)
        assert "h200" in answer["error"]["message"]


async def test_a_name_for_all_small_calls_goes_where_its_model_is():
    """What Claude Code asks for beside its main model."""
    aliases = {"models": {"aliases": {"claude-haiku-*": "m"}}}
    async with fleet_of((("other",), ()), BASE, **aliases) as fleet:
        status, backend, answer = await fleet.ask("claude-haiku-4-5-20251001", path=MESSAGES)

        assert (status, backend, answer["model"]) == (200, "b1", "m")
