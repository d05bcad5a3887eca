import pytest

from tests.bench.clients import Client, StreamClient, Tally
from tests.bench.fake_backend import ANSWER

_EVENT = b'data: {"choices":[]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _asked(client: Client) -> Client:
    client.is_busy = True
    client.tally.began()
    return client


@pytest.mark.parametrize("size", [1, 3, 7, 11, 1000])
def test_events_are_counted_however_they_are_cut(size):
    """An event whose mark is split between two reads, or between two chunks, counts once."""
    tally = Tally()
    client = _asked(StreamClient(tally, b"", tokens=3))
    events = _EVENT * 5 + b"data: [DONE]\n\n"
    body = b"".join(_chunk(events[at : at + size]) for at in range(0, len(events), size))
    wire = _HEAD + body + b"0\r\n\r\n"
    for at in range(0, len(wire), size):
        client.data_received(wire[at : at + size])

    assert (tally.events, tally.answers, tally.faults) == (5, 1, {})


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (_EVENT * 4 + b"data: [DONE]\n\n", "a stream with 4 of 5 events"),
        (_EVENT * 5, "a stream without its [DONE]"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_fault(events, reason):
    """A proxy that loses an event or the mark of the end is found out although the framing is right."""
    tally = Tally()
    _asked(StreamClient(tally, b"", tokens=3)).data_received(_HEAD + _chunk(events) + b"0\r\n\r\n")

    assert (tally.answers, dict(tally.faults)) == (0, {reason: 1})


def test_a_stream_cut_in_the_middle_is_a_fault():
    """A closed connection does not end a stream."""
    tally = Tally()
    client = _asked(StreamClient(tally, b"", tokens=3))
    client.data_received(_HEAD + _chunk(_EVENT))
    client.connection_lost(None)

    assert dict(tally.faults) == {"connection lost before the answer ended (closed)": 1}
    assert tally.settled.is_set()


@pytest.mark.parametrize(
    ("status", "body", "answers"), [(b"200 OK", ANSWER, 1), (b"200 OK", ANSWER + b" ", 0), (b"503 Busy", b"{}", 0)]
)
def test_an_answer_is_right_only_to_the_last_byte(status, body, answers):
    """Any other status and any other body is a fault."""
    tally = Tally()
    client = _asked(Client(tally, b""))
    client.data_received(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    assert (tally.answers, tally.faults.total()) == (answers, 1 - answers)
