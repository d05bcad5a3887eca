from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines.kv_events import (
    AllCleared,
    BlocksRemoved,
    BlocksStored,
    MalformedEventsError,
    is_on_gpu,
    parse_events,
)

pack = msgspec.msgpack.encode
STORED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 7],
    "parent_block_hash": None,
    "token_ids": list(range(32)),
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "session_id": "s",
}


def test_a_batch_of_vllm_today_is_read():
    """0.32: events are maps; what is not needed is skipped."""
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}
    batch = parse_events(pack([12.5, [STORED, removed, {"type": "AllBlocksCleared"}], 0]))

    assert batch.ts == 12.5
    assert batch.events == [BlocksStored([2**64 - 1, 7], 16, "GPU", 0), BlocksRemoved([7], "GPU", 0), AllCleared()]


def test_a_batch_of_an_older_vllm_is_read():
    """Events were arrays of the same fields, with fewer at the end; hashes may be bytes."""
    events = [["BlockStored", [b"h1"], 5, [1, 2, 3, 4], 4, None], ["BlockRemoved", [b"h1"]], ["AllBlocksCleared"]]
    batch = parse_events(pack([1.0, [*events, ["BlockStored", [9], None, [], 16, None, "CPU", "adapter"]], None]))

    expected = [BlocksStored([b"h1"], 4), BlocksRemoved([b"h1"]), AllCleared(), BlocksStored([9], 16, "CPU")]
    assert batch.events == expected


def test_a_batch_without_a_rank_is_read():
    """An engine leaves out at the end what has its default."""
    assert parse_events(pack([1.0, []])).events == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"{}",
        pack({"ts": 1.0}),
        pack([1.0]),
        pack(["now", []]),
        pack([1.0, [{"type": "SomethingNew"}]]),
        pack([1.0, [{"block_hashes": [1]}]]),
        pack([1.0, [{**STORED, "block_hashes": ["text"]}]]),
        pack([1.0, [{**STORED, "block_size": -0.5}]]),
        pack([1.0, [["BlockStored", [1]]]]),
        pack([1.0, [STORED]])[:-3],
        b"\x91" * 100_000,
    ],
)
def test_what_no_engine_sends_is_refused_as_a_whole(payload):
    """Nothing of it is taken, and nobody falls over it."""
    with pytest.raises(MalformedEventsError):
        parse_events(payload)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(payload):
    """Whatever comes is a batch or is refused."""
    with suppress(MalformedEventsError):
        parse_events(payload)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_a_damaged_batch_does_no_more_than_be_refused(at, noise):
    """The same for what is nearly right."""
    whole = pack([12.5, [STORED], 0])
    at = min(at, len(whole))
    with suppress(MalformedEventsError):
        parse_events(whole[:at] + noise + whole[at + len(noise) :])


def test_only_the_cache_that_is_computed_in_counts():
    """Offloading tiers tell of themselves too."""
    assert is_on_gpu(BlocksRemoved([1], "GPU"))
    assert is_on_gpu(BlocksRemoved([1]))
    assert not is_on_gpu(BlocksStored([1], 16, "CPU"))
