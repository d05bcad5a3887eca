import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from proxy.core.backends import Backend
from proxy.net.probe import Prober, ProbeSettings
from proxy.state.health import HealthTable, Probe
from proxy.state.models import ModelTable
from tests.fakes.backend import answering, json_answer
from tests.fakes.clock import FakeClock
from tests.net.conftest import chat


class Engine:
    """Answers probes as it is told."""

    def __init__(self):
        self.health: bytes | list[bytes] = json_answer(b"")
        self.models: bytes | list[bytes] = json_answer(b'{"data":[{"id":"m"}]}')
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.asked = []

    async def accept(self, reader, writer):
        """Answer one request a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            await self.hangs.wait()
            answer = self.models if "/v1/models" in head.split("\r\n", 1)[0] else self.health
            for piece in answer if isinstance(answer, list) else [answer]:
                writer.write(piece)
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def count(self, path):
        """How often a path was asked for."""
        return sum(head.startswith(f"GET {path} ") for head in self.asked)


class Watch:
    """A prober in front of engines, and what it has seen."""

    def __init__(self, backends, **settings):
        self.clock = FakeClock()
        self.health = HealthTable(fall=3)
        self.models = ModelTable()
        self.changes: list[tuple[str, bool, Probe]] = []
        for backend in backends:
            self.health.add(backend.name)
        values = {"interval_s": 0.02, "timeout_s": 2.0, "models_interval_s": 30.0, "path": "/health", **settings}
        self.prober = Prober(
            backends,
            ProbeSettings(**values),
            health=self.health,
            models=self.models,
            on_change=lambda name, is_up, probe: self.changes.append((name, is_up, probe)),
            clock=self.clock,
        )


@asynccontextmanager
async def watching(count=1, *, api_key=None, prefix="", **settings):
    """Engines, and a prober that watches them."""
    engines = [Engine() for _ in range(count)]
    servers = [await asyncio.start_server(engine.accept, "127.0.0.1", 0) for engine in engines]
    backends = []
    for at, server in enumerate(servers):
        port = server.sockets[0].getsockname()[1]
        address = f"127.0.0.1:{port}"
        backends.append(Backend(f"b{at}", "127.0.0.1", port, address, path_prefix=prefix, api_key=api_key))
    watch = Watch(backends, **settings)
    try:
        yield watch, *engines
    finally:
        await watch.prober.close()
        for server, engine in zip(servers, engines, strict=True):
            engine.hangs.set()
            server.close()
        await asyncio.sleep(0.02)


async def test_a_well_backend_is_up_and_its_models_are_known():
    """One probe tells both, with the backend's own key and path prefix."""
    async with watching(api_key="k", prefix="/one", path="/ping") as (watch, engine):
        await watch.prober.probe_once()

        assert [("b0", True, Probe.OK)] == watch.changes
        assert ["m"] == watch.models.of("b0")
        assert (1, 1) == (engine.count("/one/ping"), engine.count("/one/v1/models"))
        assert all("Authorization: Bearer k\r\n" in head for head in engine.asked)


@pytest.mark.parametrize(
    "answer",
    [
        json_answer(b"", 503),
        json_answer(b"", 404),
        b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        b"\x00 not HTTP\r\n\r\n",
        b"",
    ],
    ids=["503", "404", "redirect", "garbage", "closed"],
)
async def test_anything_but_200_is_down(answer):
    """L55: a dead engine says so in many ways; redirects are not followed, and its models are not asked for."""
    async with watching() as (watch, engine):
        engine.health = answer
        await watch.prober.probe_once()

        assert [("b0", False, Probe.DOWN)] == watch.changes
        assert not watch.models.is_known("b0")


async def test_a_probe_without_answer_is_a_timeout_and_only_the_third_counts():
    """L55: a saturated engine answers late."""
    async with watching(timeout_s=0.05) as (watch, engine):
        await watch.prober.probe_once()
        engine.hangs.clear()
        ups = []
        for _ in range(3):
            await watch.prober.probe_once()
            ups.append(watch.health.is_up("b0"))

        assert [True, True, False] == ups
        assert ("b0", False, Probe.TIMEOUT) == watch.changes[-1]


async def test_a_change_is_told_once():
    """Steady states are silent."""
    async with watching() as (watch, engine):
        for answer in (json_answer(b""), json_answer(b""), json_answer(b"", 500), json_answer(b"", 500)):
            engine.health = answer
            await watch.prober.probe_once()

        assert [True, False] == [is_up for _, is_up, _ in watch.changes]


async def test_models_are_asked_for_when_they_are_due_or_the_backend_came_back():
    """A restarted engine may serve something else."""
    async with watching(models_interval_s=30.0) as (watch, engine):
        for _ in range(3):
            await watch.prober.probe_once()
        assert 1 == engine.count("/v1/models")

        watch.clock.advance(31)
        await watch.prober.probe_once()
        assert 2 == engine.count("/v1/models")

        watch.health.on_probe("b0", Probe.DOWN)
        engine.models = json_answer(b'{"data":[{"id":"new"}]}')
        await watch.prober.probe_once()
        assert ["new"] == watch.models.of("b0")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data":{}}',
        b'{"data":null}',
        b"<html>",
        b'{"data":[',
        b"[" * 100_000,
        b"\xff\xfe",
        b"9" * 9_999,
    ],
)
async def test_a_list_that_cannot_be_read_changes_nothing(body):
    """What was known of a backend's models stays, and the prober lives on."""
    async with watching(models_interval_s=0.001) as (watch, engine):
        await watch.prober.probe_once()
        engine.models = json_answer(body)
        watch.clock.advance(1)
        await watch.prober.probe_once()

        assert ["m"] == watch.models.of("b0")
        assert watch.health.is_up("b0")


async def test_a_list_that_comes_in_pieces_is_read_whole():
    """A fleet of adapters does not fit one packet."""
    async with watching() as (watch, engine):
        cards = [{"id": f"adapter-{number}", "object": "model", "root": "x" * 200} for number in range(500)]
        answer = json_answer(json.dumps({"data": cards}).encode())
        engine.models = [answer[at : at + 30_000] for at in range(0, len(answer), 30_000)]
        await watch.prober.probe_once()

        assert 500 == len(watch.models.of("b0"))


async def test_a_slow_backend_does_not_hold_up_the_others_probes():
    """Row 100: that one is found dead, or back, within its own interval, whatever another one does."""
    async with watching(2, timeout_s=5.0, interval_s=0.02) as (watch, slow, quick):
        slow.hangs.clear()
        running = asyncio.get_running_loop().create_task(watch.prober.run())
        try:
            async with asyncio.timeout(2):
                while quick.count("/health") < 3:  # noqa: ASYNC110 - the engine's own count
                    await asyncio.sleep(0.005)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        assert watch.health.is_up("b1")


@pytest.mark.parametrize(
    "card",
    [
        '{"id":"odd","created":1700000000000}',
        '{"id":"odd","created":123456789012345678901234567890}',
        r'{"id":"odd\ud800"}',
        '{"id":"odd","max_model_len":NaN}',
        '{"id":"<script>","object":[]}',
    ],
    ids=["milliseconds", "huge", "surrogate", "NaN", "markup"],
)
async def test_one_odd_card_costs_nobody_the_list_or_the_status_page(rig, card):
    """A backend gone mad does not take the model list and the admin pages down."""
    async with rig(answering(b"")) as gate:
        engine = Engine()
        engine.models = json_answer(f'{{"data":[{card}]}}'.encode())
        server = await asyncio.start_server(engine.accept, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with rig(backends=[{"url": url, "name": "odd"}, {"url": gate.backend.url, "name": "well"}]) as odd:
            asked = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n"
            for path, extra in (
                (b"/v1/models", b""),
                (b"/v1/models", b"anthropic-version: 2023-06-01\r\n"),
                (b"/status", b""),
                (b"/status.json", b""),
            ):
                answer = await odd.raw(asked % (path, extra))
                assert answer.startswith(b"HTTP/1.1 200 "), (path, answer)
                assert b"<script>" not in answer or path != b"/status"
        server.close()


async def test_a_backend_that_traffic_finds_dead_is_logged_as_down(rig):
    """Whoever notices first, the log says when a backend went and why its traffic moved."""
    sections = {"health": {"interval_s": 600}, "admission": {"mode": "off"}}
    async with rig(answering(json_answer(b"{}")), urls=["http://127.0.0.1:9"], **sections) as gate:
        gate.proxy.fleet.health.on_probe("b1", Probe.OK)  # it was well when it was last asked
        await gate.until(lambda: gate.log.getvalue() != "")
        before = gate.log.getvalue()
        for _ in range(20):
            await gate.raw(chat())
        assert not gate.proxy.fleet.health.is_up("b1")
    lines = [json.loads(line) for line in gate.log.getvalue().removeprefix(before).splitlines()]

    assert ["b1"] == [line["backend"] for line in lines if line["event"] == "backend.down"]


async def test_a_backend_whose_name_does_not_resolve_is_down(rig):
    """L55: the probe lives on, and so do the other backends."""
    async with rig(answering(json_answer(b"{}")), urls=["http://does-not-exist.invalid:8000"]) as gate:
        assert not gate.proxy.fleet.health.is_up("b1")
        assert (await gate.raw(chat())).startswith(b"HTTP/1.1 200 ")


async def test_a_backend_that_comes_up_has_said_what_it_serves():
    """Whoever waits goes there at once, and its adapters may be others than before."""
    async with watching() as (watch, engine):
        await watch.prober.probe_once()
        watch.health.on_probe("b0", Probe.DOWN)
        engine.models = json_answer(b'{"data":[{"id":"new"}]}')
        seen = []
        watch.prober._on_change = lambda name, is_up, _probe: seen.append((is_up, watch.models.of(name)))
        await watch.prober.probe_once()

        assert [(True, ["new"])] == seen


async def test_a_doubted_list_is_asked_for_with_the_next_probe():
    """An engine that answered 404, or restarted, may not have an adapter any more."""
    async with watching(models_interval_s=30.0) as (watch, engine):
        told: list[str] = []
        watch.prober._on_models = told.append
        await watch.prober.probe_once()
        watch.prober.doubt_models("b0")
        await watch.prober.probe_once()
        await watch.prober.probe_once()

        assert 2 == engine.count("/v1/models")
        assert ["b0"] == told  # the second list was the same


async def test_looking_for_a_model_asks_all_that_are_up_once_a_second(monkeypatch):
    """However many ask for names that nobody has; who comes too early waits, and sees what was loaded since."""
    monkeypatch.setattr("proxy.net.probe._LOOK_EVERY_S", 0.1)
    async with watching(2, models_interval_s=30.0) as (watch, engine, other):
        await watch.prober.probe_once()
        watch.health.on_probe("b1", Probe.DOWN)
        engine.models = json_answer(b'{"data":[{"id":"m"},{"id":"adapter"}]}')
        await asyncio.gather(*(watch.prober.look_for_models() for _ in range(20)))
        assert watch.models.serves("b0", "adapter")
        assert (2, 1) == (engine.count("/v1/models"), other.count("/v1/models"))

        engine.models = json_answer(b'{"data":[{"id":"m"},{"id":"later"}]}')
        async with asyncio.TaskGroup() as early:
            for _ in range(20):
                early.create_task(watch.prober.look_for_models())
            await asyncio.sleep(0.03)
            assert 2 == engine.count("/v1/models")
        assert watch.models.serves("b0", "later")
        assert (3, 1) == (engine.count("/v1/models"), other.count("/v1/models"))

        watch.clock.advance(0.2)
        await watch.prober.look_for_models()
        assert (4, 1) == (engine.count("/v1/models"), other.count("/v1/models"))


async def test_nobody_waits_long_for_a_backend_that_hangs(monkeypatch):
    """A name that one of the others has is found all the same."""
    monkeypatch.setattr("proxy.net.probe._LOOK_EVERY_S", 0.05)
    async with watching(2, models_interval_s=30.0) as (watch, engine, other):
        await watch.prober.probe_once()
        engine.models = json_answer(b'{"data":[{"id":"adapter"}]}')
        other.hangs.clear()
        async with asyncio.timeout(1.0):
            await watch.prober.look_for_models()

        assert watch.models.serves("b0", "adapter")
