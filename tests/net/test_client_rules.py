"""Rules that agents' requests rest on and that no other file shows whole: what passes as it is, what is refused how."""

import asyncio
import json

import pytest

from tests.fakes.backend import answering, json_answer
from tests.net.conftest import chat
from tests.net.test_admission import Client, Engine, admitting, asking, header
from tests.net.test_upstream_faults import error_of, status_of

OK = json_answer(b'{"usage":{"prompt_tokens":10,"completion_tokens":1}}')


@pytest.mark.parametrize("last", ["system", "ctx", "msg", "user"])
async def test_l02_l04_roles_and_their_order_are_the_clients(last):
    """Mid-conversation and trailing system turns reach the engine in place, through a gate that measures them."""
    roles = ["user", "assistant", "system", "ctx", "user", last]
    body = json.dumps({"model": "m", "messages": [{"role": role, "content": f"said by {role}"} for role in roles]})
    async with admitting(answering(OK)) as gate:
        answer = await gate.raw(chat(body.encode(), path=b"/v1/messages?beta=true"))

        assert status_of(answer) == 200
        assert gate.backend.seen[0].body == body.encode()


async def test_l16_our_own_refusals_say_that_no_retry_mends_them(rig):
    """Model, key and size: a 4xx with a type, and `x-should-retry: false`."""
    settings = {"auth": {"keys": ["k"]}, "limits": {"body_bytes": 2_048}}
    key = b"x-api-key: k\r\n"
    requests = {
        "authentication_error": chat(path=b"/v1/messages"),
        "not_found_error": chat(b'{"model":"x"}', path=b"/v1/messages", extra=key),
        "request_too_large": chat(b"x" * 4_000, path=b"/v1/messages", extra=key),
        "invalid_request_error": chat(b"[]", path=b"/v1/messages", extra=key),
    }
    async with rig(answering(OK), **settings) as gate:
        for kind, request in requests.items():
            answer = await gate.refusal(request)
            assert error_of(answer)["type"] == kind
            assert (header(answer, b"x-should-retry"), header(answer, b"retry-after")) == (b"false", None)
        assert gate.backend.seen == []


@pytest.mark.parametrize("fault", ["refuses", "resets", "answers"])
@pytest.mark.parametrize("path", [b"/v1/messages", b"/v1/chat/completions", b"/v1/responses"])
async def test_l19_a_failure_before_the_first_byte_is_a_status_and_never_a_200(rig, path, fault):
    """In JSON, in the dialect; a lone error event in a 200 would leave Claude Code stuck."""

    async def resetting(_request, connection):
        connection.reset()

    script = {"answers": answering(b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops"), "resets": resetting}
    scripts, urls = ((), ["http://127.0.0.1:9"]) if fault == "refuses" else ((script[fault],), [])
    async with rig(*scripts, urls=urls) as gate:
        answer = await gate.raw(chat(path=path))

        assert status_of(answer) == {"refuses": 503, "resets": 502, "answers": 500}[fault]
        assert error_of(answer)["message"]
        assert header(answer, b"content-type") == b"application/json"


async def test_l29_between_two_reports_no_more_are_sent_than_fit():
    """Forty come at once, a hundred blocks are free, each takes more than ten: what was sent counts at once."""
    engine = Engine()
    async with admitting(engine) as gate:
        clients = [Client(gate, asking(f"s{number}", 10)) for number in range(40)]
        await gate.until(lambda: gate.inflight() + _waiting(gate) == 40)

        await gate.until(lambda: len(engine.begun) >= 5)
        await asyncio.sleep(0.3)
        assert len(engine.begun) == gate.inflight() <= 10
        for client in clients:
            client.leave()


def _waiting(gate):
    return len(gate.proxy.waiting_room.gate.queue)
