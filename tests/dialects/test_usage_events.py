from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.usage_events import UsageFilter

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0"
CONTENT = b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}\n\n'
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def through(pieces):
    """A stream as its client gets it."""
    usage = UsageFilter()
    return b"".join([usage.feed(piece) for piece in pieces] + [usage.flush()])


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_l46_of_a_real_stream_only_the_event_of_usage_is_taken_out(name):
    """vLLM 0.32's own bytes, read by read."""
    stream = (FIXTURES / f"{name}-stream-usage.sse").read_bytes()
    events = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
    without = b"".join(event for event in events if b'"choices":[]' not in event)

    assert through(events) == through([stream]) == without
    assert len(without) < len(stream)


@given(st.lists(st.integers(1, 40), max_size=60))
def test_l46_however_the_stream_is_cut(sizes):
    """Reads need not end where events do."""
    stream = CONTENT + LAST + USAGE + DONE
    pieces, at = [], 0
    for size in sizes:
        pieces.append(stream[at : at + size])
        at += size

    assert through([*pieces, stream[at:]]) == CONTENT + LAST + DONE


@pytest.mark.parametrize(
    "stream",
    [
        LAST,
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'event: x\ndata: {"choices":[],"usage":{}}\n\n',
        b'data: {"choices":[],"usage":{}\n\n',
        b'data: {"choices":[],"usage":{"prompt_to',
        b": usage\n\n",
    ],
)
def test_everything_else_passes(stream):
    """Pieces of an answer, events of other kinds, and what is not whole at the end."""
    assert through([stream]) == stream


def test_line_ends_of_every_kind():
    """Event streams may have any of three."""
    for end in (b"\r\n\r\n", b"\r\r"):
        stream = [event.replace(b"\n\n", end) for event in (CONTENT, USAGE, DONE)]
        assert through(stream) == stream[0] + stream[2]


def test_a_long_event_is_not_kept_back():
    """Only what could still be an event of usage waits."""
    usage = UsageFilter()
    begun = b'data: {"choices":[{"logprobs":"' + b"x" * 20_000

    assert usage.feed(begun) == begun
    assert usage.feed(b'"}]}\n\n') == b'"}]}\n\n'
    assert usage.feed(USAGE) == b""
