"""Record what a real engine answers, for tests that have none: `python -m tests.real.capture_fixtures URL OUT_DIR`.

The engine must be idle, fresh, and serve the tiny model under the names of run_conformance.py. The folder of its model
is taken out; all else is as it came over the wire.
"""

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.conformance.bodies import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    MESSAGES,
    ONE_PIXEL_PNG,
    RESPONSES,
    body_for,
    said,
)
from tests.conformance.programs import say
from tests.conformance.wire import Answer, Body, Call, ask, eventually, gauge, unfinished_requests

MODEL: Final = "tiny"
BUSY_REQUESTS: Final = 20
"""More than the engine runs at once, so that some wait."""

_MODEL_FOLDER: Final = re.compile(rb'"root":\s*"[^"]*"')
_LONG_LINE_OF_NUMBERS: Final = "0 1 2 3 4 5 6 7 8 9 " * 20_000
_IMAGE: Final = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ONE_PIXEL_PNG}"}}
_USAGE: Final[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}

_ANSWERS: Final[dict[str, tuple[str, Body]]] = {
    "models.json": ("/v1/models", None),
    "chat.json": (CHAT, body_for(CHAT, MODEL)),
    "chat-stream.sse": (CHAT, body_for(CHAT, MODEL, stream=True)),
    "chat-stream-usage.sse": (CHAT, body_for(CHAT, MODEL, **_USAGE)),
    "completions.json": (COMPLETIONS, body_for(COMPLETIONS, MODEL)),
    "completions-stream.sse": (COMPLETIONS, body_for(COMPLETIONS, MODEL, stream=True)),
    "completions-stream-usage.sse": (COMPLETIONS, body_for(COMPLETIONS, MODEL, **_USAGE)),
    "messages.json": (MESSAGES, body_for(MESSAGES, MODEL)),
    "messages-stream.sse": (MESSAGES, body_for(MESSAGES, MODEL, stream=True)),
    "messages-cached.json": (MESSAGES, body_for(MESSAGES, MODEL, text="one two three " * 200)),
    "messages-cached-stream.sse": (MESSAGES, body_for(MESSAGES, MODEL, text="one two three " * 200, stream=True)),
    "count-tokens.json": (COUNT_TOKENS, body_for(COUNT_TOKENS, MODEL)),
    "responses.json": (RESPONSES, body_for(RESPONSES, MODEL)),
    "responses-stream.sse": (RESPONSES, body_for(RESPONSES, MODEL, stream=True)),
}
_ERRORS: Final[dict[str, tuple[str, Body]]] = {
    "chat-unknown-model": (CHAT, body_for(CHAT, "no-such-model")),
    "chat-broken-json": (CHAT, b'{"model": '),
    "chat-no-messages": (CHAT, {"model": MODEL}),
    "chat-prompt-too-long": (CHAT, body_for(CHAT, MODEL, text=_LONG_LINE_OF_NUMBERS)),
    "chat-max-tokens-too-large": (CHAT, body_for(CHAT, MODEL, max_tokens=10_000_000)),
    "chat-image": (CHAT, body_for(CHAT, MODEL, messages=[{"role": "user", "content": [_IMAGE]}])),
    "completions-no-prompt": (COMPLETIONS, {"model": MODEL}),
    "messages-unknown-model": (MESSAGES, body_for(MESSAGES, "no-such-model")),
    "messages-broken-json": (MESSAGES, b'{"model": '),
    "messages-no-max-tokens": (MESSAGES, {"model": MODEL, "messages": said()}),
    "messages-prompt-too-long": (MESSAGES, body_for(MESSAGES, MODEL, text=_LONG_LINE_OF_NUMBERS)),
    "messages-max-tokens-too-large": (MESSAGES, body_for(MESSAGES, MODEL, max_tokens=10_000_000)),
    "messages-server-tool": (
        MESSAGES,
        body_for(MESSAGES, MODEL, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    ),
    "responses-unknown-id": (f"{RESPONSES}/resp_0123456789abcdef", None),
    "chat-wrong-method": (CHAT, None),
    "unknown-path": ("/v1/embeddings", {"model": MODEL, "input": "text"}),
}


def fetch(url: str, target: str, body: Body) -> Answer:
    """One answer; a GET where there is no body."""
    return ask(url, target, body, method="GET" if body is None else "POST")


def busy_metrics(url: str) -> bytes:
    """The metrics page while the engine runs as much as it can and more waits."""
    with ExitStack() as stack:
        for number in range(BUSY_REQUESTS):
            body = body_for(CHAT, MODEL, text=f"Number {number}. " * 40, max_tokens=4_000, stream=True)
            stack.enter_context(Call(url, CHAT, body)).head()
        is_full = eventually(lambda: gauge(url, "vllm:num_requests_waiting") > 0, within_s=30)
        assert is_full, "the engine runs more at once than expected"
        page = ask(url, "/metrics", method="GET").body
    assert eventually(lambda: unfinished_requests(url) == 0, within_s=10)
    return page


def main(url: str, out: Path) -> None:
    """Write all of it."""
    out.mkdir(parents=True, exist_ok=True)
    heads: dict[str, Any] = {}

    def write(name: str, content: bytes) -> None:
        (out / name).write_bytes(_MODEL_FOLDER.sub(b'"root":"/models/tiny"', content))
        say(f"{name}: {len(content)} bytes")

    write("metrics.txt", ask(url, "/metrics", method="GET").body)
    for name, (target, body) in _ANSWERS.items():
        if "-cached" in name:  # asked twice, so that the second finds its prefix
            fetch(url, target, body)
        answer = fetch(url, target, body)
        assert answer.status == 200, answer.body
        heads[name] = {"status": answer.status, "headers": answer.headers}
        write(name, answer.body)
    errors = {}
    for name, (target, body) in _ERRORS.items():
        answer = fetch(url, target, body)
        errors[name] = {"path": target, "status": answer.status, "headers": answer.headers, "body": answer.json()}
    write("errors.json", json.dumps(errors, indent=1).encode() + b"\n")
    write("headers.json", json.dumps(heads, indent=1).encode() + b"\n")
    write("metrics-busy.txt", busy_metrics(url))


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
