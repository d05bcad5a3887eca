"""One finished request in, metrics and one log line out: the Recorder port of `core.ports`.

Called once a request by its exchange. Never raises, never waits, and one sink's fault never costs the other its part.
"""

from typing import Any, Final

from proxy.core.outcomes import Outcome
from proxy.core.requests import FinishedRequest, Usage
from proxy.telemetry.logs import EventLog, LogLevel, printable
from proxy.telemetry.metrics import Metrics


class FinishedRequestRecorder:
    """Writes each record to both sinks."""

    def __init__(self, metrics: Metrics, log: EventLog) -> None:
        self._metrics = metrics
        self._log = log

    def record(self, finished: FinishedRequest) -> None:
        """Take one request's final record."""
        try:
            self._metrics.record(finished)
        except Exception as error:  # noqa: BLE001 - the port's promise: counting must not break answering
            self._log.event("recorder.failed", level="error", error=type(error).__name__)
        line = self._log.begin("request.finished", _LEVELS[finished.outcome])
        if line is not None:
            _fill(line, finished)
            self._log.write(line)


def level_of(outcome: Outcome) -> LogLevel:
    """How bad an ending is: ours is an error, a backend's a warning, a client's or a refusal is ordinary."""
    if outcome is Outcome.INTERNAL_ERROR:
        return "error"
    if outcome.is_backend_fault or outcome is Outcome.TRUNCATED:
        return "warning"
    return "info"


_LEVELS: Final = {outcome: level_of(outcome) for outcome in Outcome}


def _fill(line: dict[str, Any], finished: FinishedRequest) -> None:
    """What the line says; what is unknown is left out.

    Id, model and note may hold words that are not ours; the rest is numbers and closed sets.
    """
    line["request_id"] = printable(finished.request_id)
    line["route"] = finished.route
    line["model"] = printable(finished.model)
    line["outcome"] = str(finished.outcome)
    line["status"] = finished.status
    line["is_stream"] = finished.is_stream
    line["duration_s"] = _rounded(finished.duration_s)
    line["request_bytes"] = finished.request_bytes
    line["response_bytes"] = finished.response_bytes
    if finished.backend is not None:
        line["backend"] = finished.backend
    if finished.rank is not None:
        line["rank"] = finished.rank
    if finished.ttft_s is not None:
        line["ttft_s"] = _rounded(finished.ttft_s)
    if finished.overhead_s is not None:
        line["overhead_s"] = _rounded(finished.overhead_s)
    if finished.queue is not None:
        _add_admission(line, finished)
    _add_usage(line, finished.usage)
    if finished.retries:
        line["retries"] = dict(finished.retries)
    if finished.note is not None:
        line["note"] = printable(finished.note)


def _add_admission(line: dict[str, Any], finished: FinishedRequest) -> None:
    line["queue"] = finished.queue
    if finished.queue_wait_s is not None:
        line["queue_wait_s"] = _rounded(finished.queue_wait_s)
    if finished.herd_wait_s is not None:
        line["herd_wait_s"] = _rounded(finished.herd_wait_s)
    if finished.is_open_early:
        line["early_stream"] = True
    if finished.would_wait:
        line["would_wait"] = True
    if finished.admission is not None:
        line["admission"] = finished.admission
        line["prefix"] = finished.prefix
        line["estimated_tokens"] = finished.estimated_tokens
        line["expected_tokens"] = finished.expected_tokens
        if finished.prefix_break is not None:
            line["prefix_break"] = str(finished.prefix_break)


def _add_usage(line: dict[str, Any], usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        line["prompt_tokens"] = usage.prompt_tokens
    if usage.cached_tokens is not None:
        line["cached_tokens"] = usage.cached_tokens
    if usage.completion_tokens is not None:
        line["completion_tokens"] = usage.completion_tokens


def _rounded(seconds: float) -> float:
    # `round` goes through decimal digits and costs several times as much.
    return int(seconds * 1e6 + 0.5) / 1e6
