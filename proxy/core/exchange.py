"""The running record of one request, from the first header byte to its end. Written by server and dispatch as they go.

It is a context manager whose exit hands it to the recorder, whatever happened in between: nothing is lost.
"""

from types import TracebackType
from typing import Self

from proxy.core.outcomes import Outcome
from proxy.core.ports import Clock, Recorder
from proxy.core.requests import AttemptResult, FinishedRequest


class Exchange(FinishedRequest, eq=False, kw_only=True, gc=False):
    """What is known of a request so far; at its end, all that there is to record.

    Attributes:
        sent_at: when the first attempt's bytes were handed to a backend, or None.
        waits_since: since when it has been waiting for room, while it does; only where its stream may be opened.
        ending: how it ended, once that is stated.
    """

    recorder: Recorder
    clock: Clock
    arrived_at: float = 0.0
    sent_at: float | None = None
    waits_since: float | None = None
    result: AttemptResult | None = None
    ending: Outcome | None = None

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
        if self.ending is None:
            self.finish(Outcome.INTERNAL_ERROR, 0, "no ending was stated")
        self._complete()
        self.recorder.record(self)

    def _complete(self) -> None:
        """Fill in what is known only now."""
        assert self.ending is not None
        self.outcome = self.ending
        self.duration_s = self.clock() - self.arrived_at
        if self.is_open_early:
            self.status = 200  # whatever followed, that is what the client had been given
        if self.sent_at is not None:
            # What the proxy itself added before sending; waiting for room is not overhead.
            self.overhead_s = max(0.0, self.sent_at - self.arrived_at - (self.queue_wait_s or 0.0))
        result = self.result
        if result is not None:
            if result.first_token_at is not None:
                self.ttft_s = result.first_token_at - self.arrived_at
            self.gap_counts, self.gap_sum_s = result.gap_counts, result.gap_sum_s
            self.usage = result.usage
            self.response_bytes = result.bytes_relayed
