"""vLLM's refusals, in vLLM's own words and shapes (0.32).

Raised while a request is read; the HTTP face turns them into answers. Validation faults keep the OpenAI shape on every
route, all others follow the route's dialect, as vLLM's do.
"""

from collections.abc import Sequence
from typing import Any


class Fault(Exception):  # noqa: N818 - an answer of the engine, not an error of ours
    """A request is refused.

    Attributes:
        kind: the `type` of the error body.
        is_validation: found by the request's schema, before any dialect was asked.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.is_validation = kind == "Bad Request"

    def body(self, *, is_anthropic: bool) -> dict[str, Any]:
        """The JSON body."""
        if is_anthropic and not self.is_validation:
            return {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def shown(value: Any) -> str:
    """A value as validation messages show it: containers by their size only."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)


def invalid(kind: str, place: str, message: str, value: Any, context: str = "") -> Fault:
    """The request's schema is violated at `place`."""
    return invalid_fields([(kind, place, message, value)], context)


def invalid_fields(found: Sequence[tuple[str, str, str, Any]], context: str = "") -> Fault:
    """The request's schema is violated in several places at once: kind, place, message and value of each."""
    plural = "s" if len(found) > 1 else ""
    lines = [
        f"  {{'type': {kind!r}, 'loc': {place!r}, 'msg': {message!r}, 'input': {shown(value)!r}{context}}}"
        for kind, place, message, value in found
    ]
    return Fault(f"{len(found)} validation error{plural}:\n" + "\n".join(lines), kind="Bad Request", param=found[0][1])


def missing(field: str, value: Any) -> Fault:
    """A required field is absent from `value`."""
    return invalid("missing", f"body.{field}" if field else "body", "Field required", value)


def not_json(message: str, position: int) -> Fault:
    """The body is not JSON."""
    return invalid("json_invalid", f"body.{position}", "JSON decode error", {}, f", 'ctx': {{'error': {message!r}}}")


def wrong_media_type() -> Fault:
    """The body is not declared as JSON."""
    return Fault(
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request"
    )


def unknown_model(asked: str, served: Sequence[str]) -> Fault:
    """The asked model is not served here."""
    message = f"The model `{asked}` does not exist. Valid aliases: {', '.join(served)}."
    return Fault(message, status=404, kind="NotFoundError", param="model")


def bad_parameter(message: str, parameter: str, value: Any = None) -> Fault:
    """A parameter's value cannot be used."""
    tail = f" (parameter={parameter}" + (f", value={value})" if value is not None else ")")
    return Fault(message + tail, param=parameter)


def prompt_too_long(context_tokens: int, prompt_tokens: int, *, is_exact: bool) -> Fault:
    """The prompt alone exceeds the context. A text's tokenizer stops at the first token too many."""
    shown_tokens = prompt_tokens if is_exact else context_tokens + 1
    at_least = "at least " if shown_tokens == context_tokens + 1 else ""
    return bad_parameter(
        f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains "
        f"{at_least}{shown_tokens} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        shown_tokens,
    )
