"""What the gate has learned, and what it makes of it: sizes before sending, ranks, order between keys.

Owned by the gate. Bounded by models (a closed set of labels) and by credentials with waiting or recent turns.
"""

import math
from collections import OrderedDict
from collections.abc import Collection
from itertools import chain
from typing import Final

from proxy.core.turns import Rank, Turn, TurnEnd
from proxy.gate.engine_room import EngineRoom
from proxy.gate.placement import Placement
from proxy.policy import limit as limits
from proxy.policy import queueing, sizing
from proxy.state.calibration import ModelCalibration, ReturnGaps, ReturnOdds
from proxy.state.sessions import Residency, Session
from proxy.state.wait_queue import Waiting

_CONTROL: Final = Rank.CONTROL
_RESIDENT: Final = Rank.RESIDENT
_IN: Final = Residency.IN
_NEW: Final = Residency.NEW
_CONTROL_TOKENS: Final = 4_096
_SHORT_HEAD_BYTES: Final = 8_192
"""Two thousand tokens; Claude Code's agents bring 14,900 (median of the recorded sessions)."""
_MAX_KEYS: Final = 10_000


class Lessons:
    """Learned from turns that ended; read before turns begin."""

    def __init__(self) -> None:
        self.gaps = ReturnGaps()
        self.odds = ReturnOdds()
        self._models: dict[str, ModelCalibration] = {}
        self._service: OrderedDict[str, float] = OrderedDict()
        self._running: dict[str, int] = {}
        self._last_served = 0.0

    def estimate(self, turn: Turn, session: Session, model: str) -> int:
        """A prompt's size in tokens."""
        ratio = self._model(model).bytes_per_token
        extends = self.extends(turn, session)
        return sizing.prompt_tokens(
            turn.text_bytes,
            turn.extra_tokens,
            ratio,
            last_text_bytes=session.text_bytes if extends else 0,
            last_prompt_tokens=session.prompt_tokens if extends else 0,
        )

    def extends(self, turn: Turn, session: Session) -> bool:
        """Whether a turn's messages begin with those of the session's last turn."""
        length = session.chain_length
        if not length or turn.head != session.head:
            return False
        chain = turn.chain
        return length <= len(chain) and chain[length - 1] == session.chain_end

    def shared_tokens(self, turn: Turn, relative: Session, depth: int, model: str) -> int:
        """Prompt tokens that a turn has in common with a session's last computed prompt.

        Args:
            turn: the turn.
            relative: the session.
            depth: messages that the two have in common.
            model: whose text it is.
        """
        if self.extends(turn, relative):
            return relative.prompt_tokens
        if depth > relative.chain_length or not relative.prompt_tokens or not turn.spans:
            return 0  # not computed yet, or nobody knows how much that is
        text_bytes = turn.spans[depth - 1]
        # Both err, one by the images, the other by the kind of text: rather too little is expected.
        by_count = relative.prompt_tokens * text_bytes // max(relative.text_bytes, text_bytes)
        return min(by_count, math.floor(text_bytes / self._model(model).bytes_per_token))

    def is_side(self, turn: Turn, session: Session, prompt_tokens: int) -> bool:
        """Whether a turn is a side call: much smaller than its session, and another head (a compaction keeps it)."""
        is_other = session.turns > 0 and turn.head != session.head
        return is_other and len(turn.chain) <= 2 and 2 * prompt_tokens < session.context_tokens

    def rank(self, waiting: Waiting) -> Rank:
        """The class that a request waits in."""
        turn, session = waiting.turn, waiting.session
        if turn.is_batch:
            return Rank.BATCH
        if waiting.prompt_tokens <= _CONTROL_TOKENS and (waiting.is_side or _is_one_shot(turn, session)):
            return _CONTROL
        if session.residency is _IN and session.home in waiting.candidates:
            return _RESIDENT
        return Rank.SESSION

    def served(self, key: str) -> float:
        """The service of a key: those of the least served one go first."""
        return self._service.get(key, 0.0)

    def score(self, waiting: Waiting, now: float) -> float:
        """Who goes first of those of one key, or of equally served ones: lower ones."""
        return queueing.score(waiting.prompt_tokens, now - waiting.stamp)

    def head_tokens(self, waiting: Waiting) -> int:
        """The part of a prompt that its session shares with others of the same head."""
        if not waiting.turn.head:
            return 0
        tokens = math.floor(waiting.turn.head_bytes / self._model(waiting.model).bytes_per_token)
        return min(tokens, waiting.prompt_tokens)

    def most_tokens_per_byte(self) -> float:
        """Of any model's text."""
        return max((1.0 / model.bytes_per_token for model in self._models.values()), default=1.0)

    def learn(self, room: EngineRoom, placement: Placement, end: TurnEnd, now: float) -> None:
        """A turn has ended: its sizes and speeds, and whether its prefix was where we thought."""
        waiting = placement.waiting
        calibration = self._model(waiting.model)
        if end.prompt_tokens is not None and not waiting.turn.extra_tokens:
            calibration.on_prompt(waiting.turn.text_bytes, end.prompt_tokens)
            # The head was booked from bytes; the ratio is better known now.
            if waiting.turn.head:
                room.ledger.rebook_head(waiting.turn.head, self.head_tokens(waiting))
        if end.is_complete and end.completion_tokens is not None:
            calibration.on_answer(end.completion_tokens)
            room.output = calibration.output
        if placement.prefill_s is not None and end.prompt_tokens is not None and end.cached_tokens is not None:
            room.prefill.on_first_token(end.prompt_tokens - end.cached_tokens, placement.prefill_s)
        expected = placement.expected_tokens
        if end.is_complete:
            room.prefixes.on_turn(
                expected,
                end.cached_tokens,
                head_tokens=self.head_tokens(waiting) if expected else 0,
                is_limit_lowest=room.limit.theta <= limits.GHOST_FLOOR,
                placed_at=placement.placed_at,
            )
        if end.cached_tokens is None or room.capacity is None or not expected:
            return
        if end.prompt_tokens is not None:
            expected = min(expected, end.prompt_tokens)
        if limits.is_ghost_miss(expected, end.cached_tokens, room.capacity.block_tokens):
            room.ghost_misses += 1
            # An engine whose cache does nothing is not overfull for that.
            if placement.placed_at > room.restarted_at and not room.prefixes.is_inert:
                room.limit = limits.after_ghost_miss(room.limit, now)
        elif expected > limits.GHOST_EXPECTED_TOKENS:
            room.limit = limits.after_hit(room.limit, now)

    def note_turn(
        self,
        room: EngineRoom,
        session: Session,
        waiting: Waiting,
        end: TurnEnd,
        *,
        estimated_tokens: int,
        overlaps: bool,
    ) -> None:
        """What the session is after this turn; of turns that overlap, the largest one stands for it."""
        session.turns += 1
        if session.turns == 1:
            self.odds.on_first_turn(session.is_named)
        context_tokens = end.prompt_tokens + (end.completion_tokens or 0) if end.prompt_tokens else estimated_tokens
        if overlaps and context_tokens < session.context_tokens:
            return
        turn = waiting.turn
        session.head, session.head_tokens = turn.head, self.head_tokens(waiting)
        session.chain_length = len(turn.chain)
        session.chain_end = turn.chain[-1] if turn.chain else 0
        session.scope, session.tools, session.client = turn.scope, turn.tools, turn.client
        if end.prompt_tokens is not None:
            if session.prompt_tokens:
                room.note_turn_growth(end.prompt_tokens - session.prompt_tokens)
            session.prompt_tokens = end.prompt_tokens
            session.text_bytes = turn.text_bytes
        else:
            session.prompt_tokens = 0
        session.context_tokens = context_tokens

    def charge(self, placement: Placement, end: TurnEnd, now: float) -> None:
        """Put a turn's service on its key's account."""
        key = placement.waiting.fairness_key
        prompt = end.prompt_tokens if end.prompt_tokens is not None else placement.waiting.prompt_tokens
        cached = end.cached_tokens if end.cached_tokens is not None else placement.expected_tokens
        answer = end.completion_tokens if end.completion_tokens is not None else placement.generated_tokens
        computed = prompt - cached if prompt > cached else 0
        served = self._service.pop(key, 0.0) + queueing.charge(
            computed, answer, prompt + answer, now - placement.placed_at
        )
        self._service[key] = self._last_served = served
        while len(self._service) > _MAX_KEYS:
            self._service.popitem(last=False)
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]

    def begin(self, key: str) -> None:
        """A turn of this key was placed; `charge` ends it."""
        self._running[key] = self._running.get(key, 0) + 1

    def lift(self, key: str, waiting: Collection[str]) -> None:
        """A key that comes back after a pause has not saved up service: it starts level with the least served one."""
        if key in self._running or key in waiting:
            return
        if not waiting and not self._running:
            if self._service.get(key, 0.0) < self._last_served:
                self._service[key] = self._last_served
            return
        active = chain(waiting, self._running)
        floor = min((self._service.get(other, 0.0) for other in active), default=self._last_served)
        self._service[key] = max(self._service.get(key, 0.0), floor)

    def _model(self, model: str) -> ModelCalibration:
        return self._models.get(model) or self._models.setdefault(model, ModelCalibration())


def _is_one_shot(turn: Turn, session: Session) -> bool:
    """Whether a turn looks like the only one of its session: one bare message, and a small cap on the answer.

    An agent's first turn may be as small, but it brings tools or a long system prompt, and its session needs a home.
    """
    limit_tokens = turn.output_limit_tokens
    if limit_tokens is None or limit_tokens > _CONTROL_TOKENS // 4 or turn.tools or turn.head_bytes > _SHORT_HEAD_BYTES:
        return False
    return session.residency is _NEW and len(turn.chain) <= 1
