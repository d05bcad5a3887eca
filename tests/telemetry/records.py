"""A finished request with everything known, to be varied by the tests."""

from typing import Any

from msgspec import structs

from proxy.core.gaps import GapCounter
from proxy.core.outcomes import Outcome
from proxy.core.requests import FinishedRequest, Usage


def finished(**changes: Any) -> FinishedRequest:
    """One streamed answer: 100 prompt tokens, half of them cached, first token at 0.2 s, two pauses."""
    gaps = GapCounter()
    gaps.mark((1.0, 1.015, 41.015))
    record = FinishedRequest(
        request_id="req-1",
        route="chat_completions",
        model="qwen",
        outcome=Outcome.COMPLETED,
        status=200,
        duration_s=1.5,
        is_stream=True,
        backend="a:8000",
        overhead_s=0.0004,
        ttft_s=0.2,
        prefix="warm",
        gap_counts=tuple(gaps.counts),
        gap_sum_s=gaps.sum_s,
        usage=Usage(prompt_tokens=100, cached_tokens=50, completion_tokens=3),
        request_bytes=1000,
        response_bytes=2000,
    )
    return structs.replace(record, **changes)
