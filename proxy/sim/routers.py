"""Rules by which routers choose a backend, with no admission: what Tidegate's routing is compared with.

Each is written from the rule's description (admission brief 3.1), and lets every turn through at once.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

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
