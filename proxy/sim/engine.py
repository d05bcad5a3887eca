"""The simulated engine: vLLM's scheduler and block pool in virtual time, one `step` after another.

Called by the real-time driver behind the HTTP face and by policy simulations; it never looks at a clock and never
sleeps. Rules and their sources: admission brief, section 1.1.
"""

import random
from collections import deque
from dataclasses import replace

from proxy.sim.batch import Batch
from proxy.sim.blocks import BlockPool
from proxy.sim.presets import EngineConfig
from proxy.sim.report import Admitted, Counters, EngineReport, StepResult
from proxy.sim.sequence import EngineRequest, Sequence
from proxy.sim.uneventful import decode_many, uneventful_steps


class Engine:
    """One vLLM engine. Not thread safe; every method is instant, time is what `step` returns.

    Args:
        config: what it is started with.
        seed: decides only at which fraction of a token each request's drafting begins.
    """

    def __init__(self, config: EngineConfig, *, seed: int = 0) -> None:
        self.config = config
        self.counters = Counters()
        self.pool = BlockPool(config.usable_blocks)
        self._step_time = config.effective_step_time
        self._rng = random.Random(seed)
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._by_id: dict[str, Sequence] = {}
        # The head that did not fit, and the events after which it is worth another look.
        self._blocked: tuple[Sequence, int] | None = None
        self._prefills_published = 0

    # What it looks like

    @property
    def running(self) -> int:
        """Requests in the running list."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the waiting line, preempted ones included."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._by_id)

    def report(self) -> EngineReport:
        """The gauges as a scrape would see them, with a copy of the counters."""
        return EngineReport(
            running=self.running,
            waiting=self.waiting,
            usage_ratio=self.pool.used_blocks / self.pool.n_blocks,
            counters=replace(self.counters),
        )

    def held_blocks(self, request_id: str) -> int:
        """Blocks that a request refers to now, state blocks included; 0 when it is unknown or waits."""
        sequence = self._by_id.get(request_id)
        return len(sequence.blocks) + len(sequence.fixed) if sequence else 0

    # What is asked of it

    def submit(self, request: EngineRequest, now: float) -> None:
        """Put a request at the end of the waiting line at virtual second `now`.

        Raises:
            ValueError: its id is in use, it asks for nothing, or it is longer than the engine's context.
        """
        if request.request_id in self._by_id:
            raise ValueError(f"request {request.request_id!r} is already in the engine")
        if request.prompt.n_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if request.prompt.n_tokens + request.output_tokens > self.config.max_model_len:
            raise ValueError(f"prompt and answer are longer than {self.config.max_model_len} tokens")
        phase = self._rng.randrange(100) if self.config.mtp else 0
        sequence = Sequence(request, now=now, phase=phase)
        self._by_id[request.request_id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Take a request back, whatever its state; False when the engine no longer knows it."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            self._waiting.remove(sequence)
        self.counters.aborted += 1
        return True

    def step(self, now: float, until: float | None = None) -> StepResult:
        """Run one step that starts at virtual second `now`.

        Args:
            now: when the step starts.
            until: nothing will be submitted or aborted before this virtual second, so that uneventful decode steps may
                be passed over in one call. None means exactly one step.
        """
        result = StepResult()
        if not self._by_id:
            return result
        if until is not None and (not self._waiting or self._is_line_stuck()):
            uneventful = uneventful_steps(self._running, self.config, self._step_time, until - now)
            if uneventful > 1:
                self._pass_over(uneventful, result)
                return result
        batch = Batch(self.config.max_num_batched_tokens)
        self._schedule_running(batch, result)
        if not result.preempted:
            self._admit(batch, result, now)
        result.steps = 1
        result.duration_s = self._step_time.step_s(
            batch.decoders, batch.context_tokens, batch.prefill_tokens, batch.prefill_positions
        )
        self._advance(batch, result)
        result.batch_tokens = batch.prefill_tokens + sum(result.emitted.values())
        self.counters.steps += 1
        return result

    # One step, in the order in which vLLM does it

    def _schedule_running(self, batch: Batch, result: StepResult) -> None:
        drafts = self.config.mtp
        index = 0
        while index < len(self._running) and batch.budget > 0:
            sequence = self._running[index]
            tokens = min(sequence.total - sequence.computed, batch.budget)
            lookahead = drafts if sequence.emitted else 0
            if not self._make_room(sequence, tokens + lookahead, result):
                break
            batch.add(sequence, tokens, drafts=lookahead)
            index += 1

    def _make_room(self, sequence: Sequence, tokens: int, result: StepResult) -> bool:
        """Give `sequence` the blocks for `tokens` more; the last in the list loses its own until there are enough."""
        end = min(sequence.computed + tokens, self.config.max_model_len)
        missing = -(-end // self.config.block_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        while missing > self.pool.free_blocks:
            victim = self._running.pop()
            self._preempt(victim, result)
            if victim is sequence:
                return False
        sequence.blocks.extend(self.pool.allocate(missing))
        return True

    def _preempt(self, victim: Sequence, result: StepResult) -> None:
        self._release(victim)
        victim.rewind()
        self._waiting.appendleft(victim)
        result.preempted.append(victim.request.request_id)
        self.counters.preemptions += 1

    def _admit(self, batch: Batch, result: StepResult, now: float) -> None:
        """Admit from the head of the line; the first that does not fit stops it."""
        while self._waiting and batch.budget > 0 and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting[0]
            if self._is_head_blocked():
                return
            hit = self._place(sequence, batch)
            if hit is None:
                self._blocked = (sequence, self._events)
                return
            self._waiting.popleft()
            self._running.append(sequence)
            self._record_admission(sequence, hit, result, now)

    def _place(self, sequence: Sequence, batch: Batch) -> int | None:
        """Take up cached blocks and allocate the first chunk's, if the *whole* prompt fits; the hit in tokens, or None.

        Cached blocks that nobody refers to are free, and taking them up uses them: they count as consumed.
        """
        config, pool = self.config, self.pool
        block = config.block_tokens
        # The last token must be computed to yield the next one; drafting drops one matched block more.
        found = pool.match(sequence.request.prompt.keys, (sequence.total - 1) // block)
        if config.mtp and found:
            found.pop()
        whole = config.blocks_for(sequence.total) - len(found)
        reserve = int(config.watermark_ratio * config.num_gpu_blocks) if self._running else 0
        if whole + pool.idle_among(found) + reserve > pool.free_blocks:
            return None
        hit = len(found) * block
        tokens = min(sequence.total - hit, batch.budget)
        pool.take_up(found)
        sequence.blocks = found
        sequence.published = len(found)
        sequence.computed = hit
        sequence.fixed = pool.allocate(config.fixed_blocks)
        sequence.blocks.extend(pool.allocate(-(-(hit + tokens) // block) - len(found)))
        batch.add(sequence, tokens, drafts=0)
        self._publish(sequence, hit + tokens)
        return hit

    def _record_admission(self, sequence: Sequence, hit: int, result: StepResult, now: float) -> None:
        is_first_time = sequence.preemptions == 0
        if is_first_time:
            sequence.admitted_at = now
            sequence.hit_tokens = hit
            self.counters.prefix_queries += sequence.total
            self.counters.prefix_hits += hit
        result.admitted.append(Admitted(sequence.request.request_id, hit, is_first_time))

    def _advance(self, batch: Batch, result: StepResult) -> None:
        """The step is over: tokens are computed, and whoever has caught up gains new ones."""
        for sequence, tokens in batch.scheduled:
            was_decoding = sequence.is_decoding
            sequence.computed += tokens
            if sequence.computed == sequence.total:
                gained = self._gain(sequence) if was_decoding else 1
                self._emit(sequence, min(gained, sequence.remaining), result)
            self._publish(sequence, sequence.computed)

    def _gain(self, sequence: Sequence) -> int:
        gained, sequence.phase = divmod(sequence.phase + self.config.tokens_per_step_hundredths, 100)
        return gained

    def _emit(self, sequence: Sequence, tokens: int, result: StepResult) -> None:
        request = sequence.request
        if sequence.emitted == 0:
            self.counters.prompt += request.prompt.n_tokens
            self.counters.prompt_cached += sequence.hit_tokens
        sequence.emitted += tokens
        sequence.total += tokens
        sequence.computed = sequence.total - 1
        self.counters.generation += tokens
        result.emitted[request.request_id] = result.emitted.get(request.request_id, 0) + tokens
        if sequence.remaining == 0:
            self._publish(sequence, sequence.computed)
            self._running.remove(sequence)
            self._release(sequence)
            del self._by_id[request.request_id]
            result.finished.append(request.request_id)
            self.counters.finished += 1

    # Blocks

    def _publish(self, sequence: Sequence, computed: int) -> None:
        """Make the full blocks among the first `computed` tokens findable, as far as their content has a key."""
        full = min(computed // self.config.block_tokens, len(sequence.blocks))
        if full <= sequence.published:
            return
        keys = sequence.request.prompt.keys
        for index in range(sequence.published, min(full, len(keys))):
            self.pool.publish(sequence.blocks[index], keys[index])
        sequence.published = full
        if sequence.emitted == 0:
            self._prefills_published += 1

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        if sequence.fixed:
            self.pool.release(sequence.fixed)
        sequence.blocks = []
        sequence.fixed = []

    # What the line is waiting for

    @property
    def _events(self) -> int:
        """Grows with whatever may let a blocked head fit: a release, or prompt blocks that it may share."""
        return self.pool.releases + self._prefills_published

    def _is_head_blocked(self) -> bool:
        return self._blocked == (self._waiting[0], self._events)

    def _is_line_stuck(self) -> bool:
        return len(self._running) >= self.config.max_num_seqs or self._is_head_blocked()

    def _pass_over(self, steps: int, result: StepResult) -> None:
        gained = decode_many(self._running, self.config, self._step_time, steps, result)
        self.counters.generation += gained
        self.counters.steps += steps
        for sequence in self._running:
            self._publish(sequence, sequence.computed)
