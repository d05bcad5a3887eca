"""One finished request in, metrics and one log line out: the Recorder port of `core.ports`.

Called once a request by its exchange. Never raises, never waits, and one sink's fault never costs the other its part.
"""

from typing import Any

from proxy.core.outcomes import Outcome
from proxy.core.requests import FinishedRequest
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
    """What the line says; the log leaves out what is None.

    Id, model and note may hold words that are not ours; the rest is numbers and closed sets.
    """
    usage = finished.usage
    return {
        "request_id": printable(finished.request_id),
        "route": finished.route,
        "model": printable(finished.model),
        "backend": finished.backend,
        "outcome": str(finished.outcome),
        "status": finished.status,
        "is_stream": finished.is_stream,
        "duration_s": _rounded(finished.duration_s),
        "ttft_s": _rounded(finished.ttft_s),
        "overhead_s": _rounded(finished.overhead_s),
        "admission": finished.admission,
        "queue": finished.queue,
        "queue_wait_s": _rounded(finished.queue_wait_s),
        "would_wait": finished.would_wait or None,
        "estimated_tokens": finished.estimated_tokens,
        "expected_tokens": finished.expected_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "request_bytes": finished.request_bytes,
        "response_bytes": finished.response_bytes,
        "retries": dict(finished.retries) or None,
        "note": None if finished.note is None else printable(finished.note),
    }


def _rounded(seconds: float | None) -> float | None:
    # `round` goes through decimal digits and costs several times as much.
    return None if seconds is None else int(seconds * 1e6 + 0.5) / 1e6
