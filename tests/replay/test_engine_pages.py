"""Several engines become one sample."""

from proxy.bench.engine_pages import together
from proxy.core.reports import EngineCounters, EngineKind, EngineReport


def report(**values):
    """One engine."""
    counters = EngineCounters(preemptions=values.pop("preemptions", None))
    return EngineReport(kind=EngineKind.VLLM, counters=counters, **values)


def test_engines_are_summed_and_their_usage_averaged():
    """What one does not say is left out, and what none says stays unknown."""
    seen = together(
        [report(running=2, waiting=1, kv_usage_ratio=0.2, preemptions=3), report(running=4, kv_usage_ratio=0.6)], 5.0
    )

    assert (seen.time_s, seen.running, seen.waiting, seen.kv_usage_ratio) == (5.0, 6, 1, 0.4)
    assert (seen.preemptions, seen.prefix_hits_tokens) == (3, None)
