"""What the proxy reads of a request body before it decides: model, stream, stored response. Never changes a byte."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.core.errors import Refusal
from proxy.core.outcomes import Outcome
from proxy.core.requests import Route

_MODEL_FIELD: Final = re.compile(
    rb'content-disposition:[^\r\n]*;[ \t]*name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n',
    re.IGNORECASE,
)


_NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})


class BodyFacts(Struct, frozen=True, gc=False):
    """The few fields that steer a request. A field of the wrong type counts as absent: the engine will say so.

    `fields` is the whole parsed body, for measuring it; never kept beyond that.
    """

    model: str | None = None
    is_stream: bool = False
    previous_response_id: str | None = None
    fields: Mapping[str, Any] = _NO_FIELDS

    def __repr__(self) -> str:
        return f"<BodyFacts of {self.model}>"


def read_body(route: Route, body: bytes) -> BodyFacts:
    """Read the steering fields of a body.

    Raises:
        Refusal: 400 when a JSON route's body is not one JSON object in UTF-8.
    """
    if route.is_multipart:
        field = _MODEL_FIELD.search(body)
        return BodyFacts(model=field[1].decode("utf-8", "replace") if field else None)
    fields = _json_object(body)
    model = fields.get("model")
    previous = fields.get("previous_response_id")
    return BodyFacts(
        model=model if isinstance(model, str) and model else None,
        is_stream=fields.get("stream") is True,
        previous_response_id=previous if isinstance(previous, str) else None,
        fields=fields,
    )


def multipart_model_span(body: bytes) -> tuple[int, int]:
    """Where the model's name stands in a form that has been read and names one."""
    found = _MODEL_FIELD.search(body)
    assert found is not None
    return found.span(1)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # The parser's own words can quote the document; its position cannot.
        where = f" at line {error.lineno}, column {error.colno}" if body else ": it is empty"
        raise Refusal(
            Outcome.REFUSED_BAD_REQUEST, 400, f"The request body is not valid JSON in UTF-8{where}."
        ) from None
    if not isinstance(parsed, dict):
        raise Refusal(Outcome.REFUSED_BAD_REQUEST, 400, "The request body must be a JSON object.")
    return parsed
