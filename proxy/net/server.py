"""The data port: takes a client's request, finds out what it is, and has it answered. Every request ends in one record.

aiohttp parses; what happens afterwards is ours: the answer goes straight to the client's transport, whoever makes it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import HttpVersion11, web

from proxy.core.errors import Refusal, RouteMissing
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.ports import Clock, Recorder
from proxy.core.requests import Dialect, RequestView
from proxy.core.retry_hints import LONGEST_S, hint_s
from proxy.core.turns import Turn
from proxy.dialects import missing_routes, model_list, request_body, routes
from proxy.dialects.errors import error_body
from proxy.dialects.model_names import ModelNames
from proxy.dialects.rewriting import Rewriter
from proxy.dialects.turns import turn_of
from proxy.dispatch import Dispatcher
from proxy.net.auth import Gatekeeper
from proxy.net.client_side import ClientSide
from proxy.net.connection import ClientConnection
from proxy.net.early_stream import EarlyStream, EarlyStreamSettings
from proxy.net.header_rules import forwarded_headers
from proxy.net.keepalive import KeepAlive
from proxy.net.request_reading import BodyAccount, BodyBudget, check_head, read_body, request_id_of
from proxy.state.models import ModelTable

_LOGGER: Final = logging.getLogger("tidegate")
_JSON: Final = (b"Content-Type", b"application/json")
_MODELS_PATH: Final = "/v1/models"
_NO_RECEIPTS: Final[tuple[tuple[bytes, bytes], ...]] = ()
_SHORT_WAIT_S: Final = 3
_LARGE_BODY_BYTES: Final = 2 * 2**20
"""Reading one of these takes longer than a task switch to another thread is felt: 6 ms for 2 MB, 25 ms for 8 MB.

The other thread holds the interpreter while it parses, so this halves the pause of all others and does not end it.
"""
_CUT_OFF_S: Final = 0.2
"""How long a request that is cut off may take to say so to its client."""


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """What an admin path answers."""

    body: bytes
    content_type: str
    status: int = 200


AdminPaths = Mapping[str, Callable[[str], AdminAnswer]]
"""Path to a function of the Accept header."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of the data port; seconds and bytes as their names say.

    Attributes:
        early_stream: when a request that waits is given its stream; None for never.
    """

    headers_s: float
    body_s: float
    keepalive_s: float
    write_stall_s: float
    body_bytes: int
    header_field_bytes: int
    headers: int
    early_stream: EarlyStreamSettings | None = None


class _Answered(web.StreamResponse):
    """Tells aiohttp that the answer is already on the wire."""

    def __init__(self, client: ClientSide | None) -> None:
        # Not the base's: status and headers that nobody will look at cost more than the rest of this.
        self._client = client

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request."""
        return self._client is not None and self._client.keep_alive and self._client.is_complete

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to write."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class DataServer(web.Server):
    """Answers clients.

    Args:
        keep_alive: looks after requests while they wait.
        admin_paths: admin paths to answer on this port too.
        is_draining: whether the proxy is about to stop, so that connections are not kept.
        names: aliases of models; None where none are configured.
        rewriter: makes the changes to requests that settings ask for; None where none does.
    """

    def __init__(
        self,
        *,
        settings: ServerSettings,
        dispatcher: Dispatcher[ClientSide],
        models: ModelTable,
        gatekeeper: Gatekeeper,
        budget: BodyBudget,
        recorder: Recorder,
        clock: Clock,
        keep_alive: KeepAlive,
        admin_paths: AdminPaths,
        is_draining: Callable[[], bool],
        names: ModelNames | None = None,
        rewriter: Rewriter | None = None,
    ) -> None:
        super().__init__(self._handle, handler_cancellation=True, access_log=None)
        self._settings = settings
        self._dispatcher = dispatcher
        self._models = models
        self._gatekeeper = gatekeeper
        self._budget = budget
        self._recorder = recorder
        self._clock = clock
        self._keep_alive = keep_alive
        self._admin_paths = admin_paths
        self._is_draining = is_draining
        self._names = names
        self._rewriter = rewriter
        self._running = 0
        self._none_runs: asyncio.Event | None = None

    def __call__(self) -> ClientConnection:
        """A connection's protocol, for the listening socket."""
        settings = self._settings
        return ClientConnection(
            self,
            loop=self._loop,
            refuse_head=self._refuse_head,
            headers_s=settings.headers_s,
            keepalive_timeout=settings.keepalive_s,
            max_line_size=settings.header_field_bytes,
            max_field_size=settings.header_field_bytes,
            max_headers=settings.headers,
            lingering_time=5.0,  # after an early refusal: what the client still sends is read for so long, then cut
            auto_decompress=False,
            access_log=None,
        )

    def pre_shutdown(self) -> None:
        """aiohttp would drop bodies that are still arriving here; see `shutdown`."""

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's own name
        """Close idle connections, let running requests end for `timeout` seconds, then cut them off, told so."""
        for connection in self._client_connections():
            connection.close_if_idle()
        await self._until_none_runs(timeout or _CUT_OFF_S)
        for connection in self._client_connections():
            connection.cancel_request()
        await self._until_none_runs(_CUT_OFF_S)
        await super().shutdown(_CUT_OFF_S)

    def _client_connections(self) -> list[ClientConnection]:
        return [connection for connection in self.connections if isinstance(connection, ClientConnection)]

    async def _until_none_runs(self, limit_s: float) -> None:
        if not self._running:
            return
        self._none_runs = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._none_runs.wait()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        client = self._client_of(request)
        self._running += 1
        try:
            path = request.raw_path.partition("?")[0]
            if not self._is_answered_here(request, path, client):
                await self._serve(request, path, client)
            return _Answered(client)
        finally:
            client.detach()
            self._running -= 1
            if not self._running and self._none_runs is not None:
                self._none_runs.set()

    def _is_answered_here(self, request: web.BaseRequest, path: str, client: ClientSide) -> bool:
        """Answer what is no request: nothing is counted, no backend touched; says whether it was."""
        if request.method == "HEAD" and path == "/":
            # Claude Code asks whether anybody is there.
            client.start(200, b"", (), 0)
            client.write(b"", is_last=True)
            return True
        admin = self._admin_paths.get(path)
        if admin is None or request.method != "GET":
            return False
        answer = _admin_answer(admin, request.headers.get("Accept", ""))
        self._answer(client, answer.status, answer.body, ((b"Content-Type", answer.content_type.encode()),))
        return True

    async def _serve(self, request: web.BaseRequest, path: str, client: ClientSide) -> None:
        exchange = Exchange(request_id=request_id_of(request), recorder=self._recorder, clock=self._clock)
        with exchange, self._budget.account() as account:
            try:
                await self._respond(request, path, client, exchange, account)
            except Refusal as refusal:
                exchange.finish(refusal.outcome, refusal.status, str(refusal))
                self._refuse(request, client, refusal, exchange.request_id)
            except asyncio.CancelledError:
                if not client.is_gone and not client.is_started:
                    # Not the client's doing: the proxy is stopping. It is told, so that it may ask another one.
                    stopping = Refusal(Outcome.ABORTED, 503, "The proxy is stopping.", retry_after_s=1, close=True)
                    exchange.finish(stopping.outcome, stopping.status, str(stopping))
                    self._refuse(request, client, stopping, exchange.request_id)
                raise
            except Exception as error:  # the outermost handler: a fault of ours is an answer too
                _LOGGER.exception("a request failed")
                exchange.finish(Outcome.INTERNAL_ERROR, 500, type(error).__name__)
                fault = Refusal(Outcome.INTERNAL_ERROR, 500, "The proxy failed; its log says why.", close=True)
                self._refuse(request, client, fault, exchange.request_id)

    async def _respond(
        self, request: web.BaseRequest, path: str, client: ClientSide, exchange: Exchange, account: BodyAccount
    ) -> None:
        options = check_head(request)
        self._gatekeeper.check(request.headers)
        if path.startswith(_MODELS_PATH) and _is_models_path(path):
            exchange.route = "models"
            self._list_models(request, path, client, exchange)
            return
        route, response_id = routes.match(request.method, path)
        exchange.route = route.name
        settings = self._settings
        body = await read_body(request, account, limit_bytes=settings.body_bytes, timeout_s=settings.body_s)
        exchange.request_bytes = len(body)
        is_json_post = request.method == "POST" and not path.endswith("/cancel")
        is_large = len(body) > _LARGE_BODY_BYTES
        if not is_json_post:
            facts = request_body.BodyFacts()
        elif is_large:
            facts = await asyncio.to_thread(request_body.read_body, route, body)
        else:
            facts = request_body.read_body(route, body)
        receipts, hides_usage = _NO_RECEIPTS, False
        if self._rewriter is not None and is_json_post:
            body, facts, receipts, hides_usage = self._rewriter.rewrite(route, body, facts)
        exchange.is_stream = facts.is_stream
        turn: Turn | None = None
        if route.generates and is_json_post:
            if is_large:
                turn = await asyncio.to_thread(turn_of, request.headers, facts.fields, body)
            else:
                turn = turn_of(request.headers, facts.fields, body)
        view = RequestView(
            request_id=exchange.request_id,
            route=route,
            method=request.method,
            target=request.raw_path,
            headers=forwarded_headers(request.raw_headers, options),
            body=body,
            arrived_at=exchange.arrived_at,
            model=facts.model,
            is_stream=facts.is_stream,
            response_id=response_id or facts.previous_response_id,
            turn=turn,
            receipts=receipts,
            hides_usage=hides_usage,
        )
        if settings.early_stream is not None and turn is not None and facts.is_stream:
            await self._serve_stream(view, client, exchange, settings.early_stream)
            return
        try:
            await self._dispatcher.serve(view, client, exchange)
        except RouteMissing:
            if route.name != "count_tokens":
                raise
            exchange.finish(Outcome.COMPLETED, 200, "no backend counts tokens; the answer is an estimate")
            headers = (_JSON, (b"x-request-id", exchange.request_id.encode()), missing_routes.ESTIMATE_HEADER)
            self._answer(client, 200, missing_routes.estimated_count(facts.fields), headers)

    async def _serve_stream(
        self, view: RequestView, client: ClientSide, exchange: Exchange, settings: EarlyStreamSettings
    ) -> None:
        """Serve a request whose stream may be opened while it waits."""
        stream = EarlyStream(view, client, exchange, settings)
        self._keep_alive.add(stream)
        try:
            await self._dispatcher.serve(view, client, exchange)
        finally:
            self._keep_alive.discard(stream)

    def _list_models(self, request: web.BaseRequest, path: str, client: ClientSide, exchange: Exchange) -> None:
        if request.method != "GET":
            raise routes.method_not_allowed(request.method, path, "GET")
        is_anthropic = _dialect_of(request) is Dialect.ANTHROPIC
        cards = self._models.merged() if self._names is None else self._names.listed(self._models.merged())
        if path == _MODELS_PATH:
            body = model_list.anthropic_list(cards) if is_anthropic else model_list.openai_list(cards)
        else:
            name = unquote(path[len(_MODELS_PATH) + 1 :])
            card = next((card for card in cards if card["id"] == name), None)
            if card is None:
                raise Refusal(Outcome.REFUSED_NOT_FOUND, 404, f"The model {routes.clipped(name)} is not served here.")
            body = model_list.anthropic_card(card) if is_anthropic else model_list.openai_card(card)
        exchange.finish(Outcome.COMPLETED, 200)
        self._answer(client, 200, body, (_JSON, (b"x-request-id", exchange.request_id.encode())))

    def _client_of(self, request: web.BaseRequest) -> ClientSide:
        connection: Any = request.protocol
        return ClientSide(
            connection,
            is_http11=request.version >= HttpVersion11,
            keep_alive=bool(request.keep_alive),
            is_draining=self._is_draining,
            is_head=request.method == "HEAD",
            write_stall_s=self._settings.write_stall_s,
        )

    def _answer(self, client: ClientSide, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        client.answer(status, b"", headers, body)

    def _refuse(self, request: web.BaseRequest, client: ClientSide, refusal: Refusal, request_id: str) -> None:
        if client.is_started:
            client.break_off()
            return
        dialect = _dialect_of(request)
        headers = [_JSON, (b"x-request-id", request_id.encode())]
        if dialect is Dialect.ANTHROPIC:
            headers.append((b"request-id", request_id.encode()))
        if refusal.retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % _retry_after_s(refusal.retry_after_s, request_id)))
        elif 400 <= refusal.status < 500:
            headers.append((b"x-should-retry", b"false"))
        if refusal.allow is not None:
            headers.append((b"Allow", refusal.allow.encode()))
        if refusal.status == 401:
            headers.append((b"WWW-Authenticate", b"Bearer"))
        client.keep_alive = client.keep_alive and not refusal.close
        body = error_body(dialect, refusal.status, refusal.message, refusal.outcome)
        self._answer(client, refusal.status, body, tuple(headers))

    def _refuse_head(self, request: web.BaseRequest, status: int, message: str) -> web.StreamResponse:
        """What aiohttp's parser refused: it is recorded like any other request."""
        connection: Any = request.protocol
        client = ClientSide(connection, is_http11=True, keep_alive=False, write_stall_s=self._settings.write_stall_s)
        exchange = Exchange(request_id=request_id_of(request), recorder=self._recorder, clock=self._clock)
        refusal = Refusal(Outcome.REFUSED_BAD_REQUEST, status, message, close=True)
        with exchange:
            exchange.finish(refusal.outcome, status, message)
            self._refuse(request, client, refusal, exchange.request_id)
        client.detach()
        return _Answered(client)


def _retry_after_s(seconds: int, request_id: str) -> int:
    """Short waits are constants of ours and are spread here; the queue has spread longer ones itself."""
    return hint_s(seconds, request_id) if seconds <= _SHORT_WAIT_S else min(seconds, LONGEST_S)


def _admin_answer(admin: Callable[[str], AdminAnswer], accept: str) -> AdminAnswer:
    try:
        return admin(accept)
    except Exception:  # an outermost handler: a page that fails is no fault of who asked for it
        _LOGGER.exception("an admin page failed")
        return AdminAnswer(b"this page failed; the log says why\n", "text/plain; charset=utf-8", 500)


def _is_models_path(path: str) -> bool:
    """Whether this is the list of models, or one of them."""
    return path == _MODELS_PATH or (path.startswith(_MODELS_PATH + "/") and len(path) > len(_MODELS_PATH) + 1)


def _dialect_of(request: web.BaseRequest) -> Dialect:
    """Whose shapes a client expects: its path says so, and on the shared model routes a header does."""
    is_shared = request.raw_path.startswith(_MODELS_PATH)
    if is_shared and "anthropic-version" in request.headers:
        return Dialect.ANTHROPIC
    return routes.dialect_of(request.raw_path)
