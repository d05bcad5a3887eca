import pytest

from proxy.core.turns import Rank, SessionKey, Turn, TurnEnd
from proxy.gate.lessons import Lessons
from proxy.state.sessions import Residency, Session
from tests.gate.stage import Stage

KEY = SessionKey("", "s")


def known(*chain, prompt=10_000, text=40_000, head=0):
    """A session whose last turn had these messages."""
    return Session(
        KEY, Residency.IN, "a", head=head, prompt_tokens=prompt, text_bytes=text, chain_length=len(chain),
        chain_end=chain[-1] if chain else 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chain", "head", "extends"),
    [
        ((1, 2), 0, True),
        ((1, 2, 3), 0, True),
        ((1,), 0, False),
        ((1, 9, 3), 0, False),
        ((1, 2, 3), 5, False),
        ((), 0, False),
    ],
)  # fmt: skip
def test_a_turn_extends_the_last_one_when_it_begins_with_it(chain, head, extends):
    """Same head, same messages, perhaps more."""
    assert extends is Lessons().extends(Turn(KEY, 50_000, head=head, chain=chain), known(1, 2))


def test_nothing_extends_what_was_never_there():
    """A new session has no last turn."""
    assert not Lessons().extends(Turn(KEY, 50_000, chain=(1,)), Session(KEY))


def test_a_returning_turn_is_counted_from_what_the_engine_counted():
    """Only the addition is guessed."""
    lessons = Lessons()
    turn = Turn(KEY, 44_000, chain=(1, 2, 3))

    assert lessons.estimate(turn, known(1, 2, prompt=12_345), "m") == 12_345 + 1_000
    assert lessons.estimate(turn, known(7, 8, prompt=12_345), "m") == 11_000


@pytest.mark.parametrize(
    ("blocks", "more", "rank"),
    [
        (1, {"chain": (1,), "output_limit_tokens": 50}, Rank.CONTROL),
        (1, {"chain": (1,), "output_limit_tokens": 4_000}, Rank.SESSION),
        (1, {"chain": (1,)}, Rank.SESSION),
        (1, {"chain": (1, 2), "output_limit_tokens": 50}, Rank.SESSION),
        (10, {"chain": (1,), "output_limit_tokens": 50}, Rank.SESSION),
        (1, {"chain": (1,), "output_limit_tokens": 50, "tools": 7}, Rank.SESSION),
        (4, {"chain": (1,), "output_limit_tokens": 50, "head": 9, "head_blocks": 1}, Rank.CONTROL),
        (4, {"chain": (1,), "output_limit_tokens": 50, "head": 9, "head_blocks": 3}, Rank.SESSION),
        (1, {"is_batch": True}, Rank.BATCH),
    ],
)
def test_the_class_that_a_newcomer_waits_in(blocks, more, rank):
    """Small one-shot requests apart, but not an agent's small first turn; batch last."""
    assert rank is Stage().arrive("new", blocks, **more).rank


@pytest.mark.parametrize(
    ("blocks", "more", "rank"),
    [
        (41, {}, Rank.RESIDENT),
        (10, {"extends": False}, Rank.RESIDENT),
        (1, {"head": 9, "chain": (1,)}, Rank.CONTROL),
        (41, {"is_batch": True}, Rank.BATCH),
        (41, {"candidates": ("b",)}, Rank.SESSION),
    ],
)
def test_the_class_that_a_residents_turn_waits_in(blocks, more, rank):
    """Its next turn, a compaction, a side call, a batch, and one that its home may not serve."""
    stage = Stage("a", "b")
    stage.rest("one", 40, candidates=("a",))

    assert rank is stage.arrive("one", blocks, **more).rank


def test_each_model_has_its_own_text():
    """What one model's tokenizer taught is not believed of another's."""
    stage = Stage()
    for number in range(5):
        placement = stage.enter(f"s{number}", 3)
        stage.gate.end(placement, TurnEnd(6_000, 0, 10, has_first_token=True, is_complete=True), stage.now)
    lessons = stage.gate.lessons
    turn = Turn(KEY, 12_000, chain=(1,))

    assert lessons.estimate(turn, Session(KEY), "m") == 6_000
    assert lessons.estimate(turn, Session(KEY), "other") == 3_000


def test_images_teach_nothing_about_text():
    """Their tokens are no text's."""
    stage = Stage()
    placement = stage.enter("one", 3, extra_tokens=2_048)
    stage.gate.end(placement, TurnEnd(6_000, 0, 10, has_first_token=True, is_complete=True), stage.now)

    assert stage.gate.lessons.estimate(Turn(KEY, 12_000, chain=(1,)), Session(KEY), "m") == 3_000


def test_a_fast_engine_is_recognised():
    """From a prompt that was computed alone; what it computed, not what was cached."""
    stage = Stage()
    placement = stage.ask("one", 40)
    stage.now += 2
    stage.gate.first_token(placement, stage.now)
    stage.finish(placement, cached=0)

    assert stage.room().prefill.tokens_per_s == 20_000


def test_prompts_that_were_computed_together_teach_no_speed():
    """Nobody knows which of them took the time."""
    stage = Stage()
    one, two = stage.ask("one", 40), stage.ask("two", 40)
    stage.now += 2
    for placement in (one, two):
        stage.gate.first_token(placement, stage.now)
        stage.finish(placement, cached=0)

    assert stage.room().prefill.tokens_per_s == stage.room().prefill.START_TOKENS_PER_S


@pytest.mark.parametrize(("held_back_at", "learned"), [(0.5, 3_000), (-0.5, 20_000)])
def test_a_prompt_that_the_engine_held_back_teaches_no_speed(held_back_at, learned):
    """Behind another adapter's turns it waited, as the engine said meanwhile; what was said before is over."""
    stage = Stage()
    stage.gate.see_report(
        "a", stage.now + held_back_at, usage_ratio=None, preemptions=0, is_short_of_memory=False, holds_back=True
    )
    placement = stage.ask("one", 40)
    stage.now += 2
    stage.gate.first_token(placement, stage.now)
    stage.finish(placement, cached=0)

    assert stage.room().prefill.tokens_per_s == learned


def test_broken_answers_teach_no_length():
    """An answer that was cut is no short answer."""
    stage = Stage()
    before = stage.room().growth_blocks(4)
    for number in range(10):
        placement = stage.enter(f"s{number}", 3)
        stage.gate.end(placement, TurnEnd(3_000, 0, 1, has_first_token=True), stage.now)

    assert stage.room().growth_blocks(4) == before
