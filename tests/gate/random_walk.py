"""Arrivals, first tokens, ends, aborts, refusals, reports, restarts and new sizes in random order, and then the end.

Used by the test beside it with some thousand steps, and by `make bench-gate` with a million.
"""

import random
from collections.abc import Callable

from proxy.core.capacity import KvCapacity
from proxy.core.turns import SessionKey, StopReason, Turn, TurnEnd
from proxy.gate import Gate, GateSettings, Placement
from proxy.state.wait_queue import Waiting

BACKENDS = ("a", "b", "c")
BLOCK_TOKENS = 16
MAX_WAITING = 64


class RandomWalk:
    """A gate, and what it was told so far.

    Args:
        seed: of everything that happens.
        gate: makes what decides.
    """

    def __init__(self, seed: int, gate: Callable[..., Gate] = Gate) -> None:
        self._rng = random.Random(seed)
        self.gate = gate(BACKENDS, GateSettings(target_wait_s=100.0, max_waiting=MAX_WAITING))
        self.now = 0.0
        self._waiting: dict[int, Waiting] = {}
        self._running: list[Placement] = []
        self.placed = 0
        self.latest: tuple[int, str, str, int] | None = None
        self._resize("a", 1_000)
        self._resize("b", 1_500)  # the third one's size is learned on the way

    def step(self) -> None:
        """One thing happens."""
        rng, gate = self._rng, self.gate
        self.now += rng.expovariate(20.0)
        chance = rng.random()
        if chance < 0.4:
            self._arrive()
        elif chance < 0.5 and self._waiting:
            waiting = self._waiting.pop(rng.choice(list(self._waiting)))
            gate.give_up(waiting, self.now, keeps_ticket=rng.random() < 0.5)
            self._pump(waiting.candidates)
        elif chance < 0.95 and self._running:
            self._go_on(rng.randrange(len(self._running)))
        elif chance < 0.99:
            name = rng.choice(BACKENDS)
            usage = rng.choice([None, 0.3])
            gate.see_report(name, self.now, usage_ratio=usage, preemptions=0, is_short_of_memory=False)
            self._pump((name,))
        elif chance < 0.995:
            gate.see_restart(rng.choice(BACKENDS), self.now)
        elif chance < 0.997:
            self._resize(rng.choice(BACKENDS), rng.choice([1_000, 1_500]))
        else:
            self.now += rng.choice([1.0, 30.0, 400.0])
            self._pump(BACKENDS)

    def drain(self) -> None:
        """Nobody comes any more: who waits gives up, what runs breaks off, the engines lose their caches."""
        for waiting in self._waiting.values():
            self.gate.give_up(waiting, self.now, keeps_ticket=False)
        for placement in self._running:
            self.gate.end(placement, TurnEnd(has_first_token=placement.has_first_token), self.now)
        self._waiting.clear()
        self._running.clear()
        for name in BACKENDS:
            self.gate.see_restart(name, self.now)

    def remainders(self) -> dict[str, float]:
        """Whatever is not zero after the drain, by name."""
        gate = self.gate
        left: dict[str, float] = {
            "waiting": len(gate.queue),
            "bodies": gate.queue.body_bytes,
            "keys": len(gate.queue.keys),
        }
        for name, room in gate.rooms.items():
            ledger = room.ledger
            idle = ledger.idle
            left[f"{name} holds"] = len(ledger.holds)
            left[f"{name} pinned"] = ledger.pinned_blocks
            left[f"{name} heads"] = ledger.head_blocks + ledger.pinned_head_blocks() + ledger.largest_head_blocks
            left[f"{name} idle"] = len(idle) + idle.blocks + idle.over_blocks + ledger.over_blocks(None, 1.0)
            left[f"{name} residents"] = ledger.resident_sessions + idle.over_residents
            left[f"{name} uncached"] = ledger.uncached_tokens
            left[f"{name} in flight"] = room.inflight
            left[f"{name} control"] = room.control_blocks
            for session in gate.sessions.of_backend(name):
                counts = session.inflight, session.asides, session.waiting, session.waiting_as_resident
                left[f"{session.key}"] = sum(abs(count) for count in counts) + session.has_blocks
        return {name: number for name, number in left.items() if number != 0}

    def _arrive(self) -> None:
        rng = self._rng
        key = SessionKey(
            rng.choice("pqr"), f"{rng.choice(['', 'prompt:'])}{rng.randrange(60)}", rng.choice(["", "", "x"])
        )
        head = rng.randrange(4)
        head_bytes = (0, 800, 800, 8_000)[head]
        text_bytes = int(rng.lognormvariate(8.5, 1.5)) + head_bytes
        # A sub-agent may begin as its parent did; what it shares is to be found where that one is at home.
        origin = key if rng.random() < 0.5 else key._replace(agent="")
        length = rng.randint(1, 4)
        turn = Turn(
            key,
            text_bytes=text_bytes,
            head_bytes=head_bytes,
            head=head,
            chain=tuple(hash((origin, at)) for at in range(length)),
            spans=tuple(head_bytes + (text_bytes - head_bytes) * (at + 1) // length for at in range(length)),
            output_limit_tokens=rng.choice([None, None, 50]),
            twin=rng.choice([0, 0, 0, 5]),
            is_batch=rng.random() < 0.05,
        )
        candidates = BACKENDS if rng.random() < 0.7 else (rng.choice(BACKENDS),)
        waiting, placed = self._come(turn, candidates)
        if waiting.replaced is not None:
            del self._waiting[waiting.replaced.id]
        self._waiting[waiting.id] = waiting
        self._start(placed)
        if self.gate.queue.is_overfull and waiting.id in self._waiting:
            self.gate.give_up(self._waiting.pop(waiting.id), self.now, keeps_ticket=False)

    def _come(self, turn: Turn, candidates: tuple[str, ...]) -> tuple[Waiting, list[Placement]]:
        waiting = self.gate.arrive(turn, candidates, self.now, body_bytes=turn.text_bytes)
        return waiting, self.gate.pump(self.now, candidates, arrival=waiting)

    def _go_on(self, number: int) -> None:
        rng, gate, placement = self._rng, self.gate, self._running[number]
        chance = rng.random()
        if chance < 0.3:
            gate.first_token(placement, self.now)
            gate.generated(placement, placement.generated_tokens + rng.choice([0, 100, 700]))
            return
        self._running[number] = self._running[-1]
        self._running.pop()
        if chance < 0.55:
            end = TurnEnd(has_first_token=placement.has_first_token)
        else:
            tokens = int(placement.waiting.prompt_tokens * rng.uniform(0.8, 1.2)) + 1
            cached = rng.choice([None, 0, placement.expected_tokens])
            end = TurnEnd(tokens, cached, rng.randint(1, 900), rng.choice(list(StopReason)), True, True)
        gate.end(placement, end, self.now)
        self._pump((placement.backend,))

    def _pump(self, names: tuple[str, ...]) -> None:
        self._start(self.gate.pump(self.now, names))

    def _start(self, placed: list[Placement]) -> None:
        for placement in placed:
            del self._waiting[placement.waiting.id]
            self._running.append(placement)
            self.placed += 1
            self.latest = placement.id, placement.backend, placement.admission, placement.expected_tokens
        self.gate.next_event_at(self.now)

    def _resize(self, name: str, blocks: int) -> None:
        capacity = KvCapacity(total_blocks=blocks, block_tokens=BLOCK_TOKENS, alpha=1.1, beta_blocks=2.7)
        self.gate.see_capacity(name, capacity, 8_192, now=self.now)
