"""Reading requests never fails in any other way than a refusal."""

import json
import string
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.sim.asks import Limits, read_chat, read_completion, read_count, read_messages, read_tokenize
from proxy.sim.checks import read_json
from proxy.sim.faults import Fault

LIMITS = Limits(("tiny",), 1_000, 10)
NAMES = ["messages", "role", "content", "prompt", "max_tokens", "stream", "text", "type", "tools", "system", "echo"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5_000) | st.sampled_from(["user", "tiny", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6))
def test_any_body_is_read_or_refused(body):
    """Whatever the body holds, it is a prompt that fits, a refusal, or an error that the face turns into one."""
    for read in (read_chat, read_completion, read_messages, read_count, read_tokenize):
        try:
            ask = read(body, LIMITS)
        except (Fault, AttributeError, KeyError, TypeError, ValueError):
            continue
        assert 1 <= ask.max_tokens <= 1_000
        assert len(ask.encoded) % 4 == 0


@given(raw=st.binary(max_size=40) | st.text(string.printable, max_size=40).map(str.encode))
def test_any_bytes_are_an_object_or_refused(raw):
    """A body that is no JSON object is refused."""
    with suppress(Fault):
        assert isinstance(read_json(raw, "application/json; charset=utf-8"), dict)


def test_python_reads_what_is_nearly_json():
    """What Python's reader accepts beyond the standard is accepted, as by vLLM."""
    assert read_json(b'{"temperature": NaN}', "application/json")
    assert read_json(json.dumps({"a": 1}).encode("utf-16"), "application/json") == {"a": 1}


def test_context_is_shared_between_prompt_and_answer():
    """What may be generated is what the prompt leaves."""
    body = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 990}
    ask = read_chat(body, LIMITS)
    assert ask.max_tokens + len(ask.encoded) // 4 == 1_000
    assert read_chat(body | {"max_tokens": None}, LIMITS).max_tokens == ask.max_tokens
    assert read_chat(body | {"max_completion_tokens": 7}, LIMITS).max_tokens == 7


def test_completions_have_a_short_default():
    """Without a cap a completion has 16 tokens."""
    assert read_completion({"prompt": "x"}, LIMITS).max_tokens == 16
    assert read_completion({"prompt": [[1, 2, 3]]}, LIMITS).encoded == bytes([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3])
