import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.body_fields import with_member, with_value


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b'{"model":"a"}', b'{"model":"b"}'),
        (b'{ "x" : 1.0, "model" :\n "a" , "y":[ ] }', b'{ "x" : 1.0, "model" :\n "b" , "y":[ ] }'),
        (b'{"messages":[{"content":"say \\"model\\":\\"a\\""}],"model":"a"}', None),
        (b'{"t":[{"model":"a"}],"model":"a","z":["model"]}', b'{"t":[{"model":"a"}],"model":"b","z":["model"]}'),
        (b'{"model":"a","input":{"model":"a"}}', b'{"model":"b","input":{"model":"a"}}'),
        (b'{"tools":{"model":{"type":"string"}},"model":"a"}', b'{"tools":{"model":{"type":"string"}},"model":"b"}'),
        (b'{"model":"\\u0061"}', b'{"model":"b"}'),
        (b'{"model":"x","model":"a"}', b'{"model":"x","model":"b"}'),
    ],
)  # fmt: skip
def test_l44_one_value_changes_and_no_other_byte(body, after):
    """Whatever stands around it, and whatever stands deeper under the same name."""
    expected = after if after is not None else body[: -len(b'"a"}')] + b'"b"}'

    assert with_value(body, "model", "a", "b") == expected


def test_numbers_too():
    """A limit, with a space before it."""
    assert with_value(b'{"max_tokens": 32000,"m":32000}', "max_tokens", 32_000, 5) == b'{"max_tokens": 5,"m":32000}'


def test_a_name_written_with_escapes_is_left_alone():
    """Nobody writes it so; it is not guessed at."""
    assert with_value(b'{"mod\\u0065l":"a"}', "model", "a", "b") is None


def test_a_member_is_put_first():
    """What the client wrote stays behind it, byte for byte."""
    assert with_member(b' \n{ "a":1}', b'"s":{}') == b' \n{"s":{}, "a":1}'


VALUES = st.recursive(
    st.none() | st.integers(-99, 99) | st.text(max_size=6) | st.just("old") | st.just('"model":"old"'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "x", '"model"', "\\"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "\\"]), VALUES, max_size=4), st.sampled_from([None, 1]))
def test_l44_only_the_outermost_field_changes(others, indent):
    """Whatever the rest of the body is."""
    document = {**others, "model": "old"}
    body = json.dumps(document, indent=indent).encode()
    changed = with_value(body, "model", "old", "new é")

    assert changed is not None
    assert orjson.loads(changed) == {**document, "model": "new é"}
