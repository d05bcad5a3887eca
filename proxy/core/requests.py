"""What a request is (`RequestView`), what one attempt gave (`AttemptResult`), and what is recorded at its end.

Immutable values only (msgspec's structs where one is made for every request: a tenth of what a frozen dataclass costs).
Times are monotonic seconds unless the name says otherwise.
"""

from dataclasses import dataclass
from enum import StrEnum, unique

from msgspec import Struct

from proxy.core.outcomes import Outcome
from proxy.core.turns import StopReason, Turn


@unique
class Dialect(StrEnum):
    """Which API family a client speaks; decides the shape of errors."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@unique
class StreamEnd(StrEnum):
    """Which event closes a complete stream of a route."""

    NONE = "none"
    DONE = "done"
    """`data: [DONE]`"""
    MESSAGE_STOP = "message_stop"
    """`event: message_stop`"""
    RESPONSE_COMPLETED = "response_completed"
    """`response.completed`, `.incomplete` or `.failed`"""


@dataclass(frozen=True, slots=True)
class Route:
    """One public path that is forwarded.

    Attributes:
        name: the closed metric label, e.g. `chat_completions`.
        dialect: whose error shape applies.
        stream_end: how a complete event stream ends.
        generates: whether it produces tokens and so occupies KV cache.
        is_multipart: the body is a form, not JSON.
        takes_rank: of several engines behind one address the request may name one; asked for what generates.
    """

    name: str
    dialect: Dialect = Dialect.OPENAI
    stream_end: StreamEnd = StreamEnd.NONE
    generates: bool = False
    is_multipart: bool = False
    takes_rank: bool = True


class RequestView(Struct, frozen=True, gc=False):
    """What the proxy knows of a request before it decides.

    Attributes:
        target: path and query exactly as received; what is forwarded.
        headers: end-to-end headers as received, name and value in bytes, hop-by-hop and credentials removed.
        model: the asked model, or None when the body names none.
        is_stream: the client asked for an event stream.
        response_id: the stored response that this request refers to, if any.
        turn: what admission needs to know; None for routes that generate nothing.
        receipts: headers for the answer that say what settings had changed about the request.
        hides_usage: the engine was asked for an event of usage that the client did not ask for.
    """

    request_id: str
    route: Route
    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    arrived_at: float
    model: str | None = None
    is_stream: bool = False
    response_id: str | None = None
    turn: Turn | None = None
    receipts: tuple[tuple[bytes, bytes], ...] = ()
    hides_usage: bool = False


class Usage(Struct, frozen=True, gc=False):
    """Token counts as the engine reported them; None means not reported, never zero.

    Attributes:
        prompt_tokens: the whole prompt, cached part included.
        cached_tokens: the part of the prompt that was in the prefix cache.
        completion_tokens: generated tokens.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class AttemptResult(Struct, frozen=True, gc=False):
    """How one attempt ended once the client had been given an answer.

    Attributes:
        status: the HTTP status that the client got.
        first_token_at: when the first generated token passed, or None.
        gap_counts: how long the pauses between token events were: counts per bucket of `core.gaps.GAP_BOUNDS_S`.
        response_id: the id of a stored response, if the answer carried one.
        stop: why a generated answer ended.
        note: one short sentence for the log when something went wrong.
    """

    outcome: Outcome
    status: int
    usage: Usage = Usage()
    sent_at: float | None = None
    first_token_at: float | None = None
    gap_counts: tuple[int, ...] = ()
    gap_sum_s: float = 0.0
    bytes_relayed: int = 0
    response_id: str | None = None
    stop: StopReason = StopReason.OTHER
    note: str | None = None


class FinishedRequest(Struct, gc=False):
    """The one record of a request, from which metrics and the log line are made once it has ended.

    Attributes:
        route: route name, or `other`.
        model: a model name that some backend is known to serve, or `other`, or `none`.
        status: HTTP status the client got; 0 when it got none.
        rank: which of several engines behind the backend it was sent to, or None.
        overhead_s: time the proxy itself added before the request was sent, or None if it never was.
        ttft_s: from arrival to the first generated token, or None.
        retries: why attempts were repeated, e.g. `{"connect": 1}`.
        admission: how it was let in: `resident`, `new`, `returning`, `control`, `unlimited`; None when it was not.
        prefix: what of its prompt was believed cached there: `warm`, `shared`, `moved`, `cold` or `unknown`.
        queue: the class that it waited in.
        queue_wait_s: how long it waited for room.
        herd_wait_s: how much of that for the head of its prompt to be computed for another one; None if it never did.
        is_open_early: the client was given 200 and a stream while the request waited; `outcome` says what followed.
        expected_tokens: prompt tokens that were believed cached.
        estimated_tokens: prompt tokens as admission estimated them before sending.
        would_wait: it was let through although it would have had to wait (admission in shadow mode).
        prefix_break: why it could not use what its session's last turn left in the cache; a `PrefixBreak`.
    """

    request_id: str
    route: str = "other"
    model: str = "none"
    outcome: Outcome = Outcome.INTERNAL_ERROR
    status: int = 0
    duration_s: float = 0.0
    is_stream: bool = False
    backend: str | None = None
    rank: int | None = None
    overhead_s: float | None = None
    ttft_s: float | None = None
    gap_counts: tuple[int, ...] = ()
    gap_sum_s: float = 0.0
    usage: Usage = Usage()
    request_bytes: int = 0
    response_bytes: int = 0
    retries: dict[str, int] = {}  # each record gets its own
    admission: str | None = None
    prefix: str = "unknown"
    queue: str | None = None
    queue_wait_s: float | None = None
    herd_wait_s: float | None = None
    is_open_early: bool = False
    expected_tokens: int | None = None
    estimated_tokens: int | None = None
    would_wait: bool = False
    prefix_break: str | None = None
    note: str | None = None
