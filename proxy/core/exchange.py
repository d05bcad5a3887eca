"""The running record of one request, from the first header byte to its end. Written by server and dispatch as they go.

It is a context manager whose exit writes one `FinishedRequest`, whatever happened in between: nothing is lost.
"""

from types import TracebackType
from typing import Self

from msgspec import Struct

from proxy.core.outcomes import Outcome
from proxy.core.ports import Clock, Recorder
from proxy.core.requests import AttemptResult, FinishedRequest, Usage


class Exchange(Struct, eq=False):
    """What is known of a request so far.

    Attributes:
        request_id: what the client is told and the backend sees.
        route: closed route name, `other` until one is matched.
        model: closed model label.
        sent_at: when the first attempt's bytes were handed to a backend, or None.
        waits_since: since when it has been waiting for room, while it does; only where its stream may be opened.
        is_open_early: the client was given 200 and a stream before there was an answer.
        ending: how it ended, once that is stated.
    """

    request_id: str
    recorder: Recorder
    clock: Clock
    arrived_at: float = 0.0
    route: str = "other"
    model: str = "none"
    is_stream: bool = False
    backend: str | None = None
    request_bytes: int = 0
    sent_at: float | None = None
    retries: dict[str, int] = {}  # each exchange gets its own
    admission: str | None = None
    queue: str | None = None
    queue_wait_s: float | None = None
    waits_since: float | None = None
    is_open_early: bool = False
    expected_tokens: int | None = None
    estimated_tokens: int | None = None
    would_wait: bool = False
    prefix_break: str | None = None
    note: str | None = None
    result: AttemptResult | None = None
    ending: Outcome | None = None
    status: int = 0

    def __post_init__(self) -> None:
        self.arrived_at = self.clock()

    def count_retry(self, reason: str) -> None:
        """An attempt is about to be repeated."""
        self.retries[reason] = self.retries.get(reason, 0) + 1

    def finish(self, outcome: Outcome, status: int, note: str | None = None) -> None:
        """State how it ended; the first statement counts."""
        if self.ending is None:
            self.ending = outcome
            self.status = status
            self.note = note

    def finish_with(self, result: AttemptResult) -> None:
        """State that an attempt's end is the request's end."""
        self.result = result
        self.finish(result.outcome, result.status, result.note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            # Only cancellation leaves no statement behind: the client went, or the proxy is stopping.
            self.finish(Outcome.INTERNAL_ERROR if issubclass(kind, Exception) else Outcome.CLIENT_CLOSED, 0)
        self.finish(Outcome.INTERNAL_ERROR, 0, "no ending was stated")
        self.recorder.record(self._finished())

    def _finished(self) -> FinishedRequest:
        result = self.result
        assert self.ending is not None
        first_token_at = result.first_token_at if result else None
        return FinishedRequest(
            request_id=self.request_id,
            route=self.route,
            model=self.model,
            outcome=self.ending,
            status=200 if self.is_open_early else self.status,
            duration_s=self.clock() - self.arrived_at,
            is_stream=self.is_stream,
            backend=self.backend,
            overhead_s=self._overhead_s(),
            ttft_s=first_token_at - self.arrived_at if first_token_at is not None else None,
            gap_counts=result.gap_counts if result else (),
            gap_sum_s=result.gap_sum_s if result else 0.0,
            usage=result.usage if result else Usage(),
            request_bytes=self.request_bytes,
            response_bytes=result.bytes_relayed if result else 0,
            retries=self.retries,
            admission=self.admission,
            queue=self.queue,
            queue_wait_s=self.queue_wait_s,
            is_open_early=self.is_open_early,
            expected_tokens=self.expected_tokens,
            estimated_tokens=self.estimated_tokens,
            would_wait=self.would_wait,
            prefix_break=self.prefix_break,
            note=self.note,
        )

    def _overhead_s(self) -> float | None:
        """What the proxy itself added before sending; waiting for room is not overhead."""
        if self.sent_at is None:
            return None
        overhead_s = self.sent_at - self.arrived_at - (self.queue_wait_s or 0.0)
        return max(0.0, overhead_s)
