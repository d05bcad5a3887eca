"""Reads vLLM's KV cache events: which blocks an engine has stored and given away. Pure.

A batch is msgpack: an array of the engine's wall time, the events, and the rank of the engine. Events are maps in
vLLM 0.32 and were arrays of the same fields before. Tokens, parents and whatever else they hold are skipped unread.
"""

from typing import Any, Final, TypeAlias

import msgspec

Hash: TypeAlias = int | bytes
_GPU: Final = "GPU"


class BlocksStored(msgspec.Struct, tag="BlockStored", gc=False):
    """Blocks can be found from now on.

    Attributes:
        block_hashes: in the order of their tokens.
        block_size: tokens of each.
        medium: where they lie; None is the GPU of an engine that does not say.
        group_idx: which kind of layers they serve; models of one kind have group 0.
    """

    block_hashes: list[Hash]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None


class BlocksRemoved(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks are given away."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """Nothing can be found any more."""


Event: TypeAlias = BlocksStored | BlocksRemoved | AllCleared


class Batch(msgspec.Struct, array_like=True, gc=False):
    """What an engine said at once.

    Attributes:
        ts: its wall time in seconds.
    """

    ts: float
    events: list[BlocksStored | BlocksRemoved | AllCleared]


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: list[Hash]
    parent_block_hash: msgspec.Raw
    token_ids: msgspec.Raw
    block_size: int
    lora_id: msgspec.Raw | None = None
    medium: str | None = None


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: str | None = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _BatchOfArrays(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]


_OF_MAPS: Final = msgspec.msgpack.Decoder(Batch)
_OF_ARRAYS: Final = msgspec.msgpack.Decoder(_BatchOfArrays)


class MalformedEventsError(ValueError):
    """A message is not what an engine sends."""


def parse_events(payload: bytes) -> Batch:
    """The batch that a message holds.

    Raises:
        MalformedEventsError: it holds none, or an event of a kind that is not known; nothing of it is taken.
    """
    try:
        return _OF_MAPS.decode(payload)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedEventsError(str(error)) from None
    try:
        old = _OF_ARRAYS.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedEventsError(str(error)) from None
    return Batch(old.ts, [_as_today(event) for event in old.events])


def is_on_gpu(event: BlocksStored | BlocksRemoved) -> bool:
    """Whether an event is about the cache that the engine computes in, and not about a tier behind it."""
    return event.medium is None or event.medium == _GPU


def _as_today(event: Any) -> Event:
    if isinstance(event, _StoredArray):
        return BlocksStored(event.block_hashes, event.block_size, event.medium)
    if isinstance(event, _RemovedArray):
        return BlocksRemoved(event.block_hashes, event.medium)
    return AllCleared()
