"""The client against a scripted server: it waits when told to, keeps its session, counts what breaks, gives up."""

import asyncio
import itertools
import json

import pytest

from proxy.bench.client import Client, Ending, Target, session_for
from proxy.bench.dialects import Api
from proxy.bench.plans import TurnPlan, chance
from proxy.bench.records import RunRecord, TurnRecord
from proxy.bench.words import Conversation, Words
from tests.fakes.backend import STREAM_HEAD, json_answer, scripted_backend
from tests.fakes.clock import FakeClock

PIECE = b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}\n\n'
DONE = b"data: [DONE]\n\n"


def refusal(status, *lines):
    """A refusal with these header lines."""
    return json_answer(b"{}", status, b"".join(line + b"\r\n" for line in lines))


def streamed(*pieces, extra=b""):
    """A stream of these pieces, not yet ended."""
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\n" + extra + b"\r\n")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


GOOD = streamed(PIECE, PIECE, USAGE, DONE) + b"0\r\n\r\n"


class Setting:
    """One client, its clock that only moves in pauses, and what it wrote down."""

    def __init__(self, **target):
        self.clock = FakeClock()
        self.run = RunRecord(agents=1, begin_s=0.0)
        self.pauses = []
        self.records = []
        self.talk = Conversation(Words(), run="r", shared_tokens=5, session=1)
        self.target = target

    async def sleep(self, seconds):
        """Move the clock instead of waiting."""
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    async def turns(self, *answers, count=1):
        """Ask for turns of a server that gives these answers, the last one for ever; how they ended, what it saw."""
        scripted = itertools.chain(answers, itertools.repeat(answers[-1]))

        async def script(_request, connection):
            answer = next(scripted)
            await connection.send(answer)
            if b"text/event-stream" in answer and not answer.endswith(b"0\r\n\r\n"):
                connection.close()

        async with scripted_backend(script) as backend, session_for(1) as http:
            target = Target(url=backend.url, model="m", **self.target)
            client = Client(http, target, self.run, clock=self.clock, sleep=self.sleep)
            return [await self.turn(client) for _ in range(count)], backend.seen

    async def turn(self, client):
        """Ask for one turn."""
        self.talk.ask(TurnPlan(5, 2, 0))
        self.records.append(TurnRecord(0, 5, is_returning=False, wanted_s=self.clock()))
        return await client.turn(self.records[-1], self.talk, 2, "session-1", chance(1))

    @property
    def refusals(self):
        """Their statuses."""
        return [event.name for event in self.run.refusals]

    @property
    def errors(self):
        """Their names."""
        return [event.name for event in self.run.errors]


async def test_an_answer_goes_into_the_record_and_into_the_next_prompt():
    """As it came."""
    setting = Setting()
    endings, seen = await setting.turns(GOOD, count=2)
    record = setting.records[0]

    assert endings == [Ending.ANSWERED] * 2
    assert (record.prompt_tokens, record.answer_tokens, record.cached_tokens) == (9, 2, None)
    assert record.end_s == record.first_s == setting.clock.now
    first, second = (json.loads(request.body)["messages"] for request in seen)
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "word word "}


async def test_refusals_are_waited_out_on_the_same_session():
    """And counted apart from errors; the pauses are part of the turn's first-token time."""
    setting = Setting()
    endings, seen = await setting.turns(refusal(429, b"Retry-After: 7"), refusal(503, b"Retry-After: 20"), GOOD)
    record = setting.records[0]

    assert endings == [Ending.ANSWERED]
    assert 7 <= setting.pauses[0] < 9
    assert 20 <= setting.pauses[1] < 26
    assert (setting.refusals, setting.errors) == (["429", "503"], [])
    assert record.refused_wait_s == pytest.approx(sum(setting.pauses))
    assert record.first_s - record.wanted_s == pytest.approx(record.refused_wait_s)
    assert record.sent_s - record.wanted_s == pytest.approx(record.refused_wait_s)
    assert {request.header("x-session-id") for request in seen} == {"session-1"}
    assert len({request.body for request in seen}) == 1


async def test_it_gives_up_after_ten_more_attempts():
    """The session ends; that is what its user would see."""
    setting = Setting()
    endings, seen = await setting.turns(refusal(429, b"Retry-After: 1"))

    assert endings == [Ending.GIVEN_UP]
    assert len(seen) == 11
    assert setting.records[0].is_failed


@pytest.mark.parametrize(
    ("answer", "refusals", "errors"),
    [
        (refusal(400), [], ["400"]),
        (refusal(429, b"x-should-retry: false"), ["429"], []),
        (refusal(503, b"Retry-After: 90"), ["503"], []),
    ],
)
async def test_what_is_not_worth_another_attempt(answer, refusals, errors):
    """A fault of the request, a clear no, a wait of over a minute."""
    setting = Setting()
    endings, seen = await setting.turns(answer, GOOD)

    assert (endings, len(seen), setting.pauses) == ([Ending.GIVEN_UP], 1, [])
    assert (setting.refusals, setting.errors) == (refusals, errors)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(502), "502"),
        (streamed(), "connection lost"),
        (streamed(b'data: {"error":{"message":"gone"}}\n\n'), "error in stream"),
    ],
)
async def test_an_error_before_any_text_counts_and_is_tried_again(answer, error):
    """As real clients do."""
    setting = Setting()
    endings, seen = await setting.turns(answer, GOOD)

    assert (endings, len(seen)) == ([Ending.ANSWERED], 2)
    assert (setting.errors, setting.refusals) == ([error], [])


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"])
async def test_a_stream_that_breaks_after_text_is_an_error_and_not_replayed(end):
    """Cut off, or ended without saying so; the agent goes on with what it has."""
    setting = Setting()
    endings, seen = await setting.turns(streamed(PIECE) + end, GOOD)

    assert (endings, len(seen), setting.errors) == ([Ending.CUT_SHORT], 1, ["broken stream"])
    assert setting.records[0].is_failed
    assert setting.talk.messages[-1].text == "word "


async def test_a_server_that_is_gone_is_an_error():
    """With the same pauses, and an end."""
    setting = Setting()
    async with session_for(1) as http:
        target = Target(url="http://127.0.0.1:1", model="m")
        client = Client(http, target, setting.run, clock=setting.clock, sleep=setting.sleep)
        ending = await setting.turn(client)

    assert ending is Ending.GIVEN_UP
    assert setting.errors == ["cannot connect"] * 11


async def test_the_session_header_is_the_apis_own_and_can_be_left_out():
    """Claude Code's on the Messages API."""
    named, silent = Setting(api=Api.MESSAGES), Setting(api=Api.MESSAGES, sends_session=False)
    stop = streamed(b'data: {"type":"message_stop"}\n\n') + b"0\r\n\r\n"
    _, [with_it] = await named.turns(stop)
    _, [without] = await silent.turns(stop)

    assert with_it.line.startswith("POST /v1/messages ")
    assert with_it.header("x-claude-code-session-id") == "session-1"
    assert without.header("x-claude-code-session-id") is None


async def test_what_the_proxy_held_back_is_read_off_its_receipt():
    """A hold inside the proxy looks like a slow engine otherwise."""
    setting = Setting()
    await setting.turns(streamed(PIECE, USAGE, DONE, extra=b"x-tidegate-queue-ms: 1500\r\n") + b"0\r\n\r\n")

    assert setting.records[0].queued_s == 1.5
