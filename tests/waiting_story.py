"""A waiting room on a stage, in the loop's own time, and what becomes of those that wait in it."""

import asyncio

import pytest

from proxy.core.capacity import KvCapacity
from proxy.core.errors import Refusal
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.requests import RequestView, Route, StreamEnd
from proxy.core.turns import SessionKey, StopReason, Turn, TurnEnd
from proxy.gate import Gate, GateSettings
from proxy.waiting_room import WaitingRoom
from tests.fakes.recorder import FakeRecorder

CHAT = Route("chat_completions", stream_end=StreamEnd.DONE, generates=True)
RESPONSES = Route("responses", stream_end=StreamEnd.RESPONSE_COMPLETED, generates=True)


GRACE_S = 6.0


class Story:
    """A waiting room before engines of a hundred blocks of a thousand tokens, in the loop's own time."""

    def __init__(self, *names, **settings):
        self.names = names or ("a",)
        self.down: set[str] = set()
        self.gate = Gate(self.names, GateSettings(**settings))
        self.clock = asyncio.get_running_loop().time
        self.room = WaitingRoom(
            self.gate,
            clock=self.clock,
            is_up=lambda name: name not in self.down,
            spread=lambda: 0.5,
            down_grace_s=GRACE_S,
        )
        for name in self.names:
            self.gate.see_capacity(name, KvCapacity(total_blocks=100, block_tokens=1_000), 10**6)
            self.gate.see_report(name, 0.0, usage_ratio=None, preemptions=0, is_short_of_memory=False)

    def turn(self, session, blocks, **more):
        """A turn of so many blocks."""
        key = SessionKey("", session)
        return Turn(key, text_bytes=int(blocks * 4_000), chain=(hash(key),), **more)

    async def admit(self, session, blocks, *, route=CHAT, exchange=None, body=b"", candidates=None, **more):
        """Wait for room."""
        turn = self.turn(session, blocks, **more)
        exchange = exchange or Exchange(request_id="r", recorder=FakeRecorder(), clock=self.clock)
        view = RequestView("r", route, "POST", "/", (), body, self.clock(), turn=turn)
        return await self.room.admit(view, turn, lambda: self.open(candidates or self.names), exchange)

    def open(self, names):
        """Those that are up, as dispatch looks them up."""
        if up := [name for name in names if name not in self.down]:
            return up
        raise Refusal(Outcome.REFUSED_NO_BACKEND, 503, "None is up.", retry_after_s=2)

    def turns(self, *, up=(), down=()):
        """Backends go up or down."""
        self.down = (self.down | set(down)) - set(up)
        for name in down:
            self.gate.see_restart(name, self.clock())
        self.room.follow_health()

    def waits(self, session, blocks, **more):
        """A task that waits for room."""
        return asyncio.get_running_loop().create_task(self.admit(session, blocks, **more))

    def end(self, placement, *, stop=StopReason.END_TURN):
        """A turn ends well."""
        tokens = placement.waiting.prompt_tokens
        self.room.end(placement, TurnEnd(tokens, None, 100, stop, True, True))

    def is_empty(self):
        """Whether nothing waits, nothing runs and nothing is booked for what runs."""
        rooms = self.gate.rooms.values()
        return (
            len(self.gate.queue) == 0
            and not any(room.inflight for room in rooms)
            and not any(room.ledger.holds or room.ledger.pinned_blocks for room in rooms)
        )


async def settle():
    """Let whatever is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def refusal_of(task):
    """The refusal that a wait ends with."""
    with pytest.raises(Refusal) as refused:
        await task
    return refused.value
