"""The checks that a request's JSON must pass, in vLLM's order and words.

Called by `asks` and the HTTP face; each check raises `Fault`. Pure.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from proxy.sim import faults
from proxy.sim.faults import Fault

Body = Mapping[str, Any]


def read_json(raw: bytes, content_type: str) -> Body:
    """The body as an object."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise faults.wrong_media_type()
    if not raw:
        raise faults.missing("", None)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _stdlib_json(raw)
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise faults.invalid("model_attributes_type", "body", message, body)
    return body


def _stdlib_json(raw: bytes) -> Any:
    """Python's own reading: it finds the fault in the words vLLM repeats, and accepts a few things more."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise faults.not_json(error.msg, error.pos) from None
    except UnicodeDecodeError as error:
        raise Fault("There was an error parsing the body") from error


def message_list(body: Body) -> list[Any]:
    """The messages, each an object with a role."""
    if "messages" not in body:
        raise faults.missing("messages", body)
    messages = body["messages"]
    if not isinstance(messages, list):
        raise faults.invalid("list_type", "body.messages", "Input should be a valid list", messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            place = f"body.messages.{index}"
            raise faults.invalid("dict_type", place, "Input should be a valid dictionary", message)
        if "role" not in message:
            raise faults.missing(f"messages.{index}.role", message)
    return messages


def not_empty(messages: list[Any]) -> list[Any]:
    """The same messages, of which there must be one."""
    if not messages:
        raise Fault("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return messages


def check_messages(messages: list[Any]) -> None:
    """What the Messages schema demands of each message."""
    for index, message in enumerate(messages):
        place = f"body.messages.{index}"
        if message["role"] not in ("user", "assistant", "system"):
            expected = "'user', 'assistant' or 'system'"
            context = f", 'ctx': {{'expected': {expected!r}}}"
            raise faults.invalid(
                "literal_error", f"{place}.role", f"Input should be {expected}", message["role"], context
            )
        if "content" not in message:
            raise faults.missing(f"messages.{index}.content", message)
        content = message["content"]
        if not isinstance(content, str | list):
            kinds = (("string_type", "string"), ("list_type", "list"))
            raise faults.invalid_fields(
                [(kind, f"{place}.content", f"Input should be a valid {name}", content) for kind, name in kinds]
            )


def required_max_tokens(body: Body) -> int:
    """The Messages schema's `max_tokens`, which must be there."""
    if "max_tokens" not in body:
        raise faults.missing("max_tokens", body)
    asked = whole_number(body, "max_tokens")
    if asked is None or asked < 1:
        message = "max_tokens must be positive"
        context = f", 'ctx': {{'error': ValueError({message!r})}}"
        raise faults.invalid("value_error", "body.max_tokens", f"Value error, {message}", asked, context)
    return asked


def whole_number(body: Body, field: str) -> int | None:
    """An optional whole number."""
    value = body.get(field)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    message = "Input should be a valid integer, unable to parse string as an integer"
    raise faults.invalid("int_parsing", f"body.{field}", message, value)


def check_sampling(body: Body, asked: int | None, parameter: str) -> None:
    """What vLLM refuses among the sampling parameters, and what this engine cannot do."""
    if body.get("stream_options") and not body.get("stream"):
        raise faults.bad_parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    if asked is not None and asked < 1:
        raise faults.bad_parameter(f"{parameter} must be at least 1, got {asked}.", parameter, asked)
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        given = float(temperature)
        raise faults.bad_parameter(f"temperature must be non-negative, got {given}.", "temperature", given)
    if (body.get("n") or 1) != 1:
        raise Fault("the simulated engine gives one choice a request", param="n")
