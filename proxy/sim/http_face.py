"""The simulated engine's HTTP server: vLLM's routes, headers and event framing in front of one driver.

Built by `running.start_engine`; shapes live in `asks`, `faults` and the `wire` files. A client that leaves takes its
request out of the engine at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from proxy.sim.answers import plan_answer
from proxy.sim.asks import (
    Ask,
    Limits,
    Reader,
    read_chat,
    read_completion,
    read_count,
    read_messages,
    read_tokenize,
)
from proxy.sim.checks import read_json
from proxy.sim.driver import Driver, EngineDied, Ticket
from proxy.sim.faults import Fault
from proxy.sim.metrics_page import metrics_page
from proxy.sim.presets import EngineConfig
from proxy.sim.prompts import Prompt, chained_keys
from proxy.sim.sequence import EngineRequest
from proxy.sim.text import count_tokens, token_ids
from proxy.sim.wire import Generation, Wire
from proxy.sim.wire_anthropic import MessagesWire
from proxy.sim.wire_openai import ChatWire, CompletionWire

LARGEST_BODY_BYTES = 256 * 1024 * 1024
"""vLLM sets no limit; this one only keeps a mistake from filling the memory."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Face:
    """What the routes serve.

    Attributes:
        drivers: one for each engine, by data parallel rank.
        models: served names, the engine's own first.
        adapters: names of LoRA adapters, which may change while it runs.
        name: shown as the model's root in `/v1/models`.
        unix_now: wall-clock seconds, for `created` fields only.
    """

    drivers: Sequence[Driver]
    models: Sequence[str]
    name: str
    unix_now: Callable[[], float]
    started_at: float
    adapters: list[str]

    @property
    def config(self) -> EngineConfig:
        """What all its engines are like."""
        return self.drivers[0].engine.config

    def driver_for(self, rank: str | None) -> Driver:
        """The engine that a request asks for by `X-data-parallel-rank`, else the one with the fewest.

        Raises:
            Fault: there is no such rank.
        """
        try:
            wanted = int(rank) if rank is not None else None
        except ValueError:
            wanted = None  # as vLLM does
        if wanted is None:
            return min(self.drivers, key=lambda driver: driver.inflight)
        if not 0 <= wanted < len(self.drivers):
            raise Fault(f"data_parallel_rank {wanted} is out of range [0, {len(self.drivers)}).")
        return self.drivers[wanted]

    @property
    def limits(self) -> Limits:
        """What a request may ask for."""
        config = self.config
        return Limits((*self.models, *self.adapters), config.max_model_len, config.image_tokens)


def build_app(face: Face) -> web.Application:
    """The application with all routes."""
    routes = _Routes(face)
    app = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[_as_vllm_words_it])
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.post("/v1/chat/completions", routes.generating(read_chat, ChatWire)),
            web.post("/v1/completions", routes.generating(read_completion, CompletionWire)),
            web.post("/v1/messages", routes.generating(read_messages, MessagesWire)),
            web.post("/v1/messages/count_tokens", routes.count_tokens),
            web.post("/tokenize", routes.tokenize),
            web.get("/v1/models", routes.models, allow_head=False),
            web.get("/health", routes.health, allow_head=False),
            web.get("/ping", routes.health, allow_head=False),
            web.get("/version", routes.version, allow_head=False),
            web.get("/metrics", routes.metrics, allow_head=False),
        ]
    )
    return app


class _Routes:
    """One method a route; what the generating ones share is in `_Exchange`."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._numbers = count()

    def generating(self, read: Reader, wire: Callable[[], Wire]) -> Handler:
        """The handler of a route that generates tokens."""

        async def handle(request: web.Request) -> web.StreamResponse:
            ask = await self._read(request, read)
            answer_id = request.headers.get("X-Request-Id") or uuid4().hex[:16]
            driver = self._face.driver_for(request.headers.get("X-data-parallel-rank"))
            exchange = _Exchange(self._face, driver, ask, wire(), answer_id=answer_id, number=next(self._numbers))
            return await exchange.serve(request)

        return handle

    async def count_tokens(self, request: web.Request) -> web.Response:
        """What a Messages request would cost, without generating anything."""
        tokens = count_tokens((await self._read(request, read_count)).encoded)
        return _json({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    async def tokenize(self, request: web.Request) -> web.Response:
        """The tokens of a text or of a chat."""
        ids = token_ids((await self._read(request, read_tokenize)).encoded)
        limit = self._face.limits.context_tokens
        return _json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def models(self, _request: web.Request) -> web.Response:
        """The served models."""
        face = self._face
        models = [self._card(name, face.name, None, face.limits.context_tokens) for name in face.models]
        adapters = [self._card(name, f"/adapters/{name}", face.models[0], None) for name in face.adapters]
        return _json({"object": "list", "data": models + adapters})

    async def health(self, _request: web.Request) -> web.Response:
        """Alive."""
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        """The version whose shapes are imitated."""
        return _json({"version": "0.32.0"})

    async def metrics(self, _request: web.Request) -> web.Response:
        """The metrics page."""
        face = self._face
        engines = [(driver.engine, driver.stats) for driver in face.drivers]
        page = metrics_page(engines, face.models[0], face.started_at)
        return web.Response(body=page.encode(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"})

    async def _read(self, request: web.Request, read: Reader) -> Ask:
        body = read_json(await request.read(), request.headers.get("Content-Type", ""))
        try:
            return read(body, self._face.limits)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The schema is checked where vLLM's words matter; anything odder is refused in words of our own.
            raise Fault(f"the request cannot be understood: {error}") from error

    def _card(self, name: str, root: str, parent: str | None, context_tokens: int | None) -> dict[str, Any]:
        created = int(self._face.unix_now())
        permission = {
            "id": f"modelperm-{uuid4().hex[:16]}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": context_tokens,
            "permission": [permission],
        }


class _Exchange:
    """One generating request from the engine's door to the client."""

    def __init__(self, face: Face, driver: Driver, ask: Ask, wire: Wire, *, answer_id: str, number: int) -> None:
        config = face.config
        answer = plan_answer(
            blake2b(ask.encoded, digest_size=16).digest(),
            ask.max_tokens,
            ignore_eos=ask.ignore_eos,
            min_tokens=ask.min_tokens,
            tool=ask.tool,
        )
        prompt_tokens = count_tokens(ask.encoded)
        # The keys reach over the answer: what is generated can be found by the next turn.
        adapter = ask.model.encode() if ask.model in face.adapters else b""
        keys = chained_keys(ask.encoded + answer.encoded, config.block_tokens, adapter)
        self._driver = driver
        self._wire = wire
        self._request = EngineRequest(f"{answer_id}-{number}", Prompt(prompt_tokens, keys), len(answer.pieces))
        self._generation = Generation(
            ask=ask,
            answer=answer,
            answer_id=answer_id,
            created=int(face.unix_now()),
            prompt_tokens=prompt_tokens,
        )

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Run it to its end; a cancelled handler (the client left) aborts it."""
        generation = self._generation
        ticket = self._driver.submit(
            self._request, max_tokens=generation.ask.max_tokens, finish_reason=generation.answer.finish_reason
        )
        try:
            if generation.ask.is_stream:
                return await self._stream(request, ticket)
            while not generation.is_complete:
                generation.take(await ticket.next_gain())
            generation.cached_tokens = ticket.cached_tokens
            return _json(self._wire.whole(generation))
        except ConnectionError as error:
            # The client left between two looks at its connection: the same end as a cancelled handler.
            raise asyncio.CancelledError from error
        finally:
            self._driver.abort(self._request.request_id)

    async def _stream(self, request: web.Request, ticket: Ticket) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # vLLM sends its headers before anything is scheduled.
        await response.prepare(request)
        generation, wire = self._generation, self._wire
        while not generation.is_complete:
            gained = await ticket.next_gain()
            generation.cached_tokens = ticket.cached_tokens
            start, end = generation.take(gained)
            events = wire.first(generation) if start == 0 else []
            events += wire.delta(generation, start, end)
            if generation.is_complete:
                events += wire.last(generation)
            # One write an event: a reader meets the same boundaries as with vLLM.
            for data in events:
                await response.write(data)
        await response.write_eof()
        return response


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers={"Content-Type": "application/json"})


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"
    response.headers["Vary"] = "Origin"
    if isinstance(response, web.Response) and response.body is None:
        response.headers.popall("Content-Type", None)


@web.middleware
async def _as_vllm_words_it(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refusals in the route's dialect; unknown paths and methods as vLLM's framework answers them."""
    try:
        return await handler(request)
    except Fault as fault:
        is_anthropic = request.path.startswith("/v1/messages")
        return _json(fault.body(is_anthropic=is_anthropic), fault.status)
    except EngineDied:
        dead = Fault("EngineCore encountered an issue.", status=500, kind="InternalServerError")
        return _json(dead.body(is_anthropic=request.path.startswith("/v1/messages")), 500)
    except web.HTTPMethodNotAllowed as error:
        response = _json({"detail": "Method Not Allowed"}, 405)
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except web.HTTPNotFound:
        return _json({"detail": "Not Found"}, 404)
