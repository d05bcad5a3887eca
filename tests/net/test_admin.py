import json

import pytest

from proxy.core.backends import Backend
from proxy.dispatch import Fleet
from proxy.net.admin import AdminPages
from proxy.state.health import HealthTable, Probe
from proxy.state.ledger import Ledger
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses
from tests.fakes.backend import answering, json_answer
from tests.net.conftest import chat
from tests.telemetry.fleets import backend
from tests.telemetry.fleets import fleet as snapshot

NAMES = ("a", "b")


def fleet_of(*names):
    """Backends that nothing is known of yet."""
    backends = tuple(Backend(name=name, host=name, port=1, authority=name) for name in names)
    health = HealthTable(fall=3)
    for name in names:
        health.add(name)
    return Fleet(backends, health, ModelTable(), Ledger(), StoredResponses())


@pytest.fixture
def fleet():
    """Two of them."""
    return fleet_of(*NAMES)


def pages_of(fleet, *, is_draining=False, **more):
    """Every admin path and what answers it."""
    return AdminPages(
        version="1.2.3",
        fleet=fleet,
        exposition=lambda accept: (b"page for " + accept.encode(), "text/x"),
        is_draining=lambda: is_draining,
        **more,
    ).paths()


def ready(pages):
    """Status and text of the readiness answer."""
    answer = pages["/readyz"]("")
    return answer.status, answer.body


def test_it_is_ready_while_any_backend_is_up(fleet):
    """One engine is enough to serve; none is not."""
    pages = pages_of(fleet)

    assert (200, b"ready\n") == ready(pages)
    fleet.health.on_probe("a", Probe.DOWN)
    assert 200 == ready(pages)[0]
    fleet.health.on_probe("b", Probe.DOWN)
    assert (503, b"no backend is up\n") == ready(pages)


def test_it_is_not_ready_while_it_drains_but_alive(fleet):
    """Row 102: traffic goes elsewhere, and nobody kills it for that."""
    pages = pages_of(fleet, is_draining=True)

    assert (503, b"draining\n") == ready(pages)
    assert 200 == pages["/healthz"]("").status


def test_it_is_alive_without_any_backend(fleet):
    """Liveness says nothing about engines: restarting the proxy mends none of them."""
    for name in NAMES:
        fleet.health.on_probe(name, Probe.DOWN)

    assert (200, b"ok\n") == (pages_of(fleet)["/healthz"]("").status, pages_of(fleet)["/healthz"]("").body)


def test_the_status_tells_each_backend(fleet):
    """Up or down, requests in flight, models: what the page shows is what the JSON says."""
    fleet.health.on_probe("b", Probe.DOWN)
    fleet.models.update("a", [{"id": "qwen"}])
    with fleet.ledger.reserve(fleet.backends[0]):
        pages = pages_of(fleet)
        status = json.loads(pages["/status.json"]("").body)
        page = pages["/status"]("").body.decode()

    unknown = {"report_age_s": None, "ghost_misses": None, "kv": None, "engine": None}
    assert {
        "version": "1.2.3",
        "is_draining": False,
        "inflight_requests": 1,
        "admission": {
            "mode": "off",
            "waiting_requests": 0,
            "held_tokens": 0,
            "known_sessions": None,
            "waiting": [],
        },
        "backends": [
            {"name": "a", "is_up": True, "inflight_requests": 1, "models": ["qwen"], **unknown},
            {"name": "b", "is_up": False, "inflight_requests": 0, "models": [], **unknown},
        ],
    } == status
    assert all(f"&quot;{word}&quot;" in page for word in ("1.2.3", "a", "b", "qwen"))


def test_the_status_tells_who_waits_and_what_is_held(fleet):
    """Tokens, sessions and the oldest wait, as numbers that a script can watch."""
    pages = pages_of(fleet, snapshot=lambda: snapshot(backend(name="b", report_age_s=0.51234)))
    status = json.loads(pages["/status.json"]("").body)

    assert ("enforce", 3, 79_000, 11) == tuple(
        status["admission"][name] for name in ("mode", "waiting_requests", "held_tokens", "known_sessions")
    )
    assert {"class": "session", "requests": 2, "prompt_tokens": 70_000, "oldest_wait_s": 61.2} == status["admission"][
        "waiting"
    ][2]
    empty, full = status["backends"]
    assert empty["kv"] is None
    assert (0.512, 2) == (full["report_age_s"], full["ghost_misses"])
    assert {
        "capacity_tokens": 100_000,
        "running_tokens": 30_000,
        "head_tokens": 8_000,
        "idle_tokens": 40_000,
        "foreign_tokens": 5_000,
        "growth_tokens": 4_000,
        "headroom_tokens": 10_000,
        "prefill_tokens": 6_000,
        "admission_ratio": 0.97,
        "running_turns": 2,
        "idle_sessions": 4,
        "external_ratio": 0.25,
        "is_prefix_cache_inert": True,
        "turn_cap": 9,
    } == full["kv"]
    assert (3, 1, 0.43, 7) == tuple(
        full["engine"][name] for name in ("running_requests", "waiting_requests", "kv_usage_ratio", "preemptions")
    )


def test_the_page_is_drawn_from_what_the_json_says(fleet):
    """One truth, two forms."""
    pages = pages_of(fleet, page=lambda status: f"drawn of {status['version']}")

    answer = pages["/status"]("")

    assert (b"drawn of 1.2.3", "text/html; charset=utf-8") == (answer.body, answer.content_type)


def test_what_engines_say_is_text_and_never_markup(fleet):
    """A model's name comes from outside and may hold anything."""
    fleet.models.update("a", [{"id": "<script>alert(1)</script>&"}])

    page = pages_of(fleet)["/status"]("").body

    assert b"<script>" not in page
    assert b"&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page


def test_the_metrics_page_is_chosen_by_the_accept_header(fleet):
    """The exposition decides the format; its content type is passed on."""
    answer = pages_of(fleet)["/metrics"]("openmetrics")

    assert (b"page for openmetrics", "text/x", 200) == (answer.body, answer.content_type, answer.status)


async def test_admin_paths_on_the_data_port_need_no_key_and_are_no_requests(rig):
    """Probes and scrapers have no key; what they ask is neither counted nor sent to a backend."""
    async with rig(answering(json_answer(b"{}")), auth={"keys": ["k"]}) as gate:
        for path in ("/metrics", "/healthz", "/readyz", "/status", "/status.json", "/healthz?x=y"):
            asked = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            assert (await gate.raw(asked.encode())).startswith(b"HTTP/1.1 200 ")
        assert (await gate.raw(chat())).startswith(b"HTTP/1.1 401 ")

        assert {"refused_unauthenticated": 1} == gate.outcomes()
        assert [] == gate.backend.seen


async def test_a_fault_of_an_admin_page_is_a_500_and_no_bad_request(rig, monkeypatch):
    """A scraper must not be told that its request was wrong, and the fault is logged."""
    async with rig(answering(json_answer(b"{}"))) as gate:

        def fail(*_args, **_kwargs):
            raise ZeroDivisionError

        monkeypatch.setattr(type(gate.proxy.metrics), "exposition", fail)
        answer = await gate.raw(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"not valid HTTP" not in answer
        assert "refused_bad_request" not in gate.outcomes()
    assert "ZeroDivisionError" in gate.log.getvalue()
