"""An engine's KV event publisher as vLLM has it: numbered batches on a PUB socket, the last ones again on a ROUTER."""

import asyncio
from collections import deque
from contextlib import asynccontextmanager

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """Publishes on loopback.

    Attributes:
        endpoint: where it publishes, and where it sends again.
        asked: numbers from which on it was asked to send again.
        is_mute: whoever asks gets no answer.
    """

    def __init__(self, *, topic=b"", buffer=100, has_topic_in_replay=True):
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay_endpoint = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.number = 0
        self.asked: list[int] = []
        self.is_mute = False
        self._topic = topic
        self._has_topic_in_replay = has_topic_in_replay
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)

    async def subscribed(self):
        """Wait until somebody listens."""
        assert (await self._pub.recv())[:1] == b"\x01"

    async def send(self, *events, ts=0.0, loses=False):
        """Publish a batch; one that is lost is only kept for sending again."""
        await self.send_raw(msgspec.msgpack.encode([ts, list(events), 0]), loses=loses)

    async def send_raw(self, payload, *, loses=False):
        """The same with bytes of any kind."""
        number, self.number = self.number, self.number + 1
        self._buffer.append((number, payload))
        if not loses:
            await self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    def send_at_once(self, *events):
        """Publish a batch without letting anybody else run."""
        number, self.number = self.number, self.number + 1
        payload = msgspec.msgpack.encode([0.0, list(events), 0])
        zmq.Socket.shadow(self._pub).send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    async def send_frames(self, *frames):
        """Publish what is no batch at all."""
        await self._pub.send_multipart(list(frames))

    async def serve_replays(self):
        """Send again what is asked for, until cancelled."""
        while True:
            client, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.is_mute:
                continue
            topic = [self._topic] if self._has_topic_in_replay else []
            for number, payload in self._buffer:
                if number >= self.asked[-1]:
                    await self._router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", *topic, END, b""])

    def close(self):
        """Close both sockets."""
        self._context.destroy(linger=0)


@asynccontextmanager
async def publishing(**more):
    """A publisher that sends again what is asked for."""
    publisher = KvPublisher(**more)
    replays = asyncio.get_running_loop().create_task(publisher.serve_replays())
    try:
        yield publisher
    finally:
        replays.cancel()
        await asyncio.gather(replays, return_exceptions=True)
        publisher.close()
