"""Rules by which routers choose a backend, with no admission: what Tidegate's routing is compared with.

Each is written from the rule's description (admission brief 3.1), and lets every turn through at once.
"""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from proxy.policy import routing
from proxy.sim.engine import Engine
from proxy.sim.policies import Policy
from proxy.sim.workloads import OpenTurn


class LeastRequests(Policy):
    """Each turn to the backend with the fewest turns in flight; the first of equals."""

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        taken = list(self.inflight)
        for turn in self.waiting.values():
            turn.backend = min(range(self.backends), key=taken.__getitem__)
            taken[turn.backend] += 1
            yield turn


class BoundedHashing(Policy):
    """Consistent hashing with bounded loads, as in KubeAI: 256 points a backend on a ring, at most 1.25 times the mean.

    The key is the session, which is kinder than KubeAI's own (the first 100 characters of the first message).
    """

    _POINTS: Final = 256
    _BOUND: Final = 1.25

    def __init__(self, name: str, backends: int) -> None:
        super().__init__(name, backends)
        points = (
            (xxh3_64_intdigest(f"{backend}/{point}".encode()), backend)
            for backend in range(backends)
            for point in range(self._POINTS)
        )
        self._ring = sorted(points)

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        taken = list(self.inflight)
        for turn in self.waiting.values():
            most = self._BOUND * (sum(taken) + 1) / self.backends
            first = bisect_left(self._ring, (xxh3_64_intdigest(turn.thread.session.encode()), 0))
            around = (self._ring[(first + step) % len(self._ring)][1] for step in range(len(self._ring)))
            turn.backend = next(backend for backend in around if taken[backend] <= most)
            taken[turn.backend] += 1
            yield turn


class ApproximateTree(Policy):
    """SGLang's and vllm-router's cache-aware rule, with the library's thresholds (.5, 32, 1.1).

    What was routed to a backend counts as cached there, least recently used goes beyond 67 million characters. When the
    in-flight turns differ by more than 32 and by more than a tenth, the shortest queue; else the longest match if it
    covers more than half of the prompt; else the backend with the smallest tree.

    Args:
        name: as shown.
        backends: how many.
        block_tokens: what the keys of a prompt stand for; the rule itself works on characters.
    """

    _MATCH: Final = 0.5
    _ABSOLUTE: Final = 32
    _RELATIVE: Final = 1.1
    _MOST_TOKENS: Final = 67_108_864 // 4

    def __init__(self, name: str, backends: int, block_tokens: int) -> None:
        super().__init__(name, backends)
        self._block_tokens = block_tokens
        self._trees: list[OrderedDict[Hashable, None]] = [OrderedDict() for _ in range(backends)]

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        taken = list(self.inflight)
        for turn in self.waiting.values():
            planned = turn.thread.turn
            prompt = turn.thread.keys.prompt(planned.prompt_tokens, planned.answer_tokens)
            keys = prompt.keys[: planned.prompt_tokens // self._block_tokens]
            turn.backend = self._pick(keys, taken)
            self._insert(turn.backend, keys)
            taken[turn.backend] += 1
            yield turn

    def _pick(self, keys: Sequence[Hashable], taken: Sequence[int]) -> int:
        if max(taken) - min(taken) > self._ABSOLUTE and max(taken) > self._RELATIVE * min(taken):
            return min(range(self.backends), key=taken.__getitem__)
        matched = [self._matched(tree, keys) for tree in self._trees]
        best = max(range(self.backends), key=matched.__getitem__)
        if matched[best] > self._MATCH * len(keys):
            return best
        return min(range(self.backends), key=lambda backend: len(self._trees[backend]))

    def _matched(self, tree: OrderedDict[Hashable, None], keys: Sequence[Hashable]) -> int:
        return next((at for at, key in enumerate(keys) if key not in tree), len(keys))

    def _insert(self, backend: int, keys: Sequence[Hashable]) -> None:
        tree = self._trees[backend]
        for key in reversed(keys):  # so that a prompt's end goes before its beginning
            tree[key] = None
            tree.move_to_end(key)
        while len(tree) * self._block_tokens > self._MOST_TOKENS:
            tree.popitem(last=False)


class Oracle(Policy):
    """Knows every engine's cache exactly, which no router does: the cost rule with the true hit and the true load.

    What prompts on their way will leave counts as cached. Costs are those of `policy.routing`, crowding included, so
    that its load is spread by the same rule as that of the gate; the first of equals.

    Args:
        name: as shown.
        backends: how many.
        tokens_per_s: how fast the engines compute prompts.
    """

    def __init__(self, name: str, backends: int, tokens_per_s: float) -> None:
        super().__init__(name, backends)
        self._tokens_per_s = tokens_per_s
        self._engines: Sequence[Engine] = ()
        self._coming: list[Counter[Hashable]] = [Counter() for _ in range(backends)]
        self._sent: dict[int, tuple[Sequence[Hashable], int]] = {}
        self._ahead_tokens = [0] * backends

    def see_engines(self, engines: Sequence[Engine]) -> None:
        """See `Policy`."""
        self._engines = engines

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        running = list(self.inflight)
        for turn in self.waiting.values():
            planned = turn.thread.turn
            prompt = turn.thread.keys.prompt(planned.prompt_tokens, planned.answer_tokens)
            block_tokens = self._engines[0].config.block_tokens
            keys = prompt.keys[: (prompt.n_tokens - 1) // block_tokens]
            hits = [self._hit_blocks(backend, keys) * block_tokens for backend in range(self.backends)]
            costs = [self._cost_s(at, prompt.n_tokens, hits[at], running[at]) for at in range(self.backends)]
            turn.backend = min(range(self.backends), key=costs.__getitem__)
            running[turn.backend] += 1
            missing = prompt.n_tokens - hits[turn.backend]
            self._coming[turn.backend].update(keys)
            self._ahead_tokens[turn.backend] += missing
            self._sent[turn.id] = keys, missing
            yield turn

    def _hit_blocks(self, backend: int, keys: Sequence[Hashable]) -> int:
        pool, coming = self._engines[backend].pool, self._coming[backend]
        found = (at for at, key in enumerate(keys) if key not in coming and not pool.match((key,), 1))
        return next(found, len(keys))

    def _cost_s(self, backend: int, tokens: int, hit_tokens: int, running: int) -> float:
        pool = self._engines[backend].pool
        crowding_tokens = routing.CROWDING * tokens * pool.used_blocks / pool.n_blocks
        busy_s = routing.busy_s(self._ahead_tokens[backend], self._tokens_per_s, running)
        return busy_s + (tokens - hit_tokens + crowding_tokens) / self._tokens_per_s

    def first_token(self, turn: OpenTurn, now: float) -> None:  # noqa: ARG002
        """See `Policy`."""
        self._has_come(turn)

    def end(self, turn: OpenTurn, now: float, *, is_complete: bool) -> None:
        """See `Policy`."""
        super().end(turn, now, is_complete=is_complete)
        if turn.id in self._sent:
            self._has_come(turn)  # its engine is gone

    def _has_come(self, turn: OpenTurn) -> None:
        keys, missing = self._sent.pop(turn.id)
        self._ahead_tokens[turn.backend] -= missing
        coming = self._coming[turn.backend]
        coming.subtract(keys)
        for key in keys:
            if not coming[key]:
                del coming[key]
