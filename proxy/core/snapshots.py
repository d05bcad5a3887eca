"""What is shown of the fleet at one moment: frozen values, read by the metrics and by the status page.

Made anew for each look by `telemetry.snapshots`. None is unknown, which is neither zero nor free. Tokens of KV cache
are blocks times the tokens of a block, so that the parts can be compared with the whole.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSnapshot:
    """What is held of one backend's KV cache.

    Attributes:
        running_tokens: pinned by our turns in flight, shared heads apart.
        head_tokens: system prompts and tools that several sessions share, each counted once.
        idle_tokens: prefixes of sessions that are between two turns.
        foreign_tokens: what the engine's usage shows beyond our own turns.
        growth_tokens: kept free for what running answers may still add.
        headroom_tokens: what a new session could take; below zero when more is held than the limit allows.
        prefill_tokens: of prompts in flight, what the engine still has to compute.
        admission_ratio: share of the capacity that may be filled now.
        external_ratio: of prompt tokens that the engine had not cached, the share brought in from outside; None while
            that is not known.
        is_prefix_cache_inert: prefixes that should lie in the engine's cache are never found there.
        turn_cap: the most turns at once, because the engine was seen to be slower with more; None while none is known.
    """

    capacity_tokens: int
    running_tokens: int
    head_tokens: int
    idle_tokens: int
    foreign_tokens: int
    growth_tokens: int
    headroom_tokens: int
    prefill_tokens: int
    admission_ratio: float
    running_turns: int
    idle_sessions: int
    external_ratio: float | None = None
    is_prefix_cache_inert: bool = False
    turn_cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """What the engines behind one backend said last, summed over its ranks. Counters are those of their process.

    Attributes:
        kv_usage_ratio: share of blocks that running requests hold; warm prefixes that nobody uses count as free.
        drafts: speculations made, each of some draft tokens.
        draft_accept_ratio: accepted of proposed draft tokens, since the engine's start.
        tokens_per_draft: mean accepted length, the token that comes anyway included.
    """

    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_usage_ratio: float | None = None
    preemptions: int | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    draft_accept_ratio: float | None = None
    tokens_per_draft: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSnapshot:
    """One backend.

    Attributes:
        report_age_s: since its last good report was asked for; None before the first.
        ghost_misses: turns that were believed cached and came back cold; None where admission is off.
        kv: None while the engine's size is not known: everything is let through to it then.
        engine: None when it has said nothing for longer than is worth showing.
    """

    name: str
    is_up: bool
    inflight_requests: int
    report_age_s: float | None = None
    ghost_misses: int | None = None
    kv: KvSnapshot | None = None
    engine: EngineSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSnapshot:
    """One class of waiting requests.

    Attributes:
        name: the class.
        prompt_tokens: of all of them, as estimated.
        oldest_wait_s: since the oldest first came, refusals with a ticket in between included; None when nobody waits.
    """

    name: str
    requests: int
    prompt_tokens: int
    oldest_wait_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything at one moment.

    Attributes:
        admission_mode: `enforce`, `shadow` or `off`.
        waiting: one entry a class, in their order; none where admission is off.
        known_sessions: remembered, resident or not.
    """

    admission_mode: str = "off"
    backends: tuple[BackendSnapshot, ...] = ()
    waiting: tuple[WaitingSnapshot, ...] = ()
    known_sessions: int | None = None
