import json

import pytest

from proxy.dialects import routes
from proxy.dialects.early_stream import may_open_early, ping, refusal_event
from proxy.dialects.errors import error_body

CHAT, _ = routes.match("POST", "/v1/chat/completions")
MESSAGES, _ = routes.match("POST", "/v1/messages")
RESPONSES, _ = routes.match("POST", "/v1/responses")
EMBEDDINGS, _ = routes.match("POST", "/v1/embeddings")
COUNTING, _ = routes.match("POST", "/v1/messages/count_tokens")

CLAUDE_CODE = ((b"accept", b"*/*"), (b"User-Agent", b"claude-cli/2.1.197 (external, cli)"))
SDK = ((b"user-agent", b"Anthropic/Python 0.70"),)


def said(event):
    """The JSON in an event's data line."""
    line = next(line for line in event.split(b"\n") if line.startswith(b"data: "))
    return json.loads(line[6:])


def test_a_ping_is_an_event_where_clients_know_one_and_a_comment_elsewhere():
    """L23: both are whole, so that they may stand between two events."""
    assert ping(MESSAGES.dialect) == b'event: ping\ndata: {"type": "ping"}\n\n'
    assert ping(CHAT.dialect) == ping(RESPONSES.dialect) == b": keep-alive\n\n"


@pytest.mark.parametrize(
    ("mode", "route", "headers", "may"),
    [
        ("auto", MESSAGES, CLAUDE_CODE, True),
        ("auto", MESSAGES, SDK, False),
        ("auto", MESSAGES, (), False),
        ("auto", CHAT, CLAUDE_CODE, False),
        ("auto", RESPONSES, CLAUDE_CODE, False),
        ("on", MESSAGES, SDK, True),
        ("on", CHAT, SDK, True),
        ("on", EMBEDDINGS, SDK, False),
        ("on", COUNTING, CLAUDE_CODE, False),
        ("off", MESSAGES, CLAUDE_CODE, False),
    ],
)
def test_whose_stream_may_be_opened_early(mode, route, headers, may):
    """By itself only for the client that was seen to bear it."""
    assert may_open_early(mode, route, headers) is may


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_whatever_is_worth_another_try_is_overloaded_to_claude_code(status):
    """It comes back for this word and for no other; the message stays."""
    event = refusal_event(MESSAGES, status, error_body(MESSAGES.dialect, status, "Full.", "refused_overloaded"))

    assert event.startswith(b"event: error\ndata: ")
    assert event.endswith(b"\n\n")
    assert said(event) == {"type": "error", "error": {"type": "overloaded_error", "message": "Full."}}


def test_an_engines_own_words_are_kept():
    """Agents look for them to know that they must make their context shorter."""
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": "too\nlong"}}, indent=1)

    assert said(refusal_event(MESSAGES, 400, body.encode())) == json.loads(body)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (MESSAGES, b'{"error":{"message":"no","type":null,"code":404}}'),
        (MESSAGES, b'{"object":"error","message":"no","code":404}'),
    ],
)
def test_an_error_without_a_type_gets_that_of_its_status(route, body):
    """The type is what clients act on."""
    assert said(refusal_event(route, 404, body))["error"] == {"type": "not_found_error", "message": "no"}


def test_in_openais_dialects():
    """An error object where there are only data lines; an error event on the Responses route."""
    body = error_body(CHAT.dialect, 429, "Full.", "refused_overloaded")

    event = refusal_event(CHAT, 429, body)
    assert event.startswith(b"data: ")
    assert said(event) == json.loads(body)
    assert said(refusal_event(RESPONSES, 503, body)) == {
        "type": "error",
        "code": "server_error",
        "message": "Full.",
        "param": None,
    }


@pytest.mark.parametrize("route", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'"no"', b'{"error":"no"}', b'{"error":{"message":7}}', b"\xff"]
)
def test_what_is_no_error_object_is_told_by_its_status(route, body):
    """One event of one line each, whatever the backend sent."""
    event = refusal_event(route, 500, body)

    assert b"The backend answered 500 and no stream." in event
    assert event.count(b"\n\n") == 1
    assert said(event)
