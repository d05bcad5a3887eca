"""The Anthropic Python SDK as a real client."""

import anthropic
import pytest

from tests.conformance.bodies import COUNT_TOKENS, body_for, said
from tests.conformance.wire import ask

GREEDY = {"temperature": 0}  # the SDK no longer names it; the engine still takes it


def text_of(message):
    """The text of a message's only block."""
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_message(anthropic_client, model):
    """A message has a text block, a reason to end and a usage."""
    message = anthropic_client.messages.create(model=model, messages=said(), max_tokens=9, extra_body=GREEDY)
    assert (message.type, message.role) == ("message", "assistant")
    assert text_of(message)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 9
    assert message.usage.input_tokens > 0


def test_stream_says_the_same(anthropic_client, model):
    """The pieces of a stream make the text of the whole message, and usage and reason agree."""
    asked = {"model": model, "messages": said(), "max_tokens": 20, "extra_body": GREEDY}
    whole = anthropic_client.messages.create(**asked)
    with anthropic_client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(whole)
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 20


def test_stream_events_are_in_order(anthropic_client, model):
    """One start, blocks that open before they grow and close before the next, one delta, one stop."""
    asked = {"model": model, "messages": said(), "max_tokens": 12, "extra_body": GREEDY}
    events = list(anthropic_client.messages.create(stream=True, **asked))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert {event.index for event in events[1:-2]} == {0}


def test_beta_form(anthropic_client, model):
    """The beta client's path, query and headers pass."""
    message = anthropic_client.beta.messages.create(
        model=model,
        messages=said(),
        max_tokens=5,
        betas=["context-management-2025-06-27", "of-tomorrow-2031-01-01"],
        extra_body=GREEDY,
    )
    assert text_of(message)


def test_unknown_fields_pass(anthropic_client, model):
    """Fields that nobody here has heard of are the engine's business, not the proxy's."""
    message = anthropic_client.messages.create(
        model=model, messages=said(), max_tokens=5, extra_body={"field_of_tomorrow": {"on": True}, **GREEDY}
    )
    assert text_of(message)


def test_conversation_of_blocks(anthropic_client, model):
    """System blocks, cache marks and tool results in the history are taken."""
    mark = {"cache_control": {"type": "ephemeral"}}
    message = anthropic_client.messages.create(
        model=model,
        max_tokens=5,
        extra_body=GREEDY,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.", **mark}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Weather in Rome?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny.", **mark}],
            },
        ],
    )
    assert text_of(message)


def test_count_tokens(anthropic_client, direct_url, model):
    """A count is the engine's, and it grows with the conversation."""
    short = anthropic_client.messages.count_tokens(model=model, messages=said())
    long = anthropic_client.messages.count_tokens(model=model, messages=said("Say hello. " * 50))
    direct = ask(direct_url, COUNT_TOKENS, body_for(COUNT_TOKENS, model)).json()
    assert short.input_tokens == direct["input_tokens"]
    assert long.input_tokens > short.input_tokens + 50


def test_models(anthropic_client, model):
    """The model list has Anthropic's form for an Anthropic client, page and card."""
    page = anthropic_client.models.list(limit=1000)
    cards = {card.id: card for card in page}
    assert cards[model].type == "model"
    assert cards[model].display_name
    assert cards[model].created_at.year >= 2020
    assert (page.has_more, page.first_id) == (False, page.data[0].id)
    assert anthropic_client.models.retrieve(model).id == model


def test_model_card_that_does_not_exist(anthropic_client):
    """The card of an unknown model is not found, in Anthropic's form."""
    with pytest.raises(anthropic.NotFoundError) as caught:
        anthropic_client.models.retrieve("no-such-model")
    said_by_proxy = caught.value.response.json()
    assert (said_by_proxy["type"], said_by_proxy["error"]["type"]) == ("error", "not_found_error")


def test_bearer_token(base_url, model):
    """The other form of credential, as Claude Code sends it, is as good as a key."""
    with anthropic.Anthropic(base_url=base_url, auth_token="any", max_retries=0, timeout=50) as client:
        assert text_of(client.messages.create(model=model, messages=said(), max_tokens=2, extra_body=GREEDY))


async def test_async_stream(base_url, model):
    """The asynchronous client streams too."""
    async with (
        anthropic.AsyncAnthropic(base_url=base_url, api_key="any", max_retries=0, timeout=50) as client,
        client.messages.stream(model=model, messages=said(), max_tokens=8, extra_body=GREEDY) as stream,
    ):
        pieces = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == text_of(final)
    assert final.usage.output_tokens == 8
