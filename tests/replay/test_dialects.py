"""Turns in both APIs: what is asked, and what is read off a stream however it is cut."""

import json

import pytest

from proxy.bench.dialects import Answer, Api, StreamFailedError, body, headers
from proxy.bench.plans import TurnPlan
from proxy.bench.words import Conversation, Words

CHAT = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "one "}}]},
    {"choices": [{"delta": {"content": "two"}, "finish_reason": "length"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 16}},
    },
]
MESSAGES = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 14, "output_tokens": 0}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "two"}},
    {"type": "message_delta", "usage": {"input_tokens": 14, "output_tokens": 5, "cache_read_input_tokens": 16}},
    {"type": "message_stop"},
]


def stream(api, events):
    """Events as they stand in a stream."""
    if api is Api.CHAT:
        return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


@pytest.mark.parametrize(("api", "events"), [(Api.CHAT, CHAT), (Api.MESSAGES, MESSAGES)])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_answer_is_read_whatever_the_cuts(api, events, size):
    """Text, tokens and the end."""
    answer = Answer(api)
    data = stream(api, events)
    for at in range(0, len(data), size):
        answer.feed(data[at : at + size])

    assert (answer.text, answer.pieces, answer.is_complete) == ("one two", 2, True)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.answer_tokens) == (30, 16, 5)


@pytest.mark.parametrize(("api", "events", "silent"), [(Api.CHAT, CHAT, 1), (Api.MESSAGES, MESSAGES, 3)])
def test_an_announcement_is_no_first_token(api, events, silent):
    """A role, a start or a ping came before the engine had made anything."""
    answer = Answer(api)
    data = stream(api, events).split(b"data:")
    answer.feed(b"data:".join(data[: silent + 1]))
    assert not answer.has_begun

    answer.feed(b"data:" + data[silent + 1])
    assert answer.has_begun
    assert not answer.is_complete


def test_reasoning_counts_as_a_token():
    """The user sees it come."""
    answer = Answer(Api.CHAT)
    answer.feed(b'data: {"choices":[{"delta":{"reasoning":"hm"}}]}\n')

    assert (answer.has_begun, answer.pieces, answer.text) == (True, 1, "")


@pytest.mark.parametrize("event", [b'{"error":{"message":"gone"}}', b'{"type":"error","error":{}, "x":', b"[]"])
def test_an_error_inside_a_stream_is_raised(event):
    """So is what is no event at all."""
    with pytest.raises(StreamFailedError):
        Answer(Api.MESSAGES).feed(b"data: " + event + b"\n")


def test_bodies_ask_for_a_fixed_length_where_it_is_known():
    """The Messages API knows no `ignore_eos`."""
    talk = Conversation(Words(), run="r", shared_tokens=3, session=1)
    talk.ask(TurnPlan(3, 1, 0))
    chat = body(Api.CHAT, "m", talk, 9, has_fixed_length=True)
    messages = body(Api.MESSAGES, "m", talk, 9, has_fixed_length=True)

    assert (chat["ignore_eos"], chat["max_tokens"], chat["temperature"]) == (True, 9, 0)
    assert chat["messages"][0] == {"role": "system", "content": talk.head}
    assert "ignore_eos" not in messages
    assert messages["system"] == [{"type": "text", "text": talk.head}]
    assert messages["messages"] == chat["messages"][1:]
    assert "ignore_eos" not in body(Api.CHAT, "m", talk, 9, has_fixed_length=False)


def test_keys_go_where_each_api_expects_them():
    """And nowhere without one."""
    assert headers(Api.CHAT, "k")["authorization"] == "Bearer k"
    assert headers(Api.MESSAGES, "k")["x-api-key"] == "k"
    assert not {"authorization", "x-api-key"} & headers(Api.MESSAGES, None).keys()
