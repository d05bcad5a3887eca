"""A gate on a stage: time by hand, sessions by name, sizes in blocks of a thousand tokens."""

from collections import Counter

from proxy.core.capacity import KvCapacity
from proxy.core.turns import SessionKey, StopReason, Turn, TurnEnd
from proxy.gate import Gate, GateSettings, Placement
from proxy.state.wait_queue import Waiting

BLOCK = 1_000
BYTES_PER_TOKEN = 4
WIDE = 10**6
"""Tokens in a batch with which the prefill gate never shuts."""


class Stage:
    """A gate and everything that happens to it.

    Attributes:
        placed: placements by the id of what waited, as the pumps gave them out.
    """

    def __init__(self, *names, blocks=100, batch=WIDE, alpha=1.0, beta=0.0, **settings):
        self.names = names or ("a",)
        self.gate = Gate(self.names, GateSettings(**settings))
        self.now = 1_000.0
        self.placed: dict[int, Placement] = {}
        self.starts: Counter[int] = Counter()
        self._messages: Counter[SessionKey] = Counter()
        if blocks:
            for name in self.names:
                self.size(name, blocks, alpha=alpha, beta=beta, batch=batch)

    def size(self, name, blocks, *, alpha=1.0, beta=0.0, batch=WIDE):
        """A backend says how large it is, and that it is well."""
        capacity = KvCapacity(total_blocks=blocks, block_tokens=BLOCK, alpha=alpha, beta_blocks=beta)
        self.gate.see_capacity(name, capacity, batch)
        self.report(name)

    def report(self, name="a", *, usage=None, preemptions=0, is_short=False):
        """A backend reports."""
        self.gate.see_report(name, self.now, usage_ratio=usage, preemptions=preemptions, is_short_of_memory=is_short)

    def wait(self, seconds, *, reports=True):
        """Time passes; the backends go on reporting meanwhile."""
        self.now += seconds
        if reports:
            for name in self.names:
                self.report(name)

    def turn(self, session, blocks, *, agent="", credential="", head=0, head_blocks=0.0, extends=True, **more):
        """A session's next turn of so many blocks."""
        key = SessionKey(credential, session, agent)
        self._messages[key] += 2
        epoch = 0 if extends else self._messages[key]
        size = int(blocks * BLOCK * BYTES_PER_TOKEN)
        return Turn(
            key,
            text_bytes=size,
            head_bytes=int(head_blocks * BLOCK * BYTES_PER_TOKEN),
            head=head,
            chain=more.pop("chain", tuple(hash((key, epoch, at)) for at in range(self._messages[key]))),
            **more,
        )

    def arrive(self, session, blocks, *, candidates=None, **more) -> Waiting:
        """A request is here; nothing starts yet."""
        turn = self.turn(session, blocks, **more)
        return self.gate.arrive(turn, candidates or self.names, self.now, model="m", patience_s=turn.patience_s)

    def pump(self, *only):
        """Start who may start; the names of their sessions, in order."""
        started = self.gate.pump(self.now, only or None)
        for placement in started:
            self.placed[placement.waiting.id] = placement
            self.starts[placement.waiting.id] += 1
        return [placement.waiting.turn.session.session for placement in started]

    def ask(self, session, blocks, **more):
        """A request is here, and whoever may start does: its placement, if it does."""
        waiting = self.arrive(session, blocks, **more)
        self.pump()
        return self.placed.get(waiting.id)

    def enter(self, session, blocks, **more):
        """A request that has to start at once, and whose first token comes at once."""
        placement = self.ask(session, blocks, **more)
        assert placement is not None, f"{session} waits: {self.room()!r}"
        self.gate.first_token(placement, self.now)
        return placement

    def finish(self, placement, *, cached=None, completion=100, stop=StopReason.TOOL_USE):
        """A turn ends well; the engine counted what we had estimated."""
        end = TurnEnd(placement.waiting.prompt_tokens, cached, completion, stop, True, True)
        self.gate.end(placement, end, self.now)

    def abort(self, placement):
        """A turn ends badly; what was seen of it is what the gate was told."""
        self.gate.end(placement, TurnEnd(has_first_token=placement.has_first_token), self.now)

    def rest(self, session, blocks, **more):
        """A whole turn: it starts, ends after a tool call, and its session is away."""
        stop = more.pop("stop", StopReason.TOOL_USE)
        self.finish(self.enter(session, blocks, **more), stop=stop)

    def room(self, name="a"):
        """A backend's room."""
        return self.gate.rooms[name]

    def ledger(self, name="a"):
        """A backend's ledger."""
        return self.gate.rooms[name].ledger

    def used(self, name="a"):
        """Blocks that are counted as used."""
        return self.ledger(name).used_blocks

    def session(self, name, *, agent="", credential=""):
        """A session, if it is known."""
        return self.gate.sessions.get(SessionKey(credential, name, agent))
