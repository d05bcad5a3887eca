"""Engines that lack a route, over real sockets: left for another one, remembered, counted for where they can be."""

import asyncio
import json

import pytest

from proxy import app
from proxy.net.scrape import ScrapeSettings
from tests.fakes.backend import answering, json_answer
from tests.net.conftest import chat
from tests.net.test_admission import admitting, header, page
from tests.net.test_upstream_faults import error_of, status_of

OK = json_answer(b"{}")
NOT_FOUND = json_answer(b'{"detail":"Not Found"}', 404)
COUNT = b"/v1/messages/count_tokens"


async def old_engine(request, connection):
    """An engine from before the Messages and Responses APIs."""
    is_there = request.line.startswith("POST /v1/chat/completions")
    await connection.send(OK if is_there else NOT_FOUND)


def counting(text):
    """A request to count a text's tokens, sent as Claude Code does."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    return chat(body, path=COUNT + b"?beta=true")


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_l42_an_engine_without_the_route_is_left_for_another_one(rig, mode):
    """The client notices nothing, the old engine stays well, and gets its other routes."""
    async with rig(old_engine, answering(OK), admission={"mode": mode}) as gate:
        old, new = gate.backends
        statuses = [status_of(await gate.raw(chat(path=b"/v1/messages"))) for _ in range(12)]

        assert statuses == [200] * 12
        assert len(old.seen) <= 1
        assert gate.proxy.fleet.health.is_up("b0")
        assert gate.inflight() == 0
        gate.proxy.fleet.health.on_connect_failure("b1")
        assert status_of(await gate.raw(chat())) == 200
        assert old.seen[-1].line.startswith("POST /v1/chat/completions")
        assert len(new.seen) == 12


@pytest.mark.parametrize("path", [b"/v1/messages", b"/v1/responses"])
async def test_l42_when_no_engine_has_it_the_error_says_so(rig, path):
    """In the dialect, with the versions that have it; asked once, never a 404 (L26), and it is in the log."""
    async with rig(old_engine) as gate:
        answers = [await gate.raw(chat(path=path)) for _ in range(3)]

        assert {status_of(answer) for answer in answers} == {400}
        assert {header(answer, b"x-should-retry") for answer in answers} == {b"false"}
        assert "vLLM has it since 0.1" in error_of(answers[0])["message"]
        assert error_of(answers[0])["type"] == "invalid_request_error"
        assert len(gate.backend.seen) == 1
        assert gate.outcomes() == {"refused_not_found": 3}
        await gate.until(lambda: gate.log.getvalue().count('"request.finished"') == 3)
        assert gate.log.getvalue().count('"backend.route_missing"') == 1


async def test_l42_what_a_server_in_between_says_is_not_remembered(rig):
    """A route of an ingress that is just being replaced: its words are passed on, and the next request is asked."""
    page = b"404 page not found\n"
    raw = b"HTTP/1.1 404 X\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)
    async with rig(answering(raw)) as gate:
        lost = await gate.raw(chat(path=b"/v1/messages"))
        gate.backend.script = answering(OK)
        found = await gate.raw(chat(path=b"/v1/messages"))

        assert (status_of(lost), status_of(found)) == (404, 200)
        assert "404 page not found" in error_of(lost)["message"]


async def test_l42_a_backend_that_was_away_is_asked_again(rig):
    """What comes back may be another version."""
    async with rig(old_engine, health={"interval_s": 0.05}) as gate:
        assert status_of(await gate.raw(chat(path=b"/v1/messages"))) == 400
        gate.backend.script = answering(OK)
        gate.backend.health_status = 503
        await gate.until(lambda: not gate.proxy.fleet.health.is_up("b0"))
        gate.backend.health_status = 200
        await gate.until(lambda: gate.proxy.fleet.health.is_up("b0"))

        assert status_of(await gate.raw(chat(path=b"/v1/messages"))) == 200


async def test_l42_a_restarted_engine_is_asked_again(monkeypatch):
    """Seen on its metrics page, although no probe ever failed."""
    monkeypatch.setattr(app, "_SCRAPING", ScrapeSettings(interval_s=0.05))
    async with admitting(old_engine) as gate:
        assert status_of(await gate.raw(chat(path=b"/v1/messages"))) == 400
        gate.backend.script = answering(OK)
        assert status_of(await gate.raw(chat(path=b"/v1/messages"))) == 400
        gate.backend.metrics_page = page(start=2_000)
        await gate.until(lambda: not gate.proxy.fleet.route_gaps.missing)

        assert status_of(await gate.raw(chat(path=b"/v1/messages"))) == 200


async def test_l45_counting_tokens_waits_for_no_room():
    """The engine is full, and whoever waits for room is not passed by anybody but this."""
    begun = asyncio.Event()

    async def script(request, connection):
        if request.line.startswith("POST /v1/messages/count_tokens"):
            await connection.send(json_answer(b'{"input_tokens":7}'))
        else:
            begun.set()
            await connection.until_closed()

    async with admitting(script) as gate:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 380_000}]}).encode()
        running = asyncio.get_running_loop().create_task(gate.raw(chat(body), timeout_s=20))
        await begun.wait()
        answer = await gate.raw(counting("x" * 380_000))
        running.cancel()

        assert (status_of(answer), answer.partition(b"\r\n\r\n")[2]) == (200, b'{"input_tokens":7}')
        assert header(answer, b"x-tidegate-estimate") is None
        assert gate.backend.seen[-1].line == "POST /v1/messages/count_tokens?beta=true HTTP/1.1"


async def test_l45_who_is_not_busy_counts(rig):
    """The backend with the fewest requests in flight."""
    begun = asyncio.Event()

    async def busy(request, connection):
        if request.line.startswith("POST /v1/chat"):
            begun.set()
            await connection.until_closed()
        await connection.send(json_answer(b'{"input_tokens":7}'))

    async with rig(busy, busy) as gate:
        running = asyncio.get_running_loop().create_task(gate.raw(chat(), timeout_s=20))
        await begun.wait()
        for _ in range(6):
            await gate.raw(counting("hello"))
        running.cancel()

        assert sorted(len(backend.seen) for backend in gate.backends) == [1, 6]


async def test_l45_where_no_engine_counts_the_proxy_estimates(rig):
    """About four bytes a token; a header says that it is a guess, and the engine is asked once."""
    async with rig(old_engine) as gate:
        answers = [await gate.raw(counting("x" * 40_000)) for _ in range(3)]
        counts = [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers]

        assert [status_of(answer) for answer in answers] == [200] * 3
        assert [10_000 <= count["input_tokens"] < 10_100 for count in counts] == [True] * 3
        assert {header(answer, b"x-tidegate-estimate") for answer in answers} == {b"input_tokens"}
        assert len(gate.backend.seen) == 1
        assert gate.outcomes() == {"completed": 3}


async def test_l45_an_engine_that_knows_no_such_model_is_believed(rig):
    """An error object means that the route is there."""
    answer = json_answer(b'{"type":"error","error":{"type":"NotFoundError","message":"no model"}}', 404)
    async with rig(answering(answer), models={"unknown": "forward"}) as gate:
        got = await gate.raw(counting("x"))

        assert (status_of(got), error_of(got)["type"]) == (404, "not_found_error")
