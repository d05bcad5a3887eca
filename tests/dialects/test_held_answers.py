import json

import pytest

from proxy.core.requests import RequestView
from proxy.core.turns import SessionKey, Turn
from proxy.dialects import routes
from proxy.dialects.held_answers import HeldAnswer, for_client, is_without_route

ROUTES = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "count": "/v1/messages/count_tokens",
}
OK_CHAT = b'{"error":{"message":"slow down","type":"x"}}'


def view_of(route="chat", *, request_id="r", text_bytes=None):
    """A request on a route."""
    path = ROUTES[route]
    turn = None if text_bytes is None else Turn(SessionKey("", "s"), text_bytes, extra_tokens=100)
    return RequestView(request_id, routes.match("POST", path)[0], "POST", path, (), b"{}", 0.0, turn=turn)


def answered(status, body=OK_CHAT, *headers, route="chat", **more):
    """What becomes of an answer; its headers as a dictionary."""
    given = HeldAnswer(status, b"Whatever", [(b"Content-Type", b"application/json"), *headers], body)
    got = for_client(view_of(route, **more), given)
    return got, {name.decode().lower(): value.decode() for name, value in got.headers}


def test_below_400_nothing_is_touched():
    """A redirect, or nothing new, is no error."""
    answer = HeldAnswer(302, b"Found", [(b"Location", b"/")], b"<html>")

    assert for_client(view_of("messages"), answer) is answer


def test_a_body_in_shape_passes_byte_for_byte():
    """With the status line and the headers that it came with."""
    got, headers = answered(400)

    assert (got.status, got.reason, got.body) == (400, b"Whatever", OK_CHAT)
    assert headers == {"content-type": "application/json", "x-should-retry": "false"}


def test_l47_a_new_body_has_new_headers():
    """Its type is its own, and what described the old one goes."""
    got, headers = answered(403, b"<html>no</html>", (b"ETag", b"x"), (b"Server", b"waf"), route="messages")

    assert json.loads(got.body)["error"]["type"] == "permission_error"
    assert headers == {
        "content-type": "application/json", "server": "waf", "x-should-retry": "false"
    }  # fmt: skip
    assert got.status == 403


def test_a_compressed_body_cannot_be_read_and_is_left_alone():
    """Its status still says what it says."""
    got, headers = answered(400, b"\x1f\x8b", (b"Content-Encoding", b"gzip"))

    assert (got.body, headers["content-encoding"]) == (b"\x1f\x8b", "gzip")
    assert not is_without_route(HeldAnswer(404, b"", [(b"Content-Encoding", b"gzip")], b"\x1f\x8b"))


@pytest.mark.parametrize(
    ("route", "status", "becomes"),
    [
        ("responses", 429, 503),
        ("responses", 503, 503),
        ("messages", 429, 429),
        ("messages", 503, 503),
        ("messages", 529, 529),
        ("chat", 429, 429),
        ("chat", 503, 503),
        ("chat", 999, 502),
    ],
)
def test_l18_a_backends_overload_by_route(route, status, becomes):
    """Codex takes a 429 for final; everybody else gets what the backend said."""
    assert answered(status, route=route)[0].status == becomes


@pytest.mark.parametrize("status", [429, 503, 529])
def test_l16_an_overload_says_when_to_come_back(status):
    """Without a word from the backend too; spread, whole, short."""
    waits = {answered(status, request_id=f"{number:032x}")[1]["retry-after"] for number in range(200)}

    assert waits == {"1", "2", "3"}


@pytest.mark.parametrize(
    "given", [b"61", b"3600", b"0", b"0.5", b"1.5", b"-1", b"soon", b"Mon, 30 Nov 2026 17:02:10 GMT"]
)
def test_l15_a_backends_wait_is_made_one_that_clients_take(given):
    """Whole seconds from 1 to 60: a date, a fraction or an hour ends the turn in one client or another."""
    wait = answered(429, OK_CHAT, (b"Retry-After", given))[1]["retry-after"]

    assert 1 <= int(wait) <= 60


@pytest.mark.parametrize("given", [b"1", b"7", b"60"])
def test_l15_a_good_wait_of_a_backend_is_kept(given):
    """It knows best; on any status."""
    assert answered(429, OK_CHAT, (b"retry-after", given))[1]["retry-after"] == given.decode()
    assert answered(400, OK_CHAT, (b"retry-after", given))[1]["retry-after"] == given.decode()


def test_l15_milliseconds_beyond_the_limit_are_dropped():
    """The SDKs look at them first."""
    ms = (b"retry-after-ms", b"90000")

    assert "retry-after-ms" not in answered(429, OK_CHAT, ms)[1]
    assert answered(429, OK_CHAT, (b"retry-after-ms", b"1500"))[1]["retry-after-ms"] == "1500"


def test_l32_an_overflow_may_be_tried_again_with_less():
    """Claude Code lowers its limit and asks anew; an advice against that might be taken."""
    message = "max_tokens=99999 cannot be greater than max_model_len=65536."
    body = json.dumps({"error": {"message": message}}).encode()

    assert "x-should-retry" not in answered(400, body, route="messages")[1]
    assert answered(400, body)[1]["x-should-retry"] == "false"


@pytest.mark.parametrize(("status", "says"), [(400, "false"), (404, "false"), (413, "false"), (408, None), (500, None)])
def test_l16_what_no_retry_mends_says_so(status, says):
    """Claude Code and the SDKs obey it."""
    assert answered(status)[1].get("x-should-retry") == says


def test_l16_a_backends_own_advice_stands():
    """It may know better."""
    assert answered(400, OK_CHAT, (b"X-Should-Retry", b"true"))[1]["x-should-retry"] == "true"


def test_l32_the_prompts_size_is_guessed_from_the_turn():
    """A little too large rather than too small, images included."""
    message = "max_tokens=99999 cannot be greater than max_model_len=65536."
    body = json.dumps({"error": {"message": message}}).encode()

    assert b"limit: 1100 + 99999 > 65536" in answered(400, body, route="messages", text_bytes=3_700)[0].body
    assert b"limit: 0 + 99999 > 65536" in answered(400, body, route="messages")[0].body


def test_l42_no_such_route():
    """What the web framework of an older engine says."""
    assert is_without_route(HeldAnswer(404, b"", [], b'{"detail":"Not Found"}'))
    assert not is_without_route(HeldAnswer(404, b"", [], OK_CHAT))
