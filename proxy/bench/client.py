"""Asks for turns as an agent's client does: streams, waits when told to, tries again, gives up; notes what it saw."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto, unique
from typing import Final

import aiohttp
import orjson

from proxy.bench.dialects import Answer, Api, StreamFailedError, body, headers
from proxy.bench.records import Event, RunRecord, TurnRecord
from proxy.bench.retrying import FIRST_BYTE_S, REFUSALS, wait_before_retry
from proxy.bench.words import Conversation
from proxy.core.ports import Clock

Sleep = Callable[[float], Awaitable[None]]

_QUEUED_HEADER: Final = "x-tidegate-queue-ms"
_CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where turns go, and how.

    Attributes:
        url: without a slash at its end and without /v1.
        has_fixed_lengths: the engine takes `ignore_eos`.
    """

    url: str
    model: str
    api: Api = Api.CHAT
    key: str | None = None
    sends_session: bool = True
    has_fixed_lengths: bool = True


@unique
class Ending(Enum):
    """How a turn ended for the agent."""

    ANSWERED = auto()
    CUT_SHORT = auto()
    """The stream broke after text had come; as real clients do, the agent goes on with what it has."""
    GIVEN_UP = auto()


@dataclass(frozen=True, slots=True)
class _Setback:
    """An attempt that brought nothing: the status or name to count, and what the answer said about trying again."""

    name: str
    is_refusal: bool = False
    may_retry: bool = True
    retry_after: str | None = None


class Client:
    """One client for all agents of a run."""

    def __init__(
        self, http: aiohttp.ClientSession, target: Target, run: RunRecord, *, clock: Clock, sleep: Sleep
    ) -> None:
        self._http = http
        self._target = target
        self._run = run
        self._clock = clock
        self._sleep = sleep

    async def turn(
        self, record: TurnRecord, conversation: Conversation, answer_tokens: int, session: str, rng: random.Random
    ) -> Ending:
        """Get one answer, with as many attempts as a real client makes, and take it into the conversation."""
        retries = 0
        while True:
            answer = Answer(self._target.api)
            setback = await self._attempt(record, answer, conversation, answer_tokens, session)
            if setback is None:
                return self._finish(record, conversation, answer, Ending.ANSWERED)
            self._count(setback)
            if answer.text:
                return self._finish(record, conversation, answer, Ending.CUT_SHORT)
            wait_s = wait_before_retry(retries, setback.retry_after, rng.random()) if setback.may_retry else None
            if wait_s is None:
                return self._finish(record, conversation, answer, Ending.GIVEN_UP)
            retries += 1
            record.first_s = None
            began_s = self._clock()
            await self._sleep(wait_s)
            record.refused_wait_s += self._clock() - began_s

    async def _attempt(
        self, record: TurnRecord, answer: Answer, conversation: Conversation, answer_tokens: int, session: str
    ) -> _Setback | None:
        target = self._target
        named = headers(target.api, target.key)
        if target.sends_session:
            named[target.api.session_header] = session
        data = orjson.dumps(
            body(target.api, target.model, conversation, answer_tokens, has_fixed_length=target.has_fixed_lengths)
        )
        record.sent_s = self._clock()
        try:
            async with self._http.post(target.url + target.api.path, data=data, headers=named) as response:
                if response.status != 200:
                    return await _refused(response)
                record.queued_s = _queued_s(response)
                await self._read(record, answer, response)
        except TimeoutError:
            return _Setback("timeout")
        except StreamFailedError:
            return _Setback("error in stream")
        except aiohttp.ClientConnectorError:
            return _Setback("cannot connect")
        except (aiohttp.ClientError, OSError):
            return _Setback("broken stream" if answer.has_begun else "connection lost")
        return None if answer.is_complete else _Setback("broken stream")

    async def _read(self, record: TurnRecord, answer: Answer, response: aiohttp.ClientResponse) -> None:
        async for data in response.content.iter_any():
            answer.feed(data)
            record.answer_pieces = answer.pieces
            if answer.has_begun and record.first_s is None:
                record.first_s = self._clock()

    def _count(self, setback: _Setback) -> None:
        events = self._run.refusals if setback.is_refusal else self._run.errors
        events.append(Event(self._clock(), setback.name))

    def _finish(self, record: TurnRecord, conversation: Conversation, answer: Answer, ending: Ending) -> Ending:
        record.end_s = self._clock()
        record.is_failed = ending is not Ending.ANSWERED
        record.prompt_tokens = answer.prompt_tokens
        record.cached_tokens = answer.cached_tokens
        record.answer_tokens = answer.pieces if answer.answer_tokens is None else answer.answer_tokens
        conversation.answer(answer.text, record.answer_tokens)
        return ending


def session_for(clients: int) -> aiohttp.ClientSession:
    """An HTTP session that holds nothing back, with the time limits of Claude Code."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=FIRST_BYTE_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients + 8), timeout=timeout, read_bufsize=2**18)


async def _refused(response: aiohttp.ClientResponse) -> _Setback:
    await response.read()
    status = response.status
    may_retry = (status in {408, 409, 429} or status >= 500) and response.headers.get("x-should-retry") != "false"
    return _Setback(str(status), status in REFUSALS, may_retry, response.headers.get("retry-after"))


def _queued_s(response: aiohttp.ClientResponse) -> float:
    try:
        return max(float(response.headers.get(_QUEUED_HEADER, 0)) / 1000, 0.0)
    except ValueError:
        return 0.0
