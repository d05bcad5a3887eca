"""What has been learned about sizes and speeds: bytes a token and output lengths by model, prefill rate by backend.

Written by the gate when turns end; read when estimating. Bounded by models (the closed label set) and backends.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

from proxy.core.turns import OutputStats, StopReason

START_BYTES_PER_TOKEN: Final = 4.0
"""3.95 to 4.11 on replays of agents."""
_MIN_BYTES_PER_TOKEN: Final = 1.5
_MAX_BYTES_PER_TOKEN: Final = 8.0
"""What no tokenizer of prose, code or Chinese goes beyond; outside it the count is not of this text."""
_WEIGHT: Final = 0.1
_EARLY_ANSWERS: Final = 2 / _WEIGHT - 4
_WINDOW: Final = 64
_SAFE_QUANTILE: Final = 0.25
"""Fewer bytes a token means more tokens: the lower quartile errs on the safe side."""
_ENOUGH_BYTES: Final = 2_000
"""A prompt shorter than this is mostly template."""


class _Window:
    """The latest so many numbers, kept sorted as well: one is learned with every turn, and a quantile read of all."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, number: float) -> None:
        if len(self._latest) == self._length:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(number)
        insort(self._sorted, number)

    def quantile(self, share: float) -> float:
        return self._sorted[int(share * (len(self._sorted) - 1))]


class ModelCalibration:
    """One model's text and answers. Bounded: a window of 64 ratios."""

    def __init__(self) -> None:
        self._ratios = _Window(_WINDOW)
        self._bytes_per_token = START_BYTES_PER_TOKEN
        self._answers = 0
        self._mean = OutputStats().mean_tokens
        self._variance = OutputStats().deviation_tokens ** 2

    @property
    def bytes_per_token(self) -> float:
        """Bytes of prompt text that make a token, on the safe side."""
        return self._bytes_per_token

    @property
    def output(self) -> OutputStats:
        """Mean and deviation of answers."""
        return OutputStats(self._mean, math.sqrt(self._variance))

    def on_prompt(self, text_bytes: int, prompt_tokens: int) -> None:
        """The engine counted a prompt whose text we have measured."""
        if text_bytes < _ENOUGH_BYTES or prompt_tokens <= 0:
            return
        ratio = text_bytes / prompt_tokens
        if not _MIN_BYTES_PER_TOKEN <= ratio <= _MAX_BYTES_PER_TOKEN:
            return
        self._ratios.add(ratio)
        self._bytes_per_token = self._ratios.quantile(_SAFE_QUANTILE)

    def on_answer(self, completion_tokens: int) -> None:
        """An answer was complete."""
        self._answers += 1
        # The first answers count for more than a moving average would give them, the start values fade as one more.
        weight = _WEIGHT / 2 if self._answers > _EARLY_ANSWERS else 1 / (self._answers + 4)
        error = completion_tokens - self._mean
        self._mean += weight * error
        self._variance = (1 - weight) * (self._variance + weight * error * error)

    def __repr__(self) -> str:
        return f"<ModelCalibration {self._bytes_per_token:.2f} B/token, answers {self._mean:.0f}>"


class ReturnGaps:
    """How long sessions stay away between two turns, by how the turn before ended. Bounded: a window of 256 each."""

    _ENOUGH: Final = 20
    _QUANTILE: Final = 0.95

    def __init__(self) -> None:
        self._gaps = {stop: _Window(256) for stop in StopReason}
        self._usual: dict[StopReason, float | None] = dict.fromkeys(StopReason)

    def on_return(self, stop: StopReason, gap_s: float) -> None:
        """A session came back after so long."""
        gaps = self._gaps[stop]
        gaps.add(gap_s)
        if len(gaps) >= self._ENOUGH:
            self._usual[stop] = gaps.quantile(self._QUANTILE)

    def usual_s(self, stop: StopReason) -> float | None:
        """Within this time nineteen of twenty of those that come back are back; None until enough were seen."""
        return self._usual[stop]

    def __repr__(self) -> str:
        return f"<ReturnGaps { ({stop.value: usual for stop, usual in self._usual.items() if usual is not None}) }>"


class ReturnOdds:
    """How many of those that were here once come back, apart for clients that name their sessions and those that don't.

    Plain one-shot traffic looks like a session that has just begun; only that nobody ever returns tells it apart.
    """

    _FADE: Final = 0.98
    _ENOUGH: Final = 10.0
    _ONE_SHOT_SHARE: Final = 0.1

    def __init__(self) -> None:
        self._firsts = {True: 0.0, False: 0.0}
        self._returns = {True: 0.0, False: 0.0}

    def on_first_turn(self, is_named: bool) -> None:
        """A session's first turn has ended."""
        self._firsts[is_named] = self._FADE * self._firsts[is_named] + 1
        self._returns[is_named] *= self._FADE

    def on_return(self, is_named: bool) -> None:
        """A session came for its second turn."""
        self._returns[is_named] += 1

    def is_one_shot(self, is_named: bool) -> bool:
        """Whether a session that has had one turn has most probably had all of them."""
        firsts = self._firsts[is_named]
        return firsts >= self._ENOUGH and self._returns[is_named] < self._ONE_SHOT_SHARE * firsts

    def __repr__(self) -> str:
        return f"<ReturnOdds named {self._returns[True]:.0f}/{self._firsts[True]:.0f}>"


class PrefillRate:
    """How many prompt tokens a second a backend computes.

    From first tokens of requests that were alone in prefill; answers that are not streamed tell none, so what the
    engine itself says of finished ones counts too, where it is more. Not while the engine holds requests back, behind
    another adapter's turns or until blocks are fetched: that time is no computing.
    """

    START_TOKENS_PER_S: Final = 3_000.0
    """A 27B model on one consumer card; a faster card is learned within a few cold prompts."""

    def __init__(self) -> None:
        self.tokens_per_s = self.START_TOKENS_PER_S
        self._samples = 0
        self._held_back_at = -math.inf

    def see_held_back(self, now: float) -> None:
        """At `now` (monotonic seconds) the engine held a request back for something else than room."""
        self._held_back_at = now

    def was_held_back(self, since: float) -> bool:
        """Whether it did so at that time or later."""
        return self._held_back_at >= since

    def on_first_token(self, uncached_tokens: int, waited_s: float) -> None:
        """A prompt with so many uncached tokens took so long, from sending to its first token, with no other beside."""
        if uncached_tokens < 1_000 or waited_s <= 0:
            return  # a short prefill is mostly overhead
        self._samples += 1
        weight = max(0.2, 1 / self._samples)
        self.tokens_per_s += weight * (uncached_tokens / waited_s - self.tokens_per_s)

    def on_report(self, at_least_tokens_per_s: float) -> None:
        """The engine computed prompts at least so fast: those of one batch share the time that each is said to take."""
        if at_least_tokens_per_s > self.tokens_per_s:
            self.tokens_per_s += 0.2 * (at_least_tokens_per_s - self.tokens_per_s)

    def __repr__(self) -> str:
        return f"<PrefillRate {self.tokens_per_s:.0f}/s>"


class ExternalShare:
    """Of the prompt tokens that an engine did not find in its own cache, the share that came from outside it.

    From the engine's own counts, fading over some fifty reports that bring any.
    """

    _FADE: Final = 0.98
    _ENOUGH_TOKENS: Final = 4_096

    def __init__(self) -> None:
        self._fetched = 0.0
        self._computed = 0.0

    @property
    def ratio(self) -> float | None:
        """Between 0 and 1; None until enough was counted."""
        missed = self._fetched + self._computed
        return self._fetched / missed if missed >= self._ENOUGH_TOKENS else None

    def on_report(self, fetched_tokens: int | None, computed_tokens: int | None) -> None:
        """Between two reports so many were brought in, and so many computed; unknown teaches nothing."""
        if fetched_tokens is None or computed_tokens is None or fetched_tokens + computed_tokens <= 0:
            return
        self._fetched = self._FADE * self._fetched + fetched_tokens
        self._computed = self._FADE * self._computed + computed_tokens

    def __repr__(self) -> str:
        return f"<ExternalShare {self.ratio}>"


class PrefixWitness:
    """Whether a backend's prefix cache does anything for sessions: turns whose prefix should lie there and does not.

    On hybrid models a block may be longer than most prompts, an engine may be started without the cache, and one that
    has worked for hours may freeze. Any token found is proof that it works; but one that has frozen with old system
    prompts in it goes on finding those and nothing else. That looks like a cache that is overfull, whose limit only has
    to fall: so it counts once that has fallen as far as it may. Where several engines take a session's turns as they
    like, most of its prefix is elsewhere each time, and that says nothing of any cache.

    Attributes:
        is_one_engine: whether a session's turns meet the same cache each time.
    """

    _TURNS: Final = 20
    _TOKENS: Final = 100_000
    _OWN_TOKENS: Final = 4_096
    """Expected beyond the system prompt; of less a turn says little, since that one's size is estimated."""
    _LOST_RATIO: Final = 0.3
    _KEPT_RATIO: Final = 0.7

    def __init__(self) -> None:
        self.is_one_engine = True
        self._lost_turns = self._lost_tokens = 0
        self._found_at = float("-inf")
        self._forget()

    def _forget(self) -> None:
        self._turns = self._tokens = 0
        self._untold_turns = self._untold_tokens = 0

    @property
    def is_inert(self) -> bool:
        """Whether so many turns in a row have found nothing, or nothing of their own, that it is no accident."""
        finds_nothing = self._turns >= self._TURNS and self._tokens >= self._TOKENS
        finds_nothing_new = self._lost_turns >= self._TURNS and self._lost_tokens >= self._TOKENS
        return finds_nothing or (finds_nothing_new and self.is_one_engine)

    def on_turn(
        self,
        expected_tokens: int,
        cached_tokens: int | None,
        *,
        head_tokens: int = 0,
        is_limit_lowest: bool = False,
        placed_at: float = math.inf,
    ) -> None:
        """A turn has ended.

        Args:
            expected_tokens: of its prompt, what should have been cached.
            cached_tokens: what was; None when nobody tells.
            head_tokens: of what was expected, what others have in their prompts too.
            is_limit_lowest: the limit has fallen as far as it may, and is not to blame any more.
            placed_at: when it began, in monotonic seconds.
        """
        if cached_tokens is not None:
            self._weigh_own(expected_tokens - head_tokens, cached_tokens - head_tokens, counts=is_limit_lowest)
        if cached_tokens:
            self._forget()
        elif expected_tokens > 0 and cached_tokens is not None:
            self._turns += 1
            self._tokens += expected_tokens
        elif expected_tokens > 0 and placed_at > self._found_at:
            # What was found since then may have been its own.
            self._untold_turns += 1
            self._untold_tokens += expected_tokens

    def _weigh_own(self, expected_tokens: int, found_tokens: int, *, counts: bool) -> None:
        """Beyond the system prompt so much should have been found, and so much was."""
        if expected_tokens < self._OWN_TOKENS:
            return
        if found_tokens >= self._KEPT_RATIO * expected_tokens:
            self._lost_turns = self._lost_tokens = 0
        elif counts and found_tokens < self._LOST_RATIO * expected_tokens:
            self._lost_turns += 1
            self._lost_tokens += expected_tokens

    def on_report(self, asked_tokens: int | None, found_tokens: int | None, now: float = 0.0) -> None:
        """Between two reports prompts of so many tokens were looked up, and so much of them was found.

        Args:
            asked_tokens: looked up; None when the engine does not tell.
            found_tokens: found; the same.
            now: monotonic seconds of the later one.
        """
        if found_tokens:
            self._found_at = now
            self._forget()
        elif asked_tokens and found_tokens is not None:
            self._turns += self._untold_turns
            self._tokens += self._untold_tokens
            self._untold_turns = self._untold_tokens = 0

    def __repr__(self) -> str:
        return (
            f"<PrefixWitness {self._turns} turns found nothing of {self._tokens} tokens,"
            f" {self._lost_turns} nothing of their own>"
        )


class ReleaseRate:
    """How fast room comes free on a backend, in tokens a second: a mean over the last minute or so."""

    _MEMORY_S: Final = 60.0

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self._freed_tokens = 0.0
        self._began_at: float | None = None
        self._seen_at = 0.0

    def add(self, tokens: float) -> None:
        """So much has come free."""
        self._freed_tokens += tokens

    def look(self, now: float) -> float:
        """The rate at `now` (monotonic seconds), with what has come free since the last look."""
        if self._began_at is None:
            self._began_at = self._seen_at = now
        since_s = now - self._seen_at
        if since_s > 0:
            # A plain mean at first, so that it does not creep up from nothing for a minute.
            weight = min(1.0, since_s / min(self._MEMORY_S, now - self._began_at))
            self.tokens_per_s += weight * (self._freed_tokens / since_s - self.tokens_per_s)
            self._freed_tokens, self._seen_at = 0.0, now
        return self.tokens_per_s

    def __repr__(self) -> str:
        return f"<ReleaseRate {self.tokens_per_s:.0f}/s>"
