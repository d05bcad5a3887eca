import asyncio
import json

import pytest
from multidict import CIMultiDict

from proxy.core.errors import Refusal
from proxy.net.auth import Gatekeeper
from tests.fakes.backend import STREAM_HEAD, answering, json_answer
from tests.net.conftest import chat

KEYS = ("right-one", "right-two")
CANARY = b"canary-4f1d"


def check(headers, keys=KEYS):
    """Whether these headers open the door."""
    try:
        Gatekeeper(keys).check(CIMultiDict(headers))
    except Refusal as refusal:
        return refusal.status != 401
    return True


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({"Authorization": "Bearer right-one"}, True),
        ({"authorization": "bearer right-two"}, True),
        ({"X-API-Key": "right-two"}, True),
        ({"Authorization": "Bearer stale", "x-api-key": "right-one"}, True),
        ({"Authorization": "Bearer right-one", "x-api-key": "stale"}, True),
        ({"Authorization": "Bearer   right-one "}, True),
        ({}, False),
        ({"Authorization": "right-one"}, False),
        ({"Authorization": "Basic right-one"}, False),
        ({"Authorization": "Bearer"}, False),
        ({"Authorization": "Bearer "}, False),
        ({"x-api-key": ""}, False),
        ({"x-api-key": "right-on"}, False),
        ({"x-api-key": "right-one2"}, False),
        ({"x-api-key": "RIGHT-ONE"}, False),
        ({"x-api-key": "right-one,right-two"}, False),
        ({"x-api-key": "\udce9"}, False),
        ({"x-api-key": "x" * 1_000_000}, False),
        ({"Cookie": "key=right-one"}, False),
    ],
)
def test_one_valid_key_in_either_header_opens(headers, is_let_in):
    """L43, row 40: one rule for both headers, whatever stands in the other one; nothing near a key is a key."""
    assert is_let_in == check(headers)


def test_without_keys_everybody_may():
    """No key configured means that none is asked for."""
    assert check({}, keys=())
    assert check({"x-api-key": "anything"}, keys=())


def test_the_keys_themselves_are_not_kept():
    """What a traceback or a debugger shows of it holds no key."""
    gatekeeper = Gatekeeper(KEYS)

    assert "right" not in repr(vars(gatekeeper))


async def breaking(_request, connection):
    """Begin a stream and break it off."""
    await connection.send(STREAM_HEAD)
    await connection.chunk(b"data: {}\n\n")
    connection.reset()


@pytest.mark.parametrize(
    "script",
    [answering(json_answer(b"{}")), answering(json_answer(b"no", 500)), answering(b"\x00garbage"), breaking],
    ids=["well", "500", "garbage", "broken off"],
)
async def test_no_key_shows_anywhere(rig, script):
    """Row 110: whatever is asked and however it ends, keys are in no log line, metric, status page or answer."""
    keyless = [
        b"Authorization: Bearer " + CANARY,
        b"authorization: Basic " + CANARY,
        b"x-api-key: " + CANARY,
        b"api-key: " + CANARY,
        b"Cookie: session=" + CANARY,
        b"Proxy-Authorization: Basic " + CANARY,
        b"Connection: x-secret\r\nx-secret: " + CANARY,
        b"x_api_key: " + CANARY,
        b"x-request-id: a b " + CANARY,
    ]
    keyed = b"Authorization: Bearer the-key\r\n"
    bodies = [
        b'{"model":"m","stream":true}',
        b'{"model":"m", broken',
        b"[]",
        b'{"model":"\xff"}',
        b'{"model":"unknown"}',
    ]
    async with rig(script, auth={"keys": ["the-key", CANARY.decode() + "-2"]}) as gate:
        answers = []
        for header in keyless:
            answers.append(await gate.raw(chat(extra=header + b"\r\n")))  # refused: the key is wrong
            answers.append(await gate.raw(chat(extra=header + b"\r\n", path=b"/v1/messages")))
            answers += [await gate.raw(chat(body, extra=keyed + header + b"\r\n")) for body in bodies]
        answers.append(await gate.raw(chat(extra=b"Authorization: Bearer " + CANARY + b"\x00\r\n")))
        for path in (b"/metrics", b"/status", b"/status.json", b"/readyz", b"/v1/models"):
            answers.append(await gate.raw(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" % (path, keyed)))
        await gate.until(lambda: sum(gate.outcomes().values()) == len(answers) - 4)
        seen = gate.backend.seen
    await asyncio.sleep(0)

    assert [] == [answer for answer in answers if CANARY in answer or b"the-key" in answer]
    assert seen
    assert [] == [one for one in seen if CANARY.decode() in str(one.headers) or "the-key" in str(one.headers)]
    log = gate.log.getvalue()
    assert len(answers) - 4 <= len([json.loads(line) for line in log.splitlines()])
    assert CANARY.decode() not in log
    assert "the-key" not in log
