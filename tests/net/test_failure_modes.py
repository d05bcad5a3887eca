"""An engine whose metrics page dies, that sleeps, restarts or is asked for too much, while clients go on asking."""

import asyncio
import json

import pytest

from proxy import app
from proxy.net.scrape import ScrapeSettings
from proxy.policy import limit
from tests.fakes.backend import json_answer
from tests.net.test_admission import Client, Engine, admitting, asking, header, page, started, waiting
from tests.net.test_upstream_faults import error_of, status_of


def sleeping(*, is_asleep):
    """The metrics page of an engine that was put to sleep, or woken."""
    states = {"awake": not is_asleep, "discard_all": is_asleep}
    lines = (
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {is_so:d}\n' for name, is_so in states.items()
    )
    return page() + "".join(lines)


def quickly(monkeypatch):
    """Reports twenty times a second, old after a quarter of a second, lost after a whole one."""
    monkeypatch.setattr(app, "_SCRAPING", ScrapeSettings(interval_s=0.05))
    monkeypatch.setattr(limit, "_STALE_S", 0.25)
    monkeypatch.setattr(limit, "_LOST_S", 1.0)


def events(gate):
    """The names of the log's lines about the backend, in order."""
    names = [json.loads(line)["event"] for line in gate.log.getvalue().splitlines()]
    return [name for name in names if name.startswith("backend.")]


async def test_a_metrics_page_that_dies_while_traffic_flows(monkeypatch):
    """The gate fills a tenth less, then a fifth, and everything again when it is back; the log says so twice."""
    quickly(monkeypatch)
    engine = Engine()

    def ratio():
        return round(gate.metric("tidegate_backend_admission_ratio", backend="b0"), 3)

    async with admitting(engine) as gate:
        whole, seen, answers = gate.backend.metrics_page, [], []
        assert ratio() == 0.97
        gate.backend.metrics_page = ""
        for number in range(200):
            if ratio() == 0.776:
                break
            engine.end(f"s{number}")
            answers.append(status_of(await gate.raw(asking(f"s{number}", 1))))
            seen += [ratio()] if ratio() not in seen else []
            await asyncio.sleep(0.02)
        gate.backend.metrics_page = whole
        await gate.until(lambda: ratio() == 0.97)
        await gate.until(lambda: "backend.report_fresh" in events(gate))

        assert set(answers) == {200}
        assert next(step for step in seen if step != 0.97) == 0.873
        assert [name for name in events(gate) if "report" in name] == ["backend.report_stale", "backend.report_fresh"]


async def test_a_sleeping_engine_gets_nothing_until_it_wakes(monkeypatch):
    """L63: its metrics go on and its health is good; who comes waits, and is told why if that is too long."""
    quickly(monkeypatch)
    engine = Engine()
    async with admitting(engine) as gate:
        gate.backend.metrics_page = sleeping(is_asleep=True)
        await gate.until(lambda: "backend.asleep" in events(gate))
        refused = await gate.raw(asking("short", extra=b"x-stainless-timeout: 0.5\r\n"))
        late = Client(gate, asking("late"))
        await gate.until(lambda: waiting(gate) == 1)
        assert engine.begun == []

        gate.backend.metrics_page = sleeping(is_asleep=False)
        engine.end("late")

        assert status_of(await late.answer) == 200
        assert (status_of(refused), header(refused, b"retry-after")) == (429, b"1")
        assert "sleeps" in error_of(refused)["message"]
        await gate.until(lambda: events(gate)[-1:] == ["backend.awake"])


async def test_a_restart_is_a_line_in_the_log(monkeypatch):
    """Everybody is cold from then on, which is seen in every graph."""
    quickly(monkeypatch)
    async with admitting(Engine()) as gate:
        gate.backend.metrics_page = page(start=2_000)

        await gate.until(lambda: events(gate)[-1:] == ["backend.restarted"])


async def test_a_prompt_that_no_engine_can_hold_gets_the_engines_own_error_at_once():
    """Claude Code compacts on that; a wait for an empty engine would end in a 429 instead, again and again."""
    engine = Engine()

    async def script(request, connection):
        if request.header("x-session-id") == "huge":
            await connection.send(json_answer(b'{"error":{"message":"maximum context length"}}', 400))
        else:
            await engine(request, connection)

    async with admitting(script) as gate:
        clients = await started(gate, engine, "one", "two")

        answer = await gate.raw(asking("huge", 220), timeout_s=2)

        assert (status_of(answer), header(answer, b"x-tidegate-admission")) == (400, b"control")
        assert "maximum context length" in error_of(answer)["message"]
        for session in ("one", "two"):
            engine.end(session)
        assert [status_of(await client.answer) for client in clients] == [200, 200]


async def test_an_engine_that_does_not_tell_its_size_is_limited_by_the_one_that_is_configured():
    """Without a metrics page at all: a fifth of it is kept free, and what does not fit waits."""
    engine = Engine()
    async with admitting(engine, metrics_page="", settings={"kv_cache_tokens": 100_000}) as gate:
        clients = await started(gate, engine, "one")
        clients.append(Client(gate, asking("two")))
        await gate.until(lambda: waiting(gate) == 1)
        assert gate.metric("tidegate_backend_admission_ratio", backend="b0") == pytest.approx(0.776)
        engine.end("one")
        engine.end("two")

        assert {header(await client.answer, b"x-tidegate-admission") for client in clients} == {b"new"}
        await gate.until(lambda: "backend.capacity" in events(gate))


async def test_what_the_engine_says_of_its_size_counts_for_more_than_what_is_configured():
    """It knows better."""
    async with admitting(Engine(), settings={"kv_cache_tokens": 5_000_000}) as gate:
        assert gate.metric("tidegate_backend_kv_capacity_tokens", backend="b0") == 100_000
