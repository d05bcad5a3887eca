"""One request as admission sees it: whose session, how large, how patient. Values only."""

from enum import IntEnum, StrEnum, unique
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

UNNAMED = "prompt:"
"""How the id of a session begins that its client did not name."""


class SessionKey(NamedTuple):
    """Who is talking: equality alone decides (L10), and two credentials never share a session.

    Attributes:
        credential: a digest of the client's credential, or empty for an open proxy.
        session: the id that the client sends, or a digest of its prompt's head and first message.
        agent: a sub-agent's id, or empty for the main thread (L06).
    """

    credential: str
    session: str
    agent: str = ""


@unique
class Rank(IntEnum):
    """Classes of waiting requests; lower ones go first.

    Python 3.11 takes as long as a call to look a member up on its class, of any enumeration: modules through which each
    request goes keep those that they compare with as constants.
    """

    RESIDENT = 0
    """A turn of a session whose prefix we believe cached."""
    CONTROL = 1
    """A small one-shot request: a title, a summary of a line."""
    SESSION = 2
    """A session that is new, or out."""
    BATCH = 3
    """Marked by the client as not urgent."""


@unique
class StopReason(StrEnum):
    """Why a turn ended; decides how long its session keeps its place."""

    TOOL_USE = "tool_use"
    END_TURN = "end_turn"
    OTHER = "other"
    """Cut at a limit, or not seen. An agent usually comes back at once."""


@unique
class PrefixBreak(StrEnum):
    """Why a session's turn cannot use what its last one left in the cache. Labels of a metric."""

    MODEL = "model"
    """Another model or adapter is asked for, or another cache salt."""
    CLIENT_UPGRADE = "client_upgrade"
    """Another version of the client, which brings other tools or another system prompt."""
    TOOLS = "tools"
    SYSTEM = "system"
    COMPACTION = "compaction"
    """Less than half of the last turn's messages are still there, or it is another conversation."""
    EDITED = "edited"
    """A message was changed or taken out."""


class Turn(Struct, frozen=True, gc=False):
    """What admission needs to know of a request.

    Attributes:
        text_bytes: bytes of prompt text: system, tools, messages; no base64.
        extra_tokens: fixed cost of images and other parts that are not text.
        head_bytes: the part of `text_bytes` that is system and tools.
        head: a digest of system and tools, for one model and cache salt; sessions with the same one share that prefix.
        scope: a digest of the model and the cache salt; tells why a head changed, like the next two.
        tools: a digest of the tools.
        client: a digest of which program sends it, and of its version.
        chain: one digest a message, each covering all before it, the head and the credential too.
        spans: for each message, the bytes of prompt text up to its end; empty when not known.
        output_limit_tokens: the client's cap on the answer, or None.
        patience_s: the client's own timeout, if it said one.
        twin: a digest of the whole body; two requests of a session with the same one are copies; 0 for never.
        is_batch: marked as not urgent.
    """

    session: SessionKey
    text_bytes: int
    extra_tokens: int = 0
    head_bytes: int = 0
    head: int = 0
    scope: int = 0
    tools: int = 0
    client: int = 0
    chain: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()
    output_limit_tokens: int | None = None
    patience_s: float | None = None
    twin: int = 0
    is_batch: bool = False

    def of_weights(self, weights: int) -> "Turn":
        """The same turn, of a model that is not what it was: nothing that was computed by the old one matches it.

        Args:
            weights: a digest of 64 bits that tells the new one from the old one.
        """
        chain = tuple(digest ^ weights for digest in self.chain)
        return replace(self, head=self.head and self.head ^ weights, scope=self.scope ^ weights, chain=chain)


class TurnEnd(Struct, frozen=True, gc=False):
    """How an admitted turn ended.

    Attributes:
        prompt_tokens: as the engine counted them, or None.
        cached_tokens: the cached part of the prompt, or None when not reported.
        completion_tokens: generated tokens, or None.
        has_first_token: whether the prompt was computed.
        is_complete: whether the answer was complete.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    stop: StopReason = StopReason.OTHER
    has_first_token: bool = False
    is_complete: bool = False


class OutputStats(Struct, frozen=True, gc=False):
    """What answers have been like, in tokens; the start values are those of 48,631 recorded Claude Code turns."""

    mean_tokens: float = 450.0
    deviation_tokens: float = 750.0
