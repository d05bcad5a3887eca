import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from itertools import count

import pytest

pytest.importorskip("zmq", reason="the extra kv-events is not installed")

from proxy.engines.kv_events import AllCleared, BlocksStored
from proxy.net import kv_events
from proxy.net.kv_events import KvEventListener, KvEventSettings
from tests.fakes.backend import answering, json_answer
from tests.fakes.kv_publisher import KvPublisher, publishing
from tests.net.test_admission import Client, Engine, admitting, asking, waiting

CLEARED = {"type": "AllBlocksCleared"}


def stored(*blocks):
    """An event that tells of blocks of 16 tokens."""
    return {"type": "BlockStored", "block_hashes": list(blocks), "token_ids": [1, 2], "block_size": 16}


def removed(*blocks):
    """An event that tells of blocks that were given away."""
    return {"type": "BlockRemoved", "block_hashes": list(blocks)}


class Heard:
    """What a listener told."""

    def __init__(self):
        self.batches = []
        self.gaps = []
        self.unread = []

    @property
    def blocks(self):
        """Hashes of stored blocks, in the order they were heard of."""
        return [block for batch in self.batches for event in batch.events for block in event.block_hashes]

    @asynccontextmanager
    async def listening(self, publisher, *, replays=True, topic=""):
        """Listen to a publisher."""
        listener = KvEventListener(
            KvEventSettings("a", publisher.endpoint, publisher.replay_endpoint if replays else None, topic),
            on_batch=lambda _, batch: self.batches.append(batch),
            on_gap=lambda _, is_filled: self.gaps.append(is_filled),
            on_malformed=self.unread.append,
            clock=time.monotonic,
        )
        run = asyncio.get_running_loop().create_task(listener.run())
        try:
            await publisher.subscribed()
            yield
        finally:
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

    async def until(self, what):
        """Wait until a condition holds."""
        async with asyncio.timeout(5):
            while not what():  # noqa: ASYNC110 - the condition is somebody else's state
                await asyncio.sleep(0.005)


async def test_batches_come_in_order():
    """From the first on, whatever its number."""
    heard = Heard()
    async with publishing() as publisher, heard.listening(publisher):
        publisher.number = 17
        for block in range(50):
            await publisher.send(stored(block), ts=float(block))
        await publisher.send(CLEARED)
        await heard.until(lambda: len(heard.batches) == 51)

    assert [batch.ts for batch in heard.batches[:50]] == [float(block) for block in range(50)]
    assert heard.batches[0].events == [BlocksStored([0], 16)]
    assert heard.batches[-1].events == [AllCleared()]
    assert heard.gaps == []


@pytest.mark.parametrize("has_topic_in_replay", [True, False])
async def test_what_was_missed_is_asked_for_and_comes_in_its_place(has_topic_in_replay):
    """Older engines leave the topic out when they send again."""
    heard = Heard()
    async with publishing(has_topic_in_replay=has_topic_in_replay) as publisher, heard.listening(publisher):
        await publisher.send(stored(0))
        for block in (1, 2, 3):
            await publisher.send(stored(block), loses=True)
        await publisher.send(stored(4))
        await publisher.send(stored(5))
        await heard.until(lambda: len(heard.batches) == 6)

    assert heard.blocks == [0, 1, 2, 3, 4, 5]
    assert heard.gaps == [True]
    assert publisher.asked == [1]


async def test_what_the_engine_does_not_have_any_more_is_lost_and_it_goes_on():
    """It keeps so many batches and no more."""
    heard = Heard()
    async with publishing(buffer=2) as publisher, heard.listening(publisher):
        await publisher.send(stored(0))
        for block in (1, 2, 3):
            await publisher.send(stored(block), loses=True)
        await publisher.send(stored(4))
        await publisher.send(stored(5))
        await heard.until(lambda: len(heard.batches) == 3)

    assert heard.blocks == [0, 4, 5]
    assert heard.gaps == [False]


async def test_without_a_replay_address_what_was_missed_is_lost():
    """It is said, and goes on."""
    heard = Heard()
    async with publishing() as publisher, heard.listening(publisher, replays=False):
        await publisher.send(stored(0))
        await publisher.send(stored(1), loses=True)
        await publisher.send(stored(2))
        await heard.until(lambda: len(heard.batches) == 2)

    assert heard.blocks == [0, 2]
    assert heard.gaps == [False]
    assert publisher.asked == []


async def test_an_engine_that_does_not_answer_is_not_waited_for(monkeypatch):
    """After a while what was missed counts as lost."""
    monkeypatch.setattr(kv_events, "_REPLAY_S", 0.05)
    heard = Heard()
    async with publishing() as publisher, heard.listening(publisher):
        publisher.is_mute = True
        await publisher.send(stored(0))
        await publisher.send(stored(1), loses=True)
        await publisher.send(stored(2))
        await heard.until(lambda: len(heard.batches) == 2)

    assert heard.blocks == [0, 2]
    assert heard.gaps == [False]
    assert publisher.asked == [1]


async def test_an_engine_that_begins_anew_is_noticed():
    """It counts from 0 again."""
    heard = Heard()
    async with publishing() as publisher, heard.listening(publisher):
        publisher.number = 7
        await publisher.send(stored(0))
        publisher.number = 0
        await publisher.send(stored(1))
        await publisher.send(stored(2))
        await heard.until(lambda: len(heard.batches) == 3)

    assert heard.gaps == [False]
    assert heard.blocks == [0, 1, 2]


async def test_what_cannot_be_read_is_left_out():
    """A payload that is no batch, and frames that are no message."""
    heard = Heard()
    async with publishing() as publisher, heard.listening(publisher):
        await publisher.send_raw(b"\xc1 no msgpack")
        await publisher.send_frames(b"", b"short", b"")
        await publisher.send_frames(b"one frame")
        await publisher.send(stored(1))
        await heard.until(lambda: heard.batches)

    assert heard.unread == ["a", "a", "a"]
    assert heard.blocks == [1]
    assert heard.gaps == []


async def test_only_the_topic_is_listened_to():
    """Others may publish at the same place."""
    heard = Heard()
    async with publishing(topic=b"kv") as publisher, heard.listening(publisher, topic="kv"):
        await publisher.send_frames(b"else", (9).to_bytes(8, "big"), b"")
        await publisher.send(stored(1))
        await heard.until(lambda: heard.batches)

    assert (heard.unread, heard.gaps) == ([], [])


async def test_many_messages_leave_the_loop_to_others():
    """A backlog is worked off in pieces of two milliseconds; here each look at the clock takes half of one."""
    turns, at_turn = 0, []
    clock = iter(number * 0.0005 for number in count())
    async with publishing() as publisher:
        listener = KvEventListener(
            KvEventSettings("a", publisher.endpoint),
            on_batch=lambda *_: at_turn.append(turns),
            on_gap=print,
            on_malformed=print,
            clock=lambda: next(clock),
        )
        run = asyncio.get_running_loop().create_task(listener.run())
        await publisher.subscribed()
        for block in range(200):
            publisher.send_at_once(stored(block))
        async with asyncio.timeout(5):
            while len(at_turn) < 200:
                turns += 1
                await asyncio.sleep(0)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    assert max(Counter(at_turn).values()) <= 4


async def test_nobody_there_is_waited_for():
    """An engine that is not up yet, and a name that does not exist, stop nothing."""
    publisher = KvPublisher()
    publisher.close()
    for endpoint in (publisher.endpoint, "tcp://no-such-host.invalid:5557"):
        listener = KvEventListener(
            KvEventSettings("a", endpoint), on_batch=print, on_gap=print, on_malformed=print, clock=time.monotonic
        )
        run = asyncio.get_running_loop().create_task(listener.run())
        done, _ = await asyncio.wait([run], timeout=0.1)
        assert not done
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


LARGE = json_answer(
    b'{"choices":[{"finish_reason":"tool_calls","message":{}}],"usage":{"prompt_tokens":40000,"completion_tokens":1}}'
)


async def test_a_cleared_cache_makes_room_for_who_waits():
    """End to end: residents fill the engine, a newcomer waits, the cache is cleared, the newcomer goes in."""
    async with publishing() as publisher:
        settings = {"kv_events": {"endpoint": publisher.endpoint}}
        async with admitting(answering(LARGE), settings=settings) as gate:
            await publisher.subscribed()
            for session in ("a", "b"):
                await gate.raw(asking(session, stream=False))
            newcomer = Client(gate, asking("c", stream=False))
            await gate.until(lambda: waiting(gate) == 1)
            room = gate.proxy.waiting_room.gate.rooms["b0"]
            reported_at = room.report_at
            await gate.until(lambda: room.report_at != reported_at)
            reported_at = room.report_at
            await publisher.send(CLEARED)
            await newcomer.answer

            assert room.report_at == reported_at, "the next report would have let it in too"
            assert gate.metric("tidegate_kv_corrections_total", backend="b0", reason="cleared") == 2
            assert gate.metric("tidegate_kv_events_total", backend="b0", event="cleared") == 1
            await gate.until(lambda: "backend.cache_cleared" in gate.log.getvalue())


async def test_missed_events_are_counted_and_told():
    """So is a message that cannot be read."""
    async with publishing() as publisher:
        settings = {"kv_events": {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}}
        async with admitting(Engine(), settings=settings) as gate:
            await publisher.subscribed()
            await publisher.send(stored(0))
            await publisher.send(stored(1), loses=True)
            await publisher.send(stored(2))
            publisher.number = 0
            await publisher.send_raw(b"")
            await gate.until(lambda: gate.metric("tidegate_kv_events_total", backend="b0", event="malformed"))

            assert gate.metric("tidegate_kv_events_total", backend="b0", event="stored") == 3
            assert gate.metric("tidegate_kv_event_gaps_total", backend="b0", outcome="replayed") == 1
            assert gate.metric("tidegate_kv_event_gaps_total", backend="b0", outcome="lost") == 1
            await gate.until(lambda: "backend.kv_events_missed" in gate.log.getvalue())
