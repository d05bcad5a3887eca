"""Where a session should live: what a prompt would cost on each backend, who wins between equals, when to move. Pure.

Costs are seconds that a request would take longer for going there, as far as they can be told beforehand. Between
equals rendezvous hashing decides: each session has an order of all backends of its own, alike in every process, and a
backend that comes or goes changes nobody's order of the others.
"""

from math import log
from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

RUNNING_S: Final = 0.5
"""What a turn that runs costs one that comes: an answer of 450 tokens is slower by 0.4 to 0.9 s beside it on the
machines that are simulated. With nothing 24 agents on four cards get 48.2 turns a minute, with 0.3 to 1 s over 49.
"""
CROWDING: Final = 0.5
"""Of computing the whole prompt: what a full cache costs a newcomer besides. It spreads sessions over backends where
nobody runs at the moment. Twice or none of it changes nothing that can be measured.
"""
GATHER_RATIO: Final = 1.25
GATHER_SLACK: Final = 1.0
"""A session; else none could go where a head lies that one session has brought there."""
MOVE_GAIN_S: Final = 2.0
MOVE_GAIN_RATIO: Final = 0.25
MOVE_WAIT_RATIO: Final = 0.5
"""Three figures of the admission brief 3.3. None at all for the last is the same to the digit with 48 agents."""
BUSY_RATIO: Final = 1.25
BUSY_SLACK: Final = 2.0
"""Turns; else a second turn would have to leave an engine where one runs and none elsewhere."""
SLOWEST_TURNOVER_S: Final = 600.0
UNKNOWN_TOKENS: Final = 131_072
"""What an engine of unknown size is taken to hold beside others, so that it gets a share."""
_HASHES: Final = 2.0**64


def seed_of(name: str) -> int:
    """What a backend's name adds to the hash of every session: worked out once."""
    return xxh3_64_intdigest(name.encode())


def root_of(*names: str) -> bytes:
    """What stands for a session in `affinity`."""
    return xxh3_64_digest("\0".join(names).encode())


def affinity(root: bytes, seed: int, weight: float) -> float:
    """How much a session belongs to a backend; the highest wins, each backend for its share of the weights.

    Args:
        root: the session, see `root_of`.
        seed: the backend, see `seed_of`.
        weight: above 0; what it can hold, by what it was told to take.
    """
    share = (xxh3_64_intdigest(root, seed) + 0.5) / _HASHES
    # Rounding can make it 1, whose logarithm is nothing to divide by.
    return weight / -log(share) if share < 1.0 else weight * _HASHES


def busy_s(ahead_tokens: float, tokens_per_s: float, running: int) -> float:
    """What whoever comes to a backend waits for there, or loses to those who run.

    Args:
        ahead_tokens: of prompts that are being computed.
        tokens_per_s: how fast they are.
        running: turns in flight.
    """
    return ahead_tokens / tokens_per_s + RUNNING_S * running


def yields(weight: float, reference: float) -> float:
    """By how much the seconds of a backend count for more, because it was told to take less than another one.

    Nobody's count for less: of two that are as loaded as their weights say, neither is worth leaving for the other.

    Args:
        weight: what it was told to take.
        reference: the same of the other one: of the heaviest for who is new, of its home for a session that has one.
    """
    return reference / weight if weight < reference else 1.0


def wait_s(short_tokens: float, release_tokens_per_s: float, capacity_tokens: int) -> float:
    """Until room has come free for a session that needs so much more than there is.

    Args:
        short_tokens: so much more.
        release_tokens_per_s: how fast room came free of late.
        capacity_tokens: what the backend holds; it comes free once in ten minutes at the least.
    """
    if short_tokens <= 0:
        return 0.0
    return short_tokens / max(release_tokens_per_s, capacity_tokens / SLOWEST_TURNOVER_S)


def gain_to_move_s(refill_s: float) -> float:
    """What another backend must be better by, so that a session leaves the one where something of it lies.

    Args:
        refill_s: what its whole prompt would take to compute.
    """
    return max(MOVE_GAIN_S, MOVE_GAIN_RATIO * refill_s)


def has_waited_enough(waited_s: float, refill_s: float) -> bool:
    """Whether a session has waited so long for its home that it goes wherever there is room."""
    return waited_s >= MOVE_WAIT_RATIO * refill_s


def may_gather(sessions: int, mean_sessions: float) -> bool:
    """Whether a backend may draw a newcomer by a head that lies there; else all with one head would gather there.

    Args:
        sessions: that it would have then.
        mean_sessions: what it would have if all were spread by weight.
    """
    return sessions <= GATHER_RATIO * mean_sessions + GATHER_SLACK


def is_too_busy(inflight: float, mean_inflight: float) -> bool:
    """Whether a backend of unknown size has so much more to do than the others that a session leaves it."""
    return inflight > BUSY_RATIO * mean_inflight + BUSY_SLACK
