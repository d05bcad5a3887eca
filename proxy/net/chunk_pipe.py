"""The short way of a stream: whole chunks go from a backend's connection to the client's as they came.

Made by the relay once an answer's first token has passed, used by the upstream connection for each read that is exactly
one chunk. For every chunk of every stream one more call, or one more object to touch, shows in the proxy's cost.
"""

from collections.abc import Callable
from typing import Final

LOOK_AFTER: Final = 64
"""A stream is looked at every so many chunks; at sixteen each chunk cost 1 to 2 % more."""


class ChunkPipe:
    """What the upstream connection needs to pass a chunk on.

    Attributes:
        write: writes bytes to the client.
        is_closing: whether the client is gone.
        pieces: takes the chunks for the answer's reader, framing included.
        times: takes their times, in monotonic seconds.
        look: has the reader look at what was taken; called every `LOOK_AFTER` chunks.
    """

    __slots__ = ("is_closing", "look", "pieces", "times", "write")

    def __init__(
        self,
        *,
        write: Callable[[bytes], None],
        is_closing: Callable[[], bool],
        pieces: list[bytes],
        times: list[float],
        look: Callable[[], None],
    ) -> None:
        self.write = write
        self.is_closing = is_closing
        self.pieces = pieces
        self.times = times
        self.look = look
