"""A forwarder without sockets: each attempt plays the next step of a script."""

from collections.abc import Awaitable, Callable

from proxy.core.backends import Backend
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.ports import Progress
from proxy.core.requests import AttemptResult, RequestView

WELL = AttemptResult(Outcome.COMPLETED, 200)

Step = AttemptResult | BaseException | Callable[[Backend, Exchange], Awaitable[AttemptResult]]
"""What one attempt does: gives this result, raises this error, or is played by this function."""


class FakeForwarder:
    """Fills the port `core.ports.Forwarder`; the last step of the script is played again and again.

    Attributes:
        asked: the names of the backends that were asked, one an attempt.
        could_move: whether another one might have been tried, had it said that it has no room.
    """

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps) or [WELL]
        self.asked: list[str] = []
        self.could_move: list[bool] = []

    async def forward(
        self,
        view: RequestView,  # noqa: ARG002
        backend: Backend,
        client: object,  # noqa: ARG002
        exchange: Exchange,
        progress: Progress | None = None,  # noqa: ARG002
        *,
        may_move: Callable[[], bool] = bool,
    ) -> AttemptResult:
        """Play the next step."""
        self.asked.append(backend.name)
        self.could_move.append(may_move())
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, AttemptResult):
            return step
        return await step(backend, exchange)
