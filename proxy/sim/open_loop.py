"""Recorded requests that come when they came, whatever has become of those before: chats of many, with no session ids.

Reads traces in Mooncake's form (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`: one id for each 512
tokens, naming these and all before them). None is part of the package. Pure but for reading the file.
"""

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from proxy.core.turns import UNNAMED, StopReason
from proxy.sim.loop import Loop
from proxy.sim.policies import Policy
from proxy.sim.presets import EngineConfig
from proxy.sim.prompts import Prompt
from proxy.sim.traces import RecordedTurn
from proxy.sim.trouble import BYTES_PER_TOKEN
from proxy.sim.workloads import ContentKeys, SessionPlan, Thread

HASH_TOKENS: Final = 512
"""Tokens that one id of a trace covers."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One recorded request.

    Attributes:
        at_s: when it came, from the trace's beginning.
        blocks: the ids of its blocks of `HASH_TOKENS`; the last one may be cut short.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]


def recorded_arrivals(path: Path) -> list[Arrival]:
    """All requests of a trace, in the order of the file.

    Raises:
        OSError: no such file.
        ValueError: the file holds something else.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            return [_arrival(json.loads(line)) for line in lines]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold a trace in Mooncake's form") from error


def _arrival(row: dict[str, object]) -> Arrival:
    at, prompt, answer, blocks = (row[name] for name in ("timestamp", "input_length", "output_length", "hash_ids"))
    if not (isinstance(at, int) and isinstance(prompt, int) and isinstance(answer, int) and isinstance(blocks, list)):
        raise TypeError("a field has another type")
    return Arrival(at / 1_000, max(1, prompt), max(1, answer), tuple(blocks))


class RecordedKeys(ContentKeys):
    """The block keys of one recorded request: as the trace says, and none past its prompt."""

    __slots__ = ("_prompt_keys",)

    def __init__(self, block_tokens: int, arrival: Arrival) -> None:
        if HASH_TOKENS % block_tokens:
            raise ValueError(f"blocks of {block_tokens} tokens do not divide the trace's {HASH_TOKENS}")
        super().__init__(block_tokens, "", 0)
        parts = HASH_TOKENS // block_tokens
        full = arrival.prompt_tokens // block_tokens
        keys: list[Hashable] = [(block, part) for block in arrival.blocks for part in range(parts)]
        self._prompt_keys = keys[:full]

    def prompt(self, prompt_tokens: int, answer_tokens: int) -> Prompt:  # noqa: ARG002
        """See `ContentKeys`."""
        return Prompt(prompt_tokens, self._prompt_keys)


def chain_of(arrival: Arrival) -> tuple[int, ...]:
    """What the product would make of the prompt, were each full block a message.

    Without the block that is cut short: the next turn of the same chat fills it up.
    """
    chain: list[int] = []
    before = b""
    for block in arrival.blocks[: max(1, arrival.prompt_tokens // HASH_TOKENS)]:
        before = xxh3_64_digest(before + block.to_bytes(8, "big"))
        chain.append(int.from_bytes(before, "big"))
    return tuple(chain) or (xxh3_64_intdigest(b""),)


class OpenLoop(Loop):
    """A trace before simulated engines and one policy.

    Args:
        config: the engines; their blocks divide `HASH_TOKENS`.
        arrivals: the trace.
        policy: decides.
        seed: of the engines.
        speed: how many times faster they come than they came.
    """

    def __init__(
        self, config: EngineConfig, arrivals: Iterable[Arrival], policy: Policy, *, seed: int = 1, speed: float = 1.0
    ) -> None:
        super().__init__(config, policy, seed=seed)
        self._arrivals: Sequence[Arrival] = list(arrivals)
        self._speed = speed

    def _set_out(self) -> None:
        super()._set_out()
        for number, arrival in enumerate(self._arrivals):
            self._at(arrival.at_s / self._speed, partial(self._come, number, arrival))

    def _come(self, number: int, arrival: Arrival, now: float) -> None:
        turn = RecordedTurn(arrival.prompt_tokens, arrival.answer_tokens, 0.0, StopReason.END_TURN)
        chain = chain_of(arrival)
        spans = tuple(int(HASH_TOKENS * BYTES_PER_TOKEN) * (index + 1) for index in range(len(chain)))
        thread = Thread(
            f"{UNNAMED}{chain[0]:016x}",
            number,
            SessionPlan("", 0, [turn]),
            RecordedKeys(self._config.block_tokens, arrival),
            BYTES_PER_TOKEN,
            chain=chain,
            spans=spans,
        )
        self._ask(thread, now)
