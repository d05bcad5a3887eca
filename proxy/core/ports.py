"""What the inner parts need from the outer ones, as small protocols: time, forwarding, recording."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from proxy.core.backends import Backend
from proxy.core.requests import AttemptResult, FinishedRequest, RequestView

if TYPE_CHECKING:
    from proxy.core.exchange import Exchange

Clock = Callable[[], float]
"""Monotonic seconds."""

ClientT_contra = TypeVar("ClientT_contra", contravariant=True)
"""The client's side of an exchange; only the forwarder looks inside."""


class Recorder(Protocol):
    """Writes what happened; never raises, never waits."""

    def record(self, finished: FinishedRequest) -> None:
        """Take one request's final record."""


class Progress(Protocol):
    """Is told how far a generated answer has come. Never raises, never waits."""

    def first_token(self) -> None:
        """The first token has passed: the prompt is computed."""

    def generated(self, tokens: int) -> None:
        """About so many tokens have passed."""


class Forwarder(Protocol[ClientT_contra]):
    """Sends one request to one backend and passes the answer on to the client."""

    async def forward(
        self,
        view: RequestView,
        backend: Backend,
        client: ClientT_contra,
        exchange: "Exchange",
        progress: Progress | None = None,
        *,
        may_move: Callable[[], bool] = bool,
    ) -> AttemptResult:
        """Make one attempt.

        Args:
            view: the request.
            backend: where.
            client: the client's side.
            exchange: the running record.
            progress: told how far the answer has come.
            may_move: asked when the backend answers that it has no room: whether another one is to be tried, so that
                the answer is not passed on.

        Raises:
            UpstreamError: nothing has reached the client; its `retry` says whether another attempt may follow.
        """
