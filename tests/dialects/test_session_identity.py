import json

import pytest
from multidict import CIMultiDict

from proxy.dialects.session_identity import credential_digest, named_session, session_key

HEADERS = [
    "x-claude-code-session-id", "session-id", "session_id", "thread-id", "x-opencode-session", "x-session-id",
    "x-session-affinity", "X-Qwen-Code-Session-Id", "x-litellm-session-id", "conversation-id", "X-Amp-Thread-Id",
]  # fmt: skip


def key_of(headers=(), fields=None, fallback=1):
    """The session key of a request."""
    found = CIMultiDict(headers)
    return session_key(credential_digest(found), named_session(found, fields or {}), fallback)


@pytest.mark.parametrize("name", HEADERS)
def test_documented_headers_name_the_session(name):
    """L09: the same key over two turns, whatever else changes and however the header is spelled."""
    first = key_of({name: "s-1", "x-request-id": "r1"}, {"messages": []}, 1)
    second = key_of({name.upper(): "s-1", "x-request-id": "r2"}, {"messages": [1]}, 2)

    assert first == second
    assert first.session == "s-1"


@pytest.mark.parametrize("name", ["x-request-id", "x-client-request-id", "x-forwarded-for", "x-real-ip", "traceparent"])
def test_ids_of_requests_and_addresses_never_do(name):
    """L09: each would be a new session a turn, or one for a whole office."""
    assert key_of({name: "one"}) == key_of({name: "two"}) == key_of()


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_cache_key": "s-1"},
        {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s-1"})}},
    ],
)
def test_bodies_name_it_where_headers_do_not(fields):
    """Codex and Claude Code put it into the body too; a header is trusted more."""
    assert key_of((), fields).session == "s-1"
    assert key_of({"session-id": "h"}, fields).session == "h"


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "user-123"}}, {"metadata": {"user_id": "{broken"}}, {"metadata": {"user_id": 7}},
        {"metadata": {"user_id": "{}"}}, {"metadata": {"user_id": '{"session_id": ["a"]}'}},
        {"metadata": {"user_id": "[1]"}}, {"metadata": {"user_id": "{" + " " * 5_000 + "}"}},
        {"metadata": ["x"]}, {"metadata": None}, {"prompt_cache_key": ""}, {"prompt_cache_key": 5},
        {"user": "me"},
    ],
)  # fmt: skip
def test_other_bodies_name_nothing(fields):
    """A user is no session, and what is broken is not believed."""
    assert named_session({}, fields) is None


@pytest.mark.parametrize("value", ["", "a b", "a\tb", "\x00", "x" * 257, "é", "a\n"])
def test_harmful_names_are_none(value):
    """Long ones, control characters and spaces name nothing; the next source is asked."""
    assert named_session({"session-id": value, "x-session-id": "good"}, {}) == ("good", "")


def test_agents_of_a_session_are_threads_of_their_own():
    """L06: three agent ids and the main thread are four."""
    base = {"x-claude-code-session-id": "s"}
    keys = {key_of({**base, "x-claude-code-agent-id": agent}) for agent in ("a", "b", "c")} | {key_of(base)}

    assert len(keys) == 4
    assert {key.session for key in keys} == {"s"}


def test_an_agent_without_a_session_is_nobody():
    """The agent's id alone tells whose it is just as little."""
    assert named_session({"x-claude-code-agent-id": "a"}, {}) is None


def test_two_users_with_the_same_id_share_nothing():
    """L10: keys are scoped by credential, which itself is not in them."""
    one = key_of({"authorization": "Bearer secret-1", "session-id": "s"})
    other = key_of({"x-api-key": "secret-2", "session-id": "s"})

    assert one != other
    assert "secret" not in repr(one) + repr(other)
    assert key_of({"session-id": "s"}).credential == ""


def test_without_a_name_the_prompt_decides():
    """The head and the first message stay the same over a session's turns."""
    assert key_of(fallback=-5) == key_of({"x-request-id": "x"}, fallback=-5) != key_of(fallback=5)
