"""Passes one backend's answer to one client: bytes unchanged, read along at the side, never more held than a window.

Called by the upstream connection for each read. Success streams at once; any other status is held (bounded) so that
nothing of it reaches the client before it is known to be whole.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from proxy.core.errors import OVERLOAD_STATUSES, Retry, UpstreamError
from proxy.core.outcomes import Outcome
from proxy.core.ports import Progress
from proxy.core.requests import AttemptResult, RequestView, Usage
from proxy.dialects.answer_reader import AnswerReader
from proxy.dialects.early_stream import ping
from proxy.dialects.errors import stream_error_event
from proxy.dialects.held_answers import HeldAnswer, for_client, is_without_route
from proxy.net.chunk_pipe import ChunkPipe
from proxy.net.client_side import ClientSide
from proxy.net.header_rules import ResponseHead
from proxy.net.upstream import UpstreamConnection
from proxy.net.usage_hiding import UsageHidingStream

_COMPLETED: Final = Outcome.COMPLETED


class Relay:
    """The sink of one attempt.

    Args:
        may_move: whether an answer that the backend has no room is to be thrown away, for another one to be tried.

    Attributes:
        finished: resolves once the client has been given an answer, complete or broken off; fails with
            `UpstreamError` when nothing has reached the client.
        pipe: the short way for whole chunks, once the first token has passed.
    """

    __slots__ = (
        "_answer_buffer_bytes", "_client", "_connection", "_failure", "_head", "_held", "_held_bytes", "_may_move",
        "_pinged_at", "_progress", "_reader", "_receipt", "_stream", "_told_events", "_view", "finished", "pipe",
    )  # fmt: skip

    def __init__(
        self,
        view: RequestView,
        client: ClientSide,
        connection: UpstreamConnection,
        *,
        receipt: tuple[tuple[bytes, bytes], ...],
        answer_buffer_bytes: int,
        progress: Progress | None = None,
        may_move: Callable[[], bool] = bool,
    ) -> None:
        self._view = view
        self._client = client
        self._stream: ClientSide | UsageHidingStream = client
        self._connection = connection
        self._receipt = receipt
        self._answer_buffer_bytes = answer_buffer_bytes
        self._progress = progress
        self._may_move = may_move
        self._told_events = -1
        self._pinged_at = 0.0
        self._head: ResponseHead | None = None
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        self._reader: AnswerReader | None = None
        self._failure: UpstreamError | None = None
        self.pipe: ChunkPipe | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_received(self, head: ResponseHead | None, body: bytes, has_ended: bool, now: float) -> None:
        """One read's worth of the answer."""
        if head is not None:
            self._head = head
            if not 200 <= head.status < 300:
                self._held = []
            elif self._client.is_open_early and not _is_event_stream(head):
                self._give_up_on(f"the backend answered {head.status} without an event stream")
                return
            else:
                self._commit(head)
        if self._held is not None:
            self._hold(body, has_ended, now)
            return
        self._pass_on(body, has_ended, now)

    def on_failed(self, error: UpstreamError) -> None:
        """The backend will not complete the answer."""
        if self.finished.done():
            return
        if self._reader is None or not self._client.is_started:
            self.finished.set_exception(error)
            return
        self._failure = error
        self._break_off(f"The answer broke off: {error}.", error.outcome)
        self._resolve()

    def keep_alive(self, now: float, quiet_since: float) -> None:
        """Write a ping into an event stream whose backend is silent; see `net.keepalive`.

        Only between two complete events of one that is not over: behind its last event, or in the middle of one, a
        ping would be a fault of the stream.
        """
        reader, client = self._reader, self._client
        if reader is None or not client.is_started or self.finished.done():
            return
        if max(self._connection.last_activity_at, self._pinged_at) > quiet_since:
            return
        self._look()
        is_open = reader.is_at_event_boundary and not reader.has_ended and not reader.has_error_event
        if is_open and client.ping(ping(self._view.route.dialect)):
            self._pinged_at = now

    def cut_short(self) -> AttemptResult:
        """The request was cancelled. A client that is still there (the proxy is stopping) is told so in its stream."""
        if not self._client.is_gone and self._client.is_started:
            self._break_off("The proxy is stopping.", Outcome.ABORTED)
            self._failure = UpstreamError(Outcome.ABORTED, "the proxy stopped")
        return self.result()

    def result(self) -> AttemptResult:
        """How the attempt ended, once the client has been given the answer."""
        reader = self._reader
        status = self._head.status if self._head is not None else 0
        if reader is None:
            return AttemptResult(self._whole_ending(status), status, bytes_relayed=self._held_bytes)
        reader.look()
        outcome, note = self._ending(reader)
        return AttemptResult(
            outcome=outcome,
            status=status,
            usage=reader.usage() if self._view.route.generates else Usage(),
            first_token_at=reader.first_token_at,
            gap_counts=tuple(reader.gaps.counts) if reader.is_event_stream else (),
            gap_sum_s=reader.gaps.sum_s,
            bytes_relayed=reader.body_bytes,
            response_id=reader.response_id(),
            stop=reader.stop(),
            note=note,
        )

    def _whole_ending(self, status: int) -> Outcome:
        """The ending of an answer that was held, or that never came."""
        if not self._client.is_complete:
            return Outcome.CLIENT_CLOSED if self._client.is_gone else Outcome.ABORTED
        return _outcome_of(status)

    def _ending(self, reader: AnswerReader) -> tuple[Outcome, str | None]:
        if self._failure is not None:
            return self._failure.outcome, str(self._failure)
        if self._client.has_stalled:
            return Outcome.CLIENT_STALLED, "the client stopped reading"
        # Who has read the last event of a stream may hang up without waiting for the last chunk, as Codex does.
        if not self._client.is_complete and not (reader.is_event_stream and reader.has_ended):
            return Outcome.CLIENT_CLOSED, None
        if reader.has_error_event:
            return Outcome.UPSTREAM_ERROR_STREAM, "the backend reported an error inside the stream"
        if not reader.has_ended:
            return Outcome.TRUNCATED, "the stream ended without its terminal event"
        assert self._head is not None
        return _outcome_of(self._head.status), None

    def _break_off(self, message: str, code: str) -> None:
        reader, route = self._reader, self._view.route
        last_words = b""
        if reader is not None:
            reader.look()
        if reader is not None and reader.is_at_event_boundary and not reader.has_ended:
            last_words = stream_error_event(
                route.dialect, route.stream_end, message, code, has_begun=not reader.awaits_first_token
            )
        self._stream.break_off(last_words)

    def _commit(self, head: ResponseHead) -> None:
        """From here on the client has the answer's status; no other attempt may follow."""
        self._reader = AnswerReader(self._view.route, is_event_stream=_is_event_stream(head))
        client = self._client
        client.on_pause = self._connection.pause_reading
        client.on_resume = self._connection.resume_reading
        client.start(head.status, head.reason, (*head.headers, *self._receipt), head.content_length)
        if self._view.hides_usage and _is_event_stream(head):
            self._stream = UsageHidingStream(client)

    def _pass_on(self, body: bytes, has_ended: bool, now: float) -> None:
        """The first or the last bytes of an answer that flows."""
        assert self._reader is not None
        if body:
            self._reader.feed(body, now)
            self._tell(self._reader)
        # A head whose body has a known length waits for its first bytes: one write instead of two.
        if body or has_ended or self._head is None or not self._head.content_length:
            self._stream.write(body, is_last=has_ended)
        if has_ended:
            self._resolve()
        elif self.pipe is None and not self._reader.awaits_first_token:
            self.pipe = self._stream.pipe(self._reader.chunks, self._reader.times, self._look)

    def _look(self) -> None:
        """A batch of chunks has gone the short way."""
        assert self._reader is not None
        self._reader.look()
        self._tell(self._reader)

    def _tell(self, reader: AnswerReader) -> None:
        """Say how far the answer has come; the reader counts a batch at a time, so this is not every chunk."""
        progress = self._progress
        if progress is None or reader.token_events == self._told_events:
            return
        if reader.awaits_first_token or not reader.is_event_stream:
            return
        if self._told_events < 0:
            progress.first_token()
        progress.generated(reader.token_events)
        self._told_events = reader.token_events

    def _hold(self, body: bytes, has_ended: bool, now: float) -> None:
        assert self._held is not None
        assert self._head is not None
        if body:
            self._held.append(body)
            self._held_bytes += len(body)
        if has_ended:
            is_full = self._head.status in OVERLOAD_STATUSES
            if is_full and not self._client.is_gone and self._may_move():
                self.finished.set_exception(_full(self._head.status))
                return
            headers = [*self._head.headers, *self._receipt]
            answer = HeldAnswer(self._head.status, self._head.reason, headers, b"".join(self._held))
            if is_without_route(answer):
                self.finished.set_exception(_without_route(answer.status))
                return
            answer = for_client(self._view, answer)
            self._head = replace(self._head, status=answer.status)
            self._client.answer(answer.status, answer.reason, answer.headers, answer.body)
            self._resolve()
        elif self._held_bytes > self._answer_buffer_bytes and self._client.is_open_early:
            self._give_up_on(f"the backend answered {self._head.status} with a very long body")
        elif self._held_bytes > self._answer_buffer_bytes:
            # Too long to be an error message: pass it on as it is, like any other answer.
            held, self._held = b"".join(self._held), None
            self._commit(self._head)
            self._pass_on(held, has_ended=False, now=now)

    def _give_up_on(self, why: str) -> None:
        """The answer cannot stand behind a stream that was opened early; the refusal that follows can."""
        self._connection.abort()
        self.finished.set_exception(UpstreamError(Outcome.UPSTREAM_ERROR_PROTOCOL, why))

    def _resolve(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


def _is_event_stream(head: ResponseHead) -> bool:
    """Whether an answer is one that can be read along; what is compressed cannot, and takes no plain words either."""
    return not head.is_encoded and head.content_type.startswith(b"text/event-stream")


def _full(status: int) -> UpstreamError:
    message = f"the backend has no room and answered {status}"
    return UpstreamError(_outcome_of(status), message, retry=Retry.ELSEWHERE, is_overloaded=True)


def _without_route(status: int) -> UpstreamError:
    message = f"the backend has no such route and answered {status}"
    return UpstreamError(Outcome.BACKEND_REJECTED, message, retry=Retry.ELSEWHERE, is_without_route=True)


def _outcome_of(status: int) -> Outcome:
    """What a complete answer with this status is called."""
    if status < 400:
        return _COMPLETED
    return Outcome.BACKEND_REJECTED if status < 500 else Outcome.UPSTREAM_ERROR_STATUS
