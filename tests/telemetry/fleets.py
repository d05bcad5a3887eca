"""Snapshots with everything known, to be varied by the tests."""

from dataclasses import replace
from typing import Any

from proxy.core.snapshots import BackendSnapshot, EngineSnapshot, FleetSnapshot, KvSnapshot, WaitingSnapshot


def backend(**changes: Any) -> BackendSnapshot:
    """A backend with 100,000 tokens, of which 38,000 run, 40,000 idle and 5,000 are somebody else's."""
    whole = BackendSnapshot(
        name="a",
        is_up=True,
        inflight_requests=3,
        report_age_s=0.5,
        ghost_misses=2,
        kv=KvSnapshot(
            capacity_tokens=100_000,
            running_tokens=30_000,
            head_tokens=8_000,
            idle_tokens=40_000,
            foreign_tokens=5_000,
            growth_tokens=4_000,
            headroom_tokens=10_000,
            prefill_tokens=6_000,
            admission_ratio=0.97,
            running_turns=2,
            idle_sessions=4,
            external_ratio=0.25,
            is_prefix_cache_inert=True,
            turn_cap=9,
        ),
        engine=EngineSnapshot(
            running_requests=3,
            waiting_requests=1,
            kv_usage_ratio=0.43,
            preemptions=7,
            drafts=100,
            draft_tokens=300,
            accepted_draft_tokens=210,
            draft_accept_ratio=0.7,
            tokens_per_draft=3.1,
        ),
    )
    return replace(whole, **changes)


def unknown(**changes: Any) -> BackendSnapshot:
    """A backend whose engine has told nothing."""
    return backend(report_age_s=None, kv=None, engine=None, **changes)


def fleet(*backends: BackendSnapshot, **changes: Any) -> FleetSnapshot:
    """A fleet before which one resident turn and two sessions wait."""
    whole = FleetSnapshot(
        admission_mode="enforce",
        backends=backends or (backend(),),
        waiting=(
            WaitingSnapshot(name="resident", requests=1, prompt_tokens=9_000, oldest_wait_s=0.4),
            WaitingSnapshot(name="control", requests=0, prompt_tokens=0, oldest_wait_s=None),
            WaitingSnapshot(name="session", requests=2, prompt_tokens=70_000, oldest_wait_s=61.2),
            WaitingSnapshot(name="batch", requests=0, prompt_tokens=0, oldest_wait_s=None),
        ),
        known_sessions=11,
    )
    return replace(whole, **changes)
