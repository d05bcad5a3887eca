"""How vLLM 0.32 says that a request does not fit its context; word for word, since clients go by the words."""

from typing import Any

from tests.real.clients.engine import CONTEXT_TOKENS
from tests.real.clients.replies import Refused
from tests.real.clients.shapes import MESSAGES

_KIND = "BadRequestError"


def input_overflow(path: str) -> Refused:
    """The prompt alone is longer than the context."""
    tokens = CONTEXT_TOKENS + 1
    message = (
        f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your prompt contains at least "
        f"{tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of "
        f"the input prompt. (parameter=input_tokens, value={tokens})"
    )
    return _refused(path, message, "input_tokens")


def output_overflow(path: str, context_tokens: int, output_tokens: int) -> Refused:
    """The prompt fits, but not what may be written after it. The engine stops counting where that is clear."""
    least = context_tokens - output_tokens + 1
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested {output_tokens} "
        f"output tokens and your prompt contains at least {least} input tokens, for a total of at "
        f"least {context_tokens + 1} tokens. Please reduce the length of the input prompt or the number "
        f"of requested output tokens. (parameter=input_tokens, value={least})"
    )
    return _refused(path, message, "input_tokens")


def _refused(path: str, message: str, parameter: str) -> Refused:
    error: dict[str, Any] = {"message": message, "type": _KIND}
    if path == MESSAGES:
        return Refused(400, body={"type": "error", "error": error})
    return Refused(400, body={"error": {**error, "param": parameter, "code": 400}})
