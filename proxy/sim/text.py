"""Text as tokens, for the HTTP face: four bytes of a segment are one token, and filler words are one token each.

Segments (a role, a message) are cut separately, so an answer that comes back in the next prompt meets the very tokens
that were generated. Pure; it knows no real tokenizer.
"""

import random
from enum import IntEnum, unique
from hashlib import blake2b

from proxy.sim.prompts import TOKEN_BYTES


@unique
class Special(IntEnum):
    """Tokens that no text can contain; each is one token."""

    TURN_START = 1
    TURN_END = 2

    @property
    def encoded(self) -> bytes:
        """Its bytes: never valid UTF-8, so never met in a text."""
        return b"\xff\xff\xff" + bytes([self.value])


def encode(text: str) -> bytes:
    """One segment, padded to whole tokens."""
    raw = text.encode("utf-8", "surrogatepass")
    return raw + b"\0" * (-len(raw) % TOKEN_BYTES)


def encode_image(data: str, tokens: int) -> bytes:
    """An image of `tokens` tokens: equal data, equal tokens."""
    digest = blake2b(data.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return (digest * (tokens * TOKEN_BYTES // len(digest) + 1))[: tokens * TOKEN_BYTES]


def count_tokens(encoded: bytes) -> int:
    """Tokens of an encoded text."""
    return len(encoded) // TOKEN_BYTES


def token_ids(encoded: bytes) -> list[int]:
    """A number for each token: equal tokens, equal numbers."""
    return [int.from_bytes(encoded[at : at + TOKEN_BYTES], "big") for at in range(0, len(encoded), TOKEN_BYTES)]


def encode_ids(ids: list[int]) -> bytes:
    """Tokens given as numbers."""
    return b"".join((number & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "big") for number in ids)


def slices(text: str) -> list[str]:
    """ASCII text cut into the pieces that `encode` makes tokens of."""
    return [text[at : at + TOKEN_BYTES] for at in range(0, len(text), TOKEN_BYTES)]


_FILLER = slices(
    " the tap set cup box map log run key bit row sum top end way day use job net bus one two six ten new old big low"
    " raw dry red hot odd max min fit cut mix fix add put get ask try see say let win pay own few all any for and but"
)


def filler(seed: bytes, tokens: int) -> list[str]:
    """`tokens` words of one token each, the same for the same seed."""
    return random.Random(seed).choices(_FILLER, k=tokens)
