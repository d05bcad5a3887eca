"""What a sequence's tokens are, as far as a prefix cache can tell: how many, and one key for each full block.

Built from text by the HTTP face and from session traces by simulations; keys are made once and shared, never copied.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

TOKEN_BYTES = 4
"""Bytes of text that count as one token. Agent traffic measures 3.98 a token at the median (admission brief 1.4)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of `n_tokens` tokens.

    Attributes:
        keys: entry i names the content of block i *and of everything before it*. It may reach beyond the prompt, over
            the answer that will be generated; blocks past its end can never be found again.
    """

    n_tokens: int
    keys: Sequence[Hashable] = ()


def chained_keys(encoded: bytes, block_tokens: int, seed: bytes = b"") -> list[bytes]:
    """One key for each full block of an encoded text (`TOKEN_BYTES` bytes a token), each covering all before it.

    Texts with another seed share no block, however alike they are: an adapter's, beside those of its base model.
    """
    step = block_tokens * TOKEN_BYTES
    keys: list[bytes] = []
    previous = seed
    for end in range(step, len(encoded) + 1, step):
        previous = blake2b(previous + encoded[end - step : end], digest_size=16).digest()
        keys.append(previous)
    return keys


class SharedPrefix:
    """A prefix that many sessions begin with, such as an agent's system prompt and tools."""

    __slots__ = ("keys", "n_tokens")

    def __init__(self, name: Hashable, n_tokens: int, block_tokens: int) -> None:
        self.n_tokens = n_tokens
        self.keys: list[Hashable] = [("shared", name, index) for index in range(n_tokens // block_tokens)]


_next_session = count()


class SessionKeys:
    """The keys of one synthetic session, whose context only ever grows; after a compaction begin a new one.

    All its prompts share one list that is extended in place, so a turn costs only its new blocks.
    """

    __slots__ = ("_block_tokens", "_identity", "_keys")

    def __init__(self, block_tokens: int, shared: SharedPrefix | None = None, name: Hashable | None = None) -> None:
        self._block_tokens = block_tokens
        self._identity: Hashable = next(_next_session) if name is None else name
        self._keys: list[Hashable] = list(shared.keys) if shared else []

    def prompt(self, n_tokens: int, output_tokens: int = 0) -> Prompt:
        """The prompt of a turn whose context is `n_tokens` long and whose answer will take `output_tokens`."""
        wanted = (n_tokens + output_tokens) // self._block_tokens
        keys = self._keys
        keys.extend((self._identity, index) for index in range(len(keys), wanted))
        return Prompt(n_tokens, keys)
