from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.requests import Usage
from proxy.dialects import routes
from proxy.dialects.answer_reader import AnswerReader

CHAT, _ = routes.match("POST", "/v1/chat/completions")
MESSAGES, _ = routes.match("POST", "/v1/messages")
RESPONSES, _ = routes.match("POST", "/v1/responses")

CHAT_STREAM = (
    b'data: {"id":"c","choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"id":"c","choices":[{"delta":{"content":"said \\"usage\\":{\\"prompt_tokens\\":9} ok"}}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":120,"total_tokens":125,"completion_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":96}}}\n\n'
    b"data: [DONE]\n\n"
)
MESSAGES_STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":120,'
    b'"output_tokens":0}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"event: message_stop"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":24,"output_tokens":5,'
    b'"cache_read_input_tokens":96}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
RESPONSES_STREAM = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_77","usage":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_77","usage":'
    b'{"input_tokens":120,"input_tokens_details":{"cached_tokens":96},"output_tokens":5}}}\n\n'
)
WANTED = Usage(prompt_tokens=120, cached_tokens=96, completion_tokens=5)


def read(route, pieces, *, is_event_stream=True):
    """A reader that has seen the pieces, one a second."""
    reader = AnswerReader(route, is_event_stream=is_event_stream)
    for at, piece in enumerate(pieces):
        reader.feed(piece, float(at))
    return reader


@pytest.mark.parametrize(
    ("route", "stream"), [(CHAT, CHAT_STREAM), (MESSAGES, MESSAGES_STREAM), (RESPONSES, RESPONSES_STREAM)]
)
@given(data=st.data())
def test_usage_and_end_are_read_however_the_stream_is_cut(route, stream, data):
    """L46: three layouts, one meaning, at any packet boundaries; the model's text fakes neither usage nor end."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    bounds = [0, *cuts, len(stream)]
    reader = read(route, [stream[a:b] for a, b in pairwise(bounds)])

    assert WANTED == reader.usage()
    assert reader.has_ended
    assert not reader.has_error_event


@pytest.mark.parametrize(
    ("route", "stream"), [(CHAT, CHAT_STREAM), (MESSAGES, MESSAGES_STREAM), (RESPONSES, RESPONSES_STREAM)]
)
def test_a_stream_without_its_last_event_has_not_ended(route, stream):
    """Row 81: what ends early is told from what ended."""
    cut = stream.rstrip(b"\n").rindex(b"\n\n") + 2

    assert not read(route, [stream[:cut]]).has_ended


def test_what_was_not_reported_is_unknown_and_not_zero():
    """L46: absent counts stay None."""
    reader = read(CHAT, [b'{"usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":null}}'],
                  is_event_stream=False)  # fmt: skip

    assert Usage(prompt_tokens=3, cached_tokens=None, completion_tokens=1) == reader.usage()
    assert read(CHAT, [b'{"choices":[]}'], is_event_stream=False).usage() == Usage()


def test_a_cold_prompt_on_messages_counts_its_newly_cached_part():
    """vLLM 0.32 says how much was put into the cache and leaves the zero read out: that is a known zero."""
    usage = b'{"usage":{"input_tokens":32,"output_tokens":5,"cache_creation_input_tokens":11136}}'

    assert Usage(11168, 0, 5) == read(MESSAGES, [usage], is_event_stream=False).usage()


def test_usage_is_found_at_the_end_of_a_long_answer_and_little_is_kept():
    """A megabyte passes; two windows of a few kilobytes stay."""
    pieces = [b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % (b"x" * 200)] * 5_000
    reader = read(CHAT, [*pieces, CHAT_STREAM])

    assert WANTED == reader.usage()
    assert len(reader._tail) < 10_000
    assert reader.body_bytes == sum(map(len, pieces)) + len(CHAT_STREAM)


def test_the_first_token_is_not_the_announcement():
    """`message_start` may come before prefill; the first content block cannot."""
    start, rest = MESSAGES_STREAM.split(b"event: content_block_start", 1)
    reader = read(MESSAGES, [start, b"event: content_block_start" + rest])

    assert reader.first_token_at == 1.0


def test_gaps_between_token_events_are_counted():
    """Three events a second apart are two gaps of one second."""
    reader = read(CHAT, [b"data: {}\n\n"] * 3)

    assert (2, 2.0) == (sum(reader.gaps.counts), reader.gaps.sum_s)


@pytest.mark.parametrize(("route", "event"), [
    (CHAT, b"data: {}\n\n"),
    (MESSAGES, b"event: content_block_delta\ndata: {}\n\n"),
    (MESSAGES, b"event: content_block_delta\r\ndata: {}\r\n\r\n"),
])  # fmt: skip
def test_events_are_counted_wherever_they_are_cut(route, event):
    """About one a token: what a running answer is booked at grows with them."""
    pieces = [event[:7], event[7:] + event, event * 2]

    assert 4 == read(route, [event, *pieces]).token_events - 1


def test_whole_chunks_that_went_the_short_way_count_as_an_event_each():
    """Their framing is none of the answer."""
    reader = read(CHAT, [b"data: {}\n\n"])
    for size in (1, 15, 16, 255, 256, 2_048):
        reader.chunks.append(b"%x\r\n%b\r\n" % (size, b"x" * size))
        reader.times.append(2.0)
    reader.look()

    assert reader.token_events == 1 + 6
    assert reader.body_bytes == len(b"data: {}\n\n") + 1 + 15 + 16 + 255 + 256 + 2_048


def test_an_error_event_is_seen():
    """Row 82: a stream that reports an error did not go well, whatever its status was."""
    assert read(CHAT, [b'data: {"error":{"message":"engine died"}}\n\n']).has_error_event
    assert not read(CHAT, [b'data: {"choices":[{"delta":{"content":"\\ndata: {\\"error\\""}}]}\n\n']).has_error_event


def test_an_event_boundary_is_where_another_event_may_stand():
    """Nothing may be put inside an event that is split across reads."""
    assert read(CHAT, [b"data: {}\n\n"]).is_at_event_boundary
    assert not read(CHAT, [b'data: {"id":']).is_at_event_boundary
    assert not read(CHAT, [b"{}\n\n"], is_event_stream=False).is_at_event_boundary


def test_the_stored_response_is_named():
    """L62: the id by which a follow-up finds its backend."""
    assert read(RESPONSES, [RESPONSES_STREAM]).response_id() == "resp_77"
    assert read(CHAT, [CHAT_STREAM]).response_id() is None


def anthropic_stream(start, end):
    """A stream whose first and last event carry these usages."""
    return (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":%b}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","usage":%b}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n' % (start, end)
    )


@pytest.mark.parametrize(
    ("start", "end", "cached"),
    [
        (b'{"input_tokens":120}', b'{"input_tokens":24,"output_tokens":5,"cache_read_input_tokens":96}', 96),
        (b'{"input_tokens":120}', b'{"input_tokens":120,"output_tokens":5,"cache_read_input_tokens":96}', 96),
        (
            b'{"input_tokens":24,"cache_read_input_tokens":96,"output_tokens":1}',
            b'{"input_tokens":24,"output_tokens":5,"cache_read_input_tokens":96}',
            96,
        ),
        (b'{"input_tokens":24,"cache_read_input_tokens":96,"output_tokens":1}', b'{"output_tokens":5}', 96),
        (
            b'{"input_tokens":4,"cache_read_input_tokens":96,"cache_creation_input_tokens":20}',
            b'{"output_tokens":5}',
            96,
        ),
        (b'{"input_tokens":120}', b'{"output_tokens":5}', None),
        (b'{"input_tokens":120}', b'{"input_tokens":120,"output_tokens":5}', None),
        (b'{"input_tokens":120}', b'{"input_tokens":120,"output_tokens":5,"cache_read_input_tokens":0}', 0),
    ],
    ids=[
        "vLLM 0.32: cached ones taken off at the end",
        "the input holds the cached ones too",
        "all at the start and again at the end",
        "Anthropic: all at the start",
        "with a part that was written",
        "before there were cache fields",
        "without --enable-prompt-tokens-details",
        "nothing was cached",
    ],
)
def test_l46_each_layout_of_anthropics_usage(start, end, cached):
    """The prompt is 120 tokens each time; what is not said stays unknown and is no zero."""
    reader = read(MESSAGES, [anthropic_stream(start, end)])

    assert reader.usage() == Usage(prompt_tokens=120, cached_tokens=cached, completion_tokens=5)
