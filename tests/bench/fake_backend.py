"""The fake engine behind every proxy of the benchmark: vLLM's answers without a model, as cheap as Python sends them.

`python -m tests.bench.fake_backend PORT` serves until its parent ends it; it must never be the part that is measured.
"""

import asyncio
import itertools
import sys
from typing import Any, cast

import httptools
import orjson
import uvloop

MODEL = "bench-model"
EVENTS_BESIDE_TOKENS = 2  # the role chunk that opens a stream and the usage chunk that vLLM sends last
_MAX_MODEL_LEN = 1_048_576
_STREAM_ID = "chatcmpl-5f0c2b7d9a4e4e1c8f60a3d1b2c4e6f8"
_CREATED = 1_764_500_000

_ANSWER_TEXT = "The relay keeps every byte as it came, and the engine never learns that somebody stood between. " * 2
ANSWER = orjson.dumps(
    {
        "id": _STREAM_ID,
        "object": "chat.completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": _ANSWER_TEXT, "refusal": None, "tool_calls": []},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {"prompt_tokens": 24, "total_tokens": 64, "completion_tokens": 40, "prompt_tokens_details": None},
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }
)
_MODELS = orjson.dumps(
    {
        "object": "list",
        "data": [
            {
                "id": MODEL,
                "object": "model",
                "created": _CREATED,
                "owned_by": "vllm",
                "root": MODEL,
                "parent": None,
                "max_model_len": _MAX_MODEL_LEN,
                "permission": [],
            }
        ],
    }
)
# 64 million KV tokens: admission must never be what a benchmark waits for.
_METRICS = f"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} %d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.001
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="{MODEL}"}} 0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="{MODEL}"}} 0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="{MODEL}"}} 0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",effective_attention_block_size="16",enable_prefix_caching="True",engine="0",\
kv_cache_max_concurrency="61.03515625",kv_cache_size_tokens="64000000",num_gpu_blocks="4000001"}} 1
"""

_JSON, _TEXT, _SSE = (
    b"application/json",
    b"text/plain; version=0.0.4; charset=utf-8",
    b"text/event-stream; charset=utf-8",
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %b\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n" % _SSE
)


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
    body = {
        "id": _STREAM_ID,
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": MODEL,
        "choices": choices,
    }
    return _framed(b"data: " + orjson.dumps(body | more) + b"\n\n")


def _choice(delta: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | more


_FIRST = _chunk([_choice({"role": "assistant", "content": ""})], prompt_token_ids=None)
_TOKEN = _chunk([_choice({"content": " tide"}, token_ids=None)])
_LAST = _chunk([_choice({"content": "."}, finish_reason="length", stop_reason=None, token_ids=None)])
_END = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine:
    """What the connections share: how many requests run, and how starts are spread over one interval."""

    def __init__(self) -> None:
        self.running = 0
        self.phases = itertools.count()

    def next_phase(self) -> float:
        """A fraction of an interval, spread evenly however many streams open."""
        return next(self.phases) * 0.618034 % 1


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.timer: asyncio.TimerHandle | None = None
        self.url = self.body = b""
        self.tokens_left = self.tokens = 0
        self.interval_s = self.due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class, the same methods

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Stop a stream whose reader left, as vLLM does."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.engine.running -= 1

    def data_received(self, data: bytes) -> None:
        """Parse; a malformed request ends the connection."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._answer(b"400 Bad Request", _JSON, b'{"error":{"message":"malformed request"}}')
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        """Begin a request."""
        self.url = url
        self.body = b""

    def on_body(self, data: bytes) -> None:
        """Gather the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """Answer it."""
        path = self.url.partition(b"?")[0]
        if path == b"/v1/chat/completions":
            self._chat()
        elif path == b"/metrics":
            self._answer(b"200 OK", _TEXT, (_METRICS % self.engine.running).encode())
        elif path == b"/v1/models":
            self._answer(b"200 OK", _JSON, _MODELS)
        elif path == b"/version":
            self._answer(b"200 OK", _JSON, b'{"version":"0.27.1"}')
        elif path in {b"/health", b"/ping"}:
            self._answer(b"200 OK", _JSON, b"")
        else:
            self._answer(b"404 Not Found", _JSON, b'{"detail":"Not Found"}')

    def _answer(self, status: bytes, content_type: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, content_type, len(body)) + body)

    def _chat(self) -> None:
        try:
            asked = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            self._answer(b"400 Bad Request", _JSON, b'{"error":{"message":"the body did not arrive whole"}}')
            return
        if not asked.get("stream"):
            self._answer(b"200 OK", _JSON, ANSWER)
            return
        self.engine.running += 1
        self.tokens = self.tokens_left = asked["max_tokens"]
        self.interval_s = asked["vllm_xargs"]["interval_us"] / 1e6
        self.due_s = self.loop.time() + self.interval_s * (1 + self.engine.next_phase())
        self.transport.write(_STREAM_HEAD + _FIRST)
        self.timer = self.loop.call_at(self.due_s, self._send_token)

    def _send_token(self) -> None:
        self.tokens_left -= 1
        if self.tokens_left:
            self.transport.write(_TOKEN)
            self.due_s += self.interval_s
            self.timer = self.loop.call_at(self.due_s, self._send_token)
            return
        self.timer = None
        self.engine.running -= 1
        usage = {"prompt_tokens": 24, "total_tokens": 24 + self.tokens, "completion_tokens": self.tokens}
        self.transport.write(_LAST + _chunk([], usage=usage) + _END)


async def serve(port: int) -> None:
    """Listen on loopback until the process is ended."""
    engine = Engine()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(engine), "127.0.0.1", port, backlog=2048, reuse_address=True
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
