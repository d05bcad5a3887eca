import json

import pytest

from proxy.dialects.attribution import without_attribution
from proxy.dialects.prompts import facts_of

LINE = "x-anthropic-billing-header: cc_version=2.1.200.0d9; cch=%s;"
HI = {"role": "user", "content": "hi"}
USER_QUOTES = {"role": "user", "content": [{"type": "text", "text": LINE % "99999"}]}


def block(text, **more):
    """A text block."""
    return {"type": "text", "text": text, **more}


MARKED = {"cache_control": {"type": "ephemeral"}}
SYSTEM = block("You are.", **MARKED)
PLACES = {
    "first block": lambda line: {"system": [block(line), SYSTEM], "messages": [HI]},
    "marked block": lambda line: {"system": [block(line, **MARKED), SYSTEM], "messages": [HI]},
    "last block": lambda line: {"messages": [HI], "system": [SYSTEM, block(line)]},
    "only block": lambda line: {"system": [block(line)], "messages": [HI]},
    "block in another order": lambda line: {"system": [{"text": line, "type": "text"}, SYSTEM], "messages": [HI]},
    "block with more": lambda line: {"system": [block(f'{line}\nBe.\u00e9\\"')], "messages": [HI]},
    "string": lambda line: {"system": f"{line}\nYou are.", "messages": [HI]},
    "system message": lambda line: {"messages": [{"role": "system", "content": f"{line}\nYou are."}, HI]},
    "block of a system message": lambda line: {"messages": [{"role": "system", "content": [block(line), SYSTEM]}, HI]},
    "instructions": lambda line: {"instructions": f"{line}\nYou are.", "input": "hi"},
    "beside a quotation": lambda line: {"system": [block(line), SYSTEM], "messages": [USER_QUOTES]},
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_l01_bodies_that_differ_in_the_line_alone_are_the_same_bytes(place, indent):
    """Wherever it stands and however it is written; the prompt is still the same to us."""
    fields = [place(LINE % cch) for cch in ("a1b2c", "0ffee")]
    one, two = (without_attribution(json.dumps(each, indent=indent).encode(), each) for each in fields)

    assert one == two
    assert b"a1b2c" not in one
    assert facts_of(json.loads(one)).chain[-1:] != ()
    assert json.loads(one).keys() == fields[0].keys()


def test_l01_no_other_byte_is_changed():
    """Spaces, escapes and order stay as they came."""
    body = b'{"messages":[{"role":"user","content":"\\u00e9"}], "system" : [ {"type":"text","text":"%b"}, {"a":1} ] }'
    fields = json.loads(body % (LINE % "a1b2c").encode())

    assert without_attribution(body % (LINE % "a1b2c").encode(), fields) == (
        b'{"messages":[{"role":"user","content":"\\u00e9"}], "system" : [  {"a":1} ] }'
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "You are.", "messages": [USER_QUOTES]},
        {"system": "About x-anthropic-billing-header: cch=1", "messages": [HI]},
        {"messages": [HI, {"role": "system", "content": LINE}]},
        {"input": [1, 2]},
        {"prompt": LINE},
        {},
    ],
)
def test_l01_what_is_no_attribution_passes_untouched(fields):
    """Whoever quotes it, or mentions it, means it."""
    body = json.dumps(fields).encode()

    assert without_attribution(body, fields) is body
