"""Holds the turns on one backend to the number with which its engine is fastest, where that is asked for.

Called by the engine's room before anybody starts, and by what reads the engine's reports. What counts as a knee is
`policy.knee`; in here is what of an interval went into prompts.
"""

from proxy.policy.knee import MOST_PREFILL_RATIO, Knee, after_report
from proxy.state.calibration import PrefillRate
from proxy.state.kv_ledger import KvLedger


class KneeGuard:
    """One engine's knee.

    Args:
        ledger: who runs, and which prompts are being computed.
        prefill: how fast those are.
        is_on: off, nothing is learned and everything passes.

    Attributes:
        learned: what is known so far.
    """

    def __init__(self, ledger: KvLedger, prefill: PrefillRate, *, is_on: bool) -> None:
        self._ledger = ledger
        self._prefill = prefill
        self._is_on = is_on
        self.learned = Knee()

    @property
    def cap(self) -> int | None:
        """The most turns at once, or None while no knee is known."""
        return self.learned.cap

    @property
    def has_room(self) -> bool:
        """Whether one more turn may run, as far as the knee goes. Ours are counted; others' cannot be held back."""
        cap = self.learned.cap
        return cap is None or len(self._ledger.holds) < cap

    def forget(self) -> None:
        """The engine is another process now, and may have other settings."""
        self.learned = Knee()

    def see_speed(
        self,
        now: float,
        *,
        running: int | None,
        tokens_per_s: float | None,
        computed_tokens_per_s: float | None,
        interval_s: float | None,
    ) -> None:
        """A report told how fast answers are written with so many running.

        Args:
            now: monotonic seconds.
            running: requests that the engine runs, ours and others'.
            tokens_per_s: generated since the last report.
            computed_tokens_per_s: prompt tokens of prompts that were finished meanwhile; None, unknown, counts as none.
            interval_s: since the last report.
        """
        if not self._is_on:
            return
        rate = self._prefill.tokens_per_s
        # A prompt counts when its last token is computed: of those that are not so far our own books tell.
        ahead_s = self._ledger.uncached_in_flight(now, rate) / rate
        is_prefilling = interval_s is not None and ahead_s > MOST_PREFILL_RATIO * interval_s
        self.learned = after_report(
            self.learned,
            now,
            running=running,
            tokens_per_s=tokens_per_s,
            interval_s=interval_s,
            prefill_ratio=1.0 if is_prefilling else (computed_tokens_per_s or 0.0) / rate,
        )

    def __repr__(self) -> str:
        return f"<KneeGuard cap {self.cap}, {len(self.learned.speeds)} buckets>"
