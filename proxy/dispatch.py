"""One request's life between its arrival and its last attempt: where decisions meet I/O.

Between looking at the backends and reserving a place on one nothing else can run: `_place` and the gate are plain code.
That is the whole concurrency design; more than one process would need a shared ledger.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from proxy.core.backends import Backend
from proxy.core.errors import OVERLOAD_STATUSES, ModelUnknown, Refusal, Retry, UpstreamError
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.ports import ClientT_contra, Clock, Forwarder
from proxy.core.requests import AttemptResult, RequestView
from proxy.core.turns import Turn, TurnEnd
from proxy.dialects import missing_routes, unknown_models
from proxy.gate import Placement
from proxy.policy.candidates import Chance, fewest_inflight
from proxy.policy.tags import ModelTags
from proxy.state.health import HealthTable
from proxy.state.ledger import Ledger, Reservation
from proxy.state.models import ModelTable
from proxy.state.ranks import RankTable
from proxy.state.route_gaps import RouteGaps
from proxy.state.stored_responses import StoredResponses
from proxy.waiting_room import WaitingRoom

_RETRY_AFTER_DOWN_S = 2
"""One probe interval: a backend that is back is found by then."""
_CONNECT, _OVERLOADED, _WITHOUT_ROUTE = "connect", "overloaded", "no_route"
"""Why another backend is tried; labels of a metric."""
_NOT_FOUND = 404
_COMPLETED = Outcome.COMPLETED
_STATUS_OF_FAILURE = {Outcome.UPSTREAM_ERROR_CONNECT: 503, Outcome.UPSTREAM_ERROR_TIMEOUT: 504}
"""Whatever else goes wrong before a byte has reached the client is a 502."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What dispatch knows of the backends; every part has its own owner.

    Attributes:
        tags: which backends models are kept to; None where nothing is said about that.
    """

    backends: Sequence[Backend]
    health: HealthTable
    models: ModelTable
    ledger: Ledger
    stored_responses: StoredResponses
    route_gaps: RouteGaps = field(default_factory=RouteGaps)
    tags: ModelTags | None = None
    ranks: RankTable = field(default_factory=RankTable)

    def is_room_up(self, room: str) -> bool:
        """Whether the backend behind one of the gate's rooms may take work, and the room is one of its."""
        if self.ranks.is_plain:
            return self.health.is_up(room)  # asked for each backend and request
        return self.health.is_up(self.ranks.place_of(room)[0]) and self.ranks.is_current(room)


class _FailedAttempt(Exception):  # noqa: N818 - carries an error between two methods
    """One attempt failed before anything had reached the client."""

    def __init__(self, backend: Backend, error: UpstreamError) -> None:
        super().__init__(str(error))
        self.backend = backend
        self.error = error


class _Progress:
    """Tells the gate how far a placed turn has come."""

    __slots__ = ("_clock", "_placement", "_room")

    def __init__(self, room: WaitingRoom, placement: Placement, clock: Clock) -> None:
        self._room = room
        self._placement = placement
        self._clock = clock

    def first_token(self) -> None:
        """The prompt is computed: the prefill gate may let the next one through."""
        self._room.gate.first_token(self._placement, self._clock())
        self._room.pump((self._placement.backend,))

    def generated(self, tokens: int) -> None:
        """The answer has grown."""
        self._room.gate.generated(self._placement, tokens)


class Dispatcher(Generic[ClientT_contra]):
    """Places requests and carries them through their attempts.

    Args:
        fleet: the backends and what is known of them.
        waiting_room: where generating requests wait for the gate; None lets everything start at once.
        forwarder: makes one attempt.
        clock: monotonic seconds.
        chance: decides between equal candidates.
        max_attempts: backends tried at most for one request.
        on_down: told the name of a backend that traffic found dead.
        on_route_missing: told the names of a backend and of a route that it was found not to have.
        refuses_unknown_models: whether a model that no backend lists is refused here instead of by some engine.
        look_for_models: asks the backends anew which models they have, before one is refused.
        on_not_found: told the name of a backend that answered 404: it may not have a model any more.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        waiting_room: WaitingRoom | None = None,
        forwarder: Forwarder[ClientT_contra],
        clock: Clock,
        chance: Chance,
        max_attempts: int,
        on_down: Callable[[str], None] | None = None,
        on_route_missing: Callable[[str, str], None] | None = None,
        refuses_unknown_models: bool = False,
        look_for_models: Callable[[], Awaitable[None]] | None = None,
        on_not_found: Callable[[str], None] | None = None,
    ) -> None:
        self._fleet = fleet
        self._by_name = {backend.name: backend for backend in fleet.backends}
        self._waiting_room = waiting_room
        self._forwarder = forwarder
        self._clock = clock
        self._chance = chance
        self._max_attempts = max_attempts
        self._on_down = on_down
        self._on_route_missing = on_route_missing
        self._refuses_unknown_models = refuses_unknown_models
        self._look_for_models = look_for_models
        self._on_not_found = on_not_found

    async def serve(self, view: RequestView, client: ClientT_contra, exchange: Exchange) -> None:
        """Give the client an answer from some backend.

        Raises:
            Refusal: no backend can take it, or every attempt failed before a byte had reached the client.
        """
        exchange.model = self._fleet.models.label(view.model)
        tried: list[Backend] = []
        has_looked = self._look_for_models is None
        while True:
            try:
                if self._waiting_room is not None and view.turn is not None:
                    result, backend = await self._attempt_admitted(view, view.turn, tried, client, exchange)
                else:
                    reservation = self._place(self._candidates(view, tried))
                    result, backend = await self._attempt(reservation, view, tried, client, exchange)
            except _FailedAttempt as failed:
                tried.append(failed.backend)
                self._after_failure(failed.error, view, tried, exchange)
                continue
            except ModelUnknown:
                if has_looked:
                    raise
                assert self._look_for_models is not None
                has_looked = True
                await self._look_for_models()
                exchange.model = self._fleet.models.label(view.model)
                continue
            self._learn(view, result, backend)
            exchange.finish_with(result)
            return

    async def _attempt_admitted(
        self,
        view: RequestView,
        turn: Turn,
        tried: Sequence[Backend],
        client: ClientT_contra,
        exchange: Exchange,
    ) -> tuple[AttemptResult, Backend]:
        """Wait for the gate, then make one attempt where it says; its room is given back however that ends."""
        room, ranks = self._waiting_room, self._fleet.ranks
        assert room is not None
        if weights := self._fleet.models.weights_of(view.model):
            turn = turn.of_weights(weights)

        def names() -> Sequence[str]:
            found = [backend.name for backend in self._candidates(view, tried)]
            if not ranks.has_several:
                return found
            if not view.route.takes_rank:
                # The backend chooses, so nothing of it may be believed of one rank.
                return [ranks.pool_of(name) for name in found]
            return [one for name in found for one in ranks.rooms_of(name)]

        placement = await room.admit(view, turn, names, exchange)
        end, was_not_served = TurnEnd(), False
        try:
            name, exchange.rank = ranks.place_of(placement.backend)
            backend = self._by_name[name]
            reservation = self._fleet.ledger.reserve(backend)
            progress = _Progress(room, placement, self._clock)
            result, _ = await self._attempt(reservation, view, tried, client, exchange, placed=(placement, progress))
            end = _turn_end(result)
        except _FailedAttempt as failed:
            was_not_served = failed.error.retry is Retry.ELSEWHERE
            raise
        except BaseException:
            if exchange.result is not None:
                end = _turn_end(exchange.result)  # cut short: what was seen until then still counts
            raise
        finally:
            room.end(placement, end, was_not_served=was_not_served)
        return result, backend

    async def _attempt(
        self,
        reservation: Reservation,
        view: RequestView,
        tried: Sequence[Backend],
        client: ClientT_contra,
        exchange: Exchange,
        *,
        placed: "tuple[Placement, _Progress] | None" = None,
    ) -> tuple[AttemptResult, Backend]:
        """One attempt on the reserved backend, of a turn that the gate has placed or of something else.

        Raises:
            _FailedAttempt: nothing has reached the client.
        """
        backend = reservation.backend
        exchange.backend = backend.name
        placement, progress = placed or (None, None)

        def may_move() -> bool:
            return self._may_move(view, [*tried, backend], exchange)

        with reservation:
            try:
                result = await self._forwarder.forward(view, backend, client, exchange, progress, may_move=may_move)
            except UpstreamError as error:
                reservation.close(error.outcome)
                self._note_if_full(placement, is_full=error.is_overloaded)
                raise _FailedAttempt(backend, error) from error
            reservation.close(result.outcome)
            self._note_if_full(placement, is_full=result.status in OVERLOAD_STATUSES)
        return result, backend

    def _may_move(self, view: RequestView, tried: Sequence[Backend], exchange: Exchange) -> bool:
        """Whether a request that a backend has no room for is tried on another one: once, and where it can be served.

        Args:
            view: the request.
            tried: backends that were asked, the full one included.
            exchange: knows what was repeated already.
        """
        if _OVERLOADED in exchange.retries or len(tried) >= self._max_attempts:
            return False
        if self._holder(view) == tried[-1].name:
            return False  # nobody else has the response that it goes on from
        lacks = self._fleet.route_gaps.lacks
        serving = self._serving(view.model, self._up(view, tried))
        return any(not lacks(backend.name, view.route.name) for backend in serving)

    def _note_if_full(self, placement: Placement | None, *, is_full: bool) -> None:
        """The gate's books were wrong if a backend has no room for what the gate has let through."""
        if is_full and self._waiting_room is not None and placement is not None:
            self._waiting_room.gate.see_overload(placement.backend, self._clock())

    def _candidates(self, view: RequestView, tried: Sequence[Backend]) -> Sequence[Backend]:
        """Backends that may take this request.

        All that are up when none of them lists the model, so that an engine's own 404 reaches the client.

        Raises:
            Refusal: 503 when none is up; 404 when none lists the model, where that is decided here.
            RouteMissing: none of those that serve the model has the route.
        """
        up = self._up(view, tried)
        if self._fleet.route_gaps.missing:
            up = self._with_route(view, up)
        if not up:
            raise unknown_models.all_down(self._tags_for(view.model), _RETRY_AFTER_DOWN_S)
        serving = self._serving(view.model, up)
        if not serving:
            self._check_model(view)
        return serving or up

    def _up(self, view: RequestView, tried: Sequence[Backend]) -> list[Backend]:
        """Those that may take work, but for those that were tried; only the holder of what a request refers to."""
        is_up = self._fleet.health.is_up
        allowed = self._fleet.backends if self._fleet.tags is None else self._backends_for(view.model)
        up = [backend for backend in allowed if is_up(backend.name) and backend not in tried]
        holder = self._holder(view) if view.response_id else None
        return up if holder is None else [backend for backend in up if backend.name == holder] or up

    def _serving(self, model: str | None, backends: Sequence[Backend]) -> Sequence[Backend]:
        """Those of the backends that list a model, or whose list is not known yet."""
        may_serve = self._fleet.models.may_serve
        return backends if model is None else [backend for backend in backends if may_serve(backend.name, model)]

    def _with_route(self, view: RequestView, up: Sequence[Backend]) -> list[Backend]:
        """Leave out backends that are known not to have the route.

        Raises:
            RouteMissing: none of those that serve the model has it, up or not.
        """
        lacks, route, allowed = self._fleet.route_gaps.lacks, view.route, self._backends_for(view.model)
        serving = self._serving(view.model, allowed) or allowed
        if all(lacks(backend.name, route.name) for backend in serving):
            raise missing_routes.refusal(route, view.target)
        return [backend for backend in up if not lacks(backend.name, route.name)]

    def _check_model(self, view: RequestView) -> None:
        """No backend that may be asked lists the model: say why, where its own 404 would say the wrong thing.

        Raises:
            Refusal: 503 when only backends that are down list it.
            ModelUnknown: none does, and that is to be said here.
        """
        models, model = self._fleet.models, view.model
        if model is None:
            return
        backends = self._backends_for(model)
        if any(models.serves(backend.name, model) for backend in backends):
            message = "No backend that serves this model is available right now."
            raise Refusal(Outcome.REFUSED_NO_BACKEND, 503, message, retry_after_s=_RETRY_AFTER_DOWN_S)
        if not self._refuses_unknown_models or not all(models.is_known(backend.name) for backend in backends):
            return
        if models.is_served(model):
            raise unknown_models.elsewhere(model, self._tags_for(model))
        raise unknown_models.refusal(model, [card["id"] for card in models.merged()])

    def _tags_for(self, model: str | None) -> Sequence[str]:
        return self._fleet.tags.tags_for(model) if self._fleet.tags is not None else ()

    def _backends_for(self, model: str | None) -> Sequence[Backend]:
        """The backends that a model's requests may go to, up or not."""
        fleet = self._fleet
        names = fleet.tags.backends_for(model) if fleet.tags is not None else None
        return fleet.backends if names is None else [backend for backend in fleet.backends if backend.name in names]

    def _place(self, candidates: Sequence[Backend]) -> Reservation:
        """Choose a backend for a request that needs no admission, and reserve a place on it, in one step."""
        ledger = self._fleet.ledger
        return ledger.reserve(fewest_inflight(candidates, ledger.inflight, self._chance))

    def _holder(self, view: RequestView) -> str | None:
        """The backend that has the stored response which a request refers to."""
        return self._fleet.stored_responses.backend_of(view.response_id, self._clock()) if view.response_id else None

    def _after_failure(
        self, error: UpstreamError, view: RequestView, tried: Sequence[Backend], exchange: Exchange
    ) -> None:
        """Let the next attempt begin, or raise the refusal that ends the request."""
        name = tried[-1].name
        if error.is_without_route:
            # Nothing was begun. Whether any other backend has it, the next look at the candidates says.
            if self._fleet.route_gaps.note(name, view.route.name) and self._on_route_missing is not None:
                self._on_route_missing(name, view.route.name)
            exchange.count_retry(_WITHOUT_ROUTE)
            return
        if error.is_refused and self._fleet.health.on_connect_failure(name) and self._on_down is not None:
            self._on_down(name)
        has_more = len(tried) < self._max_attempts and self._up(view, tried)
        if error.retry is Retry.ELSEWHERE and has_more:
            exchange.count_retry(_OVERLOADED if error.is_overloaded else _CONNECT)
            return
        status = 503 if error.is_overloaded else _STATUS_OF_FAILURE.get(error.outcome, 502)
        retry_after_s = _RETRY_AFTER_DOWN_S if status == 503 else None
        raise Refusal(
            error.outcome, status, f"The request failed at its backend: {error}.", retry_after_s=retry_after_s
        ) from error

    def _learn(self, view: RequestView, result: AttemptResult, backend: Backend) -> None:
        if result.status == _NOT_FOUND and view.model is not None and self._on_not_found is not None:
            self._on_not_found(backend.name)
        if result.response_id is not None:
            self._fleet.stored_responses.remember(result.response_id, backend.name, self._clock())


def _turn_end(result: AttemptResult) -> TurnEnd:
    usage = result.usage
    is_complete = result.outcome is _COMPLETED
    return TurnEnd(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        stop=result.stop,
        has_first_token=is_complete or result.first_token_at is not None,
        is_complete=is_complete,
    )
