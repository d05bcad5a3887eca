"""One request's life between its arrival and its last attempt: where decisions meet I/O.

`_place` is a plain `def`: between looking at the backends and reserving a place on one nothing else can run. That is
the whole concurrency design; more than one process would need a shared ledger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from proxy.core.backends import Backend, Candidate
from proxy.core.errors import Refusal, Retry, UpstreamError
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.ports import ClientT_contra, Clock, Forwarder
from proxy.core.requests import AttemptResult, RequestView
from proxy.policy.admission import Admission
from proxy.policy.candidates import Chance, fewest_inflight, prefer_serving_model
from proxy.state.health import HealthTable
from proxy.state.ledger import Ledger, Reservation
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses

_RETRY_AFTER_DOWN_S = 2
"""One probe interval: a backend that is back is found by then."""
_STATUS_OF_FAILURE = {Outcome.UPSTREAM_ERROR_CONNECT: 503, Outcome.UPSTREAM_ERROR_TIMEOUT: 504}
"""Whatever else goes wrong before a byte has reached the client is a 502."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What dispatch knows of the backends; every part has its own owner."""

    backends: Sequence[Backend]
    health: HealthTable
    models: ModelTable
    ledger: Ledger
    stored_responses: StoredResponses


class Dispatcher(Generic[ClientT_contra]):
    """Places requests and carries them through their attempts.

    Args:
        fleet: the backends and what is known of them.
        admission: who may start now.
        forwarder: makes one attempt.
        clock: monotonic seconds.
        chance: decides between equal candidates.
        max_attempts: backends tried at most for one request.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        admission: Admission,
        forwarder: Forwarder[ClientT_contra],
        clock: Clock,
        chance: Chance,
        max_attempts: int,
    ) -> None:
        self._fleet = fleet
        self._admission = admission
        self._forwarder = forwarder
        self._clock = clock
        self._chance = chance
        self._max_attempts = max_attempts

    async def serve(self, view: RequestView, client: ClientT_contra, exchange: Exchange) -> None:
        """Give the client an answer from some backend.

        Raises:
            Refusal: no backend can take it, or every attempt failed before a byte had reached the client.
        """
        exchange.model = self._fleet.models.label(view.model)
        tried: list[Backend] = []
        while True:
            with self._place(view, tried) as reservation:
                backend = reservation.backend
                exchange.backend = backend.name
                try:
                    result = await self._forwarder.forward(view, backend, client, exchange)
                except UpstreamError as error:
                    reservation.close(error.outcome)
                    tried.append(backend)
                    self._after_failure(error, tried, exchange)
                    continue
                reservation.close(result.outcome)
            self._learn(result, backend)
            exchange.finish_with(result)
            return

    def _place(self, view: RequestView, tried: Sequence[Backend]) -> Reservation:
        """Choose a backend and reserve a place on it, in one step.

        Raises:
            Refusal: 503 when no backend is up.
        """
        candidates: Sequence[Candidate] = self._candidates(view, tried)
        if not candidates:
            message = "No backend is available for this request right now."
            raise Refusal(Outcome.REFUSED_NO_BACKEND, 503, message, retry_after_s=_RETRY_AFTER_DOWN_S)
        candidates = self._admission.admissible(view, prefer_serving_model(candidates))
        return self._fleet.ledger.reserve(fewest_inflight(candidates, self._chance).backend)

    def _candidates(self, view: RequestView, tried: Sequence[Backend]) -> list[Candidate]:
        fleet = self._fleet
        holder = fleet.stored_responses.backend_of(view.response_id, self._clock()) if view.response_id else None
        up = [backend for backend in fleet.backends if backend not in tried and fleet.health.is_up(backend.name)]
        if holder is not None:
            up = [backend for backend in up if backend.name == holder] or up
        return [
            Candidate(
                backend=backend,
                inflight_requests=fleet.ledger.inflight(backend.name),
                serves_model=view.model is None
                or not fleet.models.is_known(backend.name)
                or fleet.models.serves(backend.name, view.model),
            )
            for backend in up
        ]

    def _after_failure(self, error: UpstreamError, tried: Sequence[Backend], exchange: Exchange) -> None:
        """Let the next attempt begin, or raise the refusal that ends the request."""
        if error.is_refused:
            self._fleet.health.on_connect_failure(tried[-1].name)
        has_more = any(
            backend not in tried and self._fleet.health.is_up(backend.name) for backend in self._fleet.backends
        )
        if error.retry is Retry.ELSEWHERE and has_more and len(tried) < self._max_attempts:
            exchange.count_retry("connect")
            return
        status = _STATUS_OF_FAILURE.get(error.outcome, 502)
        retry_after_s = _RETRY_AFTER_DOWN_S if status == 503 else None
        raise Refusal(
            error.outcome, status, f"Backend {tried[-1].name}: {error}.", retry_after_s=retry_after_s
        ) from error

    def _learn(self, result: AttemptResult, backend: Backend) -> None:
        if result.response_id is not None:
            self._fleet.stored_responses.remember(result.response_id, backend.name, self._clock())
