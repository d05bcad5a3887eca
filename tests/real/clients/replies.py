"""What the scripted engine can answer, whatever the API: a story is a function from a request to one of these."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.fakes.backend import SeenRequest

SOME_TOKENS: Final = 1_000


@dataclass(frozen=True)
class Text:
    """A plain answer.

    Attributes:
        prompt_tokens: what the engine says that the prompt was.
    """

    words: str
    prompt_tokens: int = SOME_TOKENS


@dataclass(frozen=True)
class ToolCall:
    """One tool that the model wants run."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ToolCalls:
    """An answer that asks for tools."""

    calls: tuple[ToolCall, ...]
    prompt_tokens: int = SOME_TOKENS


@dataclass(frozen=True)
class Silent:
    """A head at once, as vLLM sends it, and nothing more until the prompt is computed."""

    seconds: float
    then: "Text | ToolCalls"


@dataclass(frozen=True)
class Cut:
    """A stream that is reset in the middle of its words."""

    words: str
    prompt_tokens: int = SOME_TOKENS


@dataclass(frozen=True)
class Refused:
    """An error answer.

    Attributes:
        body: as it is, or None for an error in the API's usual shape.
    """

    status: int
    message: str = "the engine is scripted to refuse this"
    retry_after: str | None = None
    should_retry: str | None = None
    body: dict[str, Any] | None = None


Reply: TypeAlias = Text | ToolCalls | Silent | Cut | Refused


@dataclass(frozen=True)
class Asked:
    """One request as it reached the engine.

    Attributes:
        at: monotonic seconds.
        body: parsed; empty when it was no JSON object.
    """

    at: float
    request: SeenRequest
    body: dict[str, Any]

    @property
    def path(self) -> str:
        """Without the query."""
        return self.request.line.split(" ")[1].partition("?")[0]

    @property
    def is_stream(self) -> bool:
        """Whether an event stream is asked for."""
        return self.body.get("stream") is True

    def header(self, name: str) -> str | None:
        """The value of a header, or None."""
        return self.request.header(name)

    @property
    def tool_names(self) -> list[str]:
        """What the model may use, in either API's shape."""
        tools = [tool for tool in self.body.get("tools") or [] if isinstance(tool, dict)]
        return [str(tool.get("name") or tool.get("function", {}).get("name") or tool.get("type")) for tool in tools]

    def says(self, words: str) -> bool:
        """Whether these words stand somewhere in it."""
        return words.encode() in self.request.body


Story: TypeAlias = Callable[[Asked], Reply]


def in_turn(*replies: Reply) -> Story:
    """One reply after the other, the last one for ever."""
    left = list(replies)

    def story(_asked: Asked) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return story
