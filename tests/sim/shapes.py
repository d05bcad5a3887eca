"""What the tests of the HTTP face share: asking, and the shape of an answer.

A shape is an answer's keys in order and the kinds of its values, so that two engines' answers can be compared.
"""

import json
from io import BytesIO
from typing import Any


async def post(http, engine, path, body, headers=None):
    """Status, headers and text of the answer to `body`, which may be JSON or bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {"Content-Type": "application/json"} | (headers or {})
    async with http.post(engine.url + path, data=BytesIO(data), headers=all_headers) as response:
        return response.status, response.headers, await response.text()


def shape(value):
    """Keys in order and kinds of values; a list is known by its first item."""
    if isinstance(value, dict):
        return [[key, shape(item)] for key, item in value.items()]
    if isinstance(value, list):
        return ["list", shape(value[0])] if value else ["list"]
    return "null" if value is None else type(value).__name__


def events_shape(text):
    """Each event's name and shape, repeats of the same one taken together."""
    events: list[Any] = []
    for event in text.strip().split("\n\n"):
        *head, data = event.split("\n")
        name = head[0].removeprefix("event: ") if head else None
        payload = data.removeprefix("data: ")
        found = [name, payload if payload == "[DONE]" else shape(json.loads(payload))]
        if not events or events[-1] != found:
            events.append(found)
    return events
