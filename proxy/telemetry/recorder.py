"""One finished request in, metrics and one log line out: the Recorder port of `core.ports`.

Called once a request by its exchange. Never raises, never waits, and one sink's fault never costs the other its part.
"""

from typing import Any

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
        self._log.plain_event("request.finished", level_of(finished.outcome), _fields(finished))


def level_of(outcome: Outcome) -> LogLevel:
    """How bad an ending is: ours is an error, a backend's a warning, a client's or a refusal is ordinary."""
    if outcome is Outcome.INTERNAL_ERROR:
        return "error"
    if outcome.is_backend_fault or outcome is Outcome.TRUNCATED:
        return "warning"
    return "info"


def _fields(finished: FinishedRequest) -> dict[str, Any]:
    """What the line says; what is unknown is left out.

    Id, model and note may hold words that are not ours; the rest is numbers and closed sets.
    """
    fields: dict[str, Any] = {
        "request_id": printable(finished.request_id),
        "route": finished.route,
        "model": printable(finished.model),
        "outcome": str(finished.outcome),
        "status": finished.status,
        "is_stream": finished.is_stream,
        "duration_s": _rounded(finished.duration_s),
        "request_bytes": finished.request_bytes,
        "response_bytes": finished.response_bytes,
    }
    if finished.backend is not None:
        fields["backend"] = finished.backend
    if finished.ttft_s is not None:
        fields["ttft_s"] = _rounded(finished.ttft_s)
    if finished.overhead_s is not None:
        fields["overhead_s"] = _rounded(finished.overhead_s)
    if finished.queue is not None:
        _add_admission(fields, finished)
    _add_usage(fields, finished.usage)
    if finished.retries:
        fields["retries"] = dict(finished.retries)
    if finished.note is not None:
        fields["note"] = printable(finished.note)
    return fields


def _add_admission(fields: dict[str, Any], finished: FinishedRequest) -> None:
    fields["queue"] = finished.queue
    if finished.queue_wait_s is not None:
        fields["queue_wait_s"] = _rounded(finished.queue_wait_s)
    if finished.is_open_early:
        fields["early_stream"] = True
    if finished.would_wait:
        fields["would_wait"] = True
    if finished.admission is not None:
        fields["admission"] = finished.admission
        fields["estimated_tokens"] = finished.estimated_tokens
        fields["expected_tokens"] = finished.expected_tokens
        if finished.prefix_break is not None:
            fields["prefix_break"] = str(finished.prefix_break)


def _add_usage(fields: dict[str, Any], usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        fields["prompt_tokens"] = usage.prompt_tokens
    if usage.cached_tokens is not None:
        fields["cached_tokens"] = usage.cached_tokens
    if usage.completion_tokens is not None:
        fields["completion_tokens"] = usage.completion_tokens


def _rounded(seconds: float) -> float:
    # `round` goes through decimal digits and costs several times as much.
    return int(seconds * 1e6 + 0.5) / 1e6
