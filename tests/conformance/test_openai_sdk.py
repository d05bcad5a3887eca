"""The OpenAI Python SDK as a real client."""

import asyncio

import openai
import pytest

from tests.conformance.bodies import COMPLETIONS, PROMPT, body_for, said
from tests.conformance.wire import ask

FIXED = {"ignore_eos": True}


def test_chat(openai_client, model):
    """A chat answer has a text, a reason to end and a usage that adds up."""
    answer = openai_client.chat.completions.create(
        model=model, messages=said(), max_tokens=9, temperature=0, extra_body=FIXED
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 9


def test_chat_stream_says_the_same(openai_client, model):
    """The pieces of a stream make the text of the whole answer, and its last chunk has the same usage."""
    asked = {"model": model, "messages": said(), "max_tokens": 20, "temperature": 0, "seed": 7, "extra_body": FIXED}
    whole = openai_client.chat.completions.create(**asked)
    chunks = list(openai_client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_manager(openai_client, model):
    """The SDK's own accumulator has gathered the pieces that it told of, and sees why they ended."""
    asked = {"model": model, "messages": said(), "max_tokens": 12, "extra_body": FIXED}
    with openai_client.chat.completions.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        (choice,) = stream.current_completion_snapshot.choices
    assert choice.message.content == "".join(pieces) != ""
    assert choice.finish_reason == "length"


def test_conversation(openai_client, model):
    """System, earlier turns and content parts are all counted as prompt."""
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
        {"role": "assistant", "content": "Three."},
        *said("Four."),
    ]
    answers = [
        openai_client.chat.completions.create(model=model, messages=messages, max_tokens=1)
        for messages in (turns[:2], turns)
    ]
    assert answers[0].usage.prompt_tokens < answers[1].usage.prompt_tokens


def test_completions(openai_client, model):
    """A completion answers a bare prompt."""
    answer = openai_client.completions.create(model=model, prompt=PROMPT, max_tokens=7, temperature=0, extra_body=FIXED)
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 7


def test_completions_stream_says_the_same(openai_client, model):
    """The pieces of a streamed completion make the text of the whole one."""
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 15, "temperature": 0, "seed": 7, "extra_body": FIXED}
    whole = openai_client.completions.create(**asked)
    chunks = list(openai_client.completions.create(stream=True, **asked))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.usefixtures("has_responses")
def test_responses(openai_client, model):
    """A response has a text and a usage that adds up."""
    answer = openai_client.responses.create(model=model, input=PROMPT, max_output_tokens=8, temperature=0)
    assert answer.object == "response"
    assert answer.output_text
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


@pytest.mark.usefixtures("has_responses")
def test_responses_stream_says_the_same(openai_client, model):
    """A streamed response counts its events without a gap and ends with the text of the whole one."""
    asked = {"model": model, "input": PROMPT, "max_output_tokens": 10, "temperature": 0}
    whole = openai_client.responses.create(**asked)
    events = list(openai_client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text


@pytest.mark.usefixtures("has_responses")
def test_response_that_is_not_stored(openai_client):
    """A response that no engine holds is not found, in an error that the SDK knows."""
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve("resp_0123456789abcdef")


def test_embeddings_of_a_model_that_has_none(openai_client, direct_url, model):
    """An engine that makes none says so itself; where it has no such route, the proxy says that no engine has it."""
    body = {"model": model, "input": "text", "encoding_format": "float"}
    direct = ask(direct_url, "/v1/embeddings", body)
    with pytest.raises(openai.APIStatusError) as caught:
        openai_client.embeddings.create(**body)
    if direct.status in {404, 405} and "error" not in direct.json():
        assert caught.value.status_code == 400
        assert "/v1/embeddings" in caught.value.message
    else:
        assert caught.value.status_code == direct.status
        assert caught.value.response.content == direct.body


def test_models(openai_client, model):
    """The model list names the model, and its own card can be fetched."""
    listed = openai_client.models.list()
    assert listed.object == "list"
    assert model in [card.id for card in listed.data]
    card = openai_client.models.retrieve(model)
    assert (card.id, card.object) == (model, "model")
    assert card.max_model_len > 0


def test_model_card_that_does_not_exist(openai_client):
    """The card of an unknown model is not found."""
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("no-such-model")


async def test_many_streams_at_once(base_url, model):
    """Forty streams at once, more than an engine runs together, all end as they should."""
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0, timeout=50) as client:

        async def one(number):
            asked = {"model": model, "messages": said(f"Number {number}."), "max_tokens": 10, "extra_body": FIXED}
            stream = await client.chat.completions.create(stream=True, **asked)
            return [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices][-1]

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(number)) for number in range(40)]
    assert [task.result() for task in running] == ["length"] * 40


def test_every_answer_can_be_named(openai_client, model):
    """Answers carry a request id that the SDK finds, another one each time, and a backend."""
    raw = [openai_client.chat.completions.with_raw_response.create(model=model, messages=said(), max_tokens=1)]
    raw += [openai_client.chat.completions.with_raw_response.create(model=model, messages=said(), max_tokens=1)]
    ids = {answer.headers["x-request-id"] for answer in raw}
    assert len(ids) == 2
    assert raw[0].parse()._request_id in ids
    assert all(answer.headers["x-tidegate-backend"] for answer in raw)


def test_completion_of_token_ids(base_url, model):
    """A prompt of token ids, which no proxy can read as text, passes."""
    answer = ask(base_url, COMPLETIONS, body_for(COMPLETIONS, model, max_tokens=2, prompt=[40, 41, 42, 43]))
    assert answer.status == 200, answer.body
    assert answer.json()["usage"]["prompt_tokens"] == 4
