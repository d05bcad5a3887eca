import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from proxy.dialects.turns import turn_of

NAMED = {"x-claude-code-session-id": "s"}


def turn(fields, headers=()):
    """The turn of a request."""
    return turn_of(CIMultiDict(headers), fields, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 32_000}, 32_000),
        ({"max_completion_tokens": 5}, 5),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": 0, "max_output_tokens": 7}, 7),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": -1}, None),
        ({}, None),
    ],
)
def test_the_cap_on_the_answer_in_any_dialect(fields, limit):
    """Only what is a number of tokens counts."""
    assert limit == turn(fields).output_limit_tokens


@pytest.mark.parametrize(
    ("value", "patience_s"),
    [
        ("600", 600.0),
        ("20.5", 20.5),
        ("0", 1.0),
        ("", None),
        ("soon", None),
        ("9999999", None),
        ("-5", None),
        ("1e3", None),
    ],
)
@pytest.mark.parametrize("name", ["X-Stainless-Timeout", "x-stainless-read-timeout"])
def test_the_clients_own_timeout(name, value, patience_s):
    """L24: seconds, when the client says them in a way that can be understood."""
    assert patience_s == turn({}, {name: value}).patience_s


@pytest.mark.parametrize(("value", "patience_s"), [("600", 300.0), ("20", 20.0), ("", None)])
def test_claude_code_is_less_patient_than_it_says(value, patience_s):
    """It was seen to leave after 300 s without an answer, though it says 600."""
    headers = {"user-agent": "claude-cli/2.1.197 (external, cli)", "x-stainless-timeout": value}

    assert patience_s == turn({}, headers).patience_s


def test_copies_are_told_only_where_a_session_is_named():
    """Two equal prompts of strangers are two requests."""
    fields = {"messages": [{"role": "user", "content": "hi"}]}

    assert turn(fields).twin == 0
    assert turn(fields, NAMED).twin == turn(fields, NAMED).twin != 0
    assert turn(fields, NAMED).twin != turn({**fields, "n": 1}, NAMED).twin


def test_batch_is_said_by_header():
    """In any case; any other word is ordinary."""
    assert turn({}, {"X-Tidegate-Class": "Batch"}).is_batch
    assert not turn({}, {"X-Tidegate-Class": "interactive"}).is_batch


def nested(depth):
    """A list in a list in a list."""
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


ODD = {
    "a type that is a list": {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]},
    "a role that is an object": {"messages": [{"role": {"name": "user"}, "content": "x"}]},
    "a deep tool schema": {"tools": nested(300)},
    "a deep tool input": {"messages": [{"role": "user", "content": [{"type": "tool_use", "input": nested(300)}]}]},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
def test_bodies_that_an_engine_would_judge_are_left_to_it(fields):
    """L02: whatever the roles and shapes, our own parsing does not raise, and what it cannot measure has a size."""
    assert turn(fields).text_bytes > 0
    assert turn(fields) == turn(fields)


WORDS = st.text(max_size=8)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "odd"])},
    optional={
        "text": WORDS,
        "content": WORDS | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}), max_size=2),
        "cache_control": st.just({"type": "ephemeral"}),
        "source": st.fixed_dictionaries({"data": WORDS}),
        "input": st.dictionaries(WORDS, st.none() | st.integers(-(2**60), 2**60) | WORDS, max_size=2),
    },
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "ctx", "developer"])},
    optional={"content": st.none() | WORDS | st.lists(BLOCKS | WORDS, max_size=3)},
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "messages": st.none() | st.lists(MESSAGES | WORDS | st.none(), max_size=4),
            "input": WORDS | st.lists(MESSAGES, max_size=3),
            "prompt": WORDS | st.lists(st.integers(0, 200_000), max_size=5) | st.lists(WORDS, max_size=3),
            "system": WORDS | st.lists(BLOCKS, max_size=3),
            "tools": st.none() | st.lists(BLOCKS, max_size=3),
            "instructions": WORDS,
        },
    )
)
def test_every_prompt_can_be_measured(fields):
    """In any dialect: twice the same gives the same, and nothing is negative."""
    found = turn(fields)

    assert found == turn(fields)
    assert 0 <= found.head_bytes <= found.text_bytes
    assert found.extra_tokens >= 0


def test_what_changed_can_be_told_from_two_turns():
    """Model, tools and client have digests of their own; an attribution's version counts, its hash does not."""
    fields = {"model": "m", "system": "S", "tools": [{"name": "t"}], "messages": [{"role": "user", "content": "hi"}]}
    agent = {"user-agent": "claude-cli/2.1.197 (external, cli)"}
    line = "x-anthropic-billing-header: cc_version=2.1.%s; cch=%s;\nS"
    plain = turn(fields, agent)

    assert turn(fields | {"model": "n"}, agent).scope != plain.scope
    assert turn(fields | {"tools": [{"name": "u"}]}, agent).tools != plain.tools
    assert turn(fields | {"system": "T"}, agent).tools == plain.tools
    assert turn(fields | {"system": "T"}, agent).head != plain.head
    assert turn(fields, {"user-agent": "claude-cli/2.1.198 (external, cli)"}).client != plain.client
    one, two, other = (turn(fields | {"system": line % what}) for what in (("7.a", "1"), ("7.b", "2"), ("8.a", "1")))
    assert one.client == two.client != other.client
    assert one.head == two.head == plain.head


def test_a_user_agent_that_is_no_text_is_taken():
    """Bytes of headers that are no UTF-8 come as surrogates."""
    assert turn({}, {"user-agent": "\udcff"}).client


def test_two_credentials_have_no_prompt_in_common():
    """However alike their prompts are."""
    fields = {"messages": [{"role": "user", "content": "hi"}]}

    assert turn(fields, {"x-api-key": "p"}).chain != turn(fields, {"x-api-key": "q"}).chain
