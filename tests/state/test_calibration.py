import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.turns import OutputStats, StopReason
from proxy.state.calibration import (
    ExternalShare,
    ModelCalibration,
    PrefillRate,
    PrefixWitness,
    ReleaseRate,
    ReturnGaps,
    ReturnOdds,
)


def test_it_starts_with_what_agents_were_measured_at():
    """Before the first answer: four bytes a token, answers of 450 tokens."""
    calibration = ModelCalibration()

    assert calibration.bytes_per_token == 4.0
    assert calibration.output == OutputStats()
    assert repr(calibration) == "<ModelCalibration 4.00 B/token, answers 450>"


def test_it_errs_on_the_side_of_more_tokens():
    """The lower quartile of the ratios seen."""
    calibration = ModelCalibration()
    for tokens in (2_500, 2_500, 4_000, 5_000):
        calibration.on_prompt(10_000, tokens)

    assert calibration.bytes_per_token == 2.0


@pytest.mark.parametrize(
    ("text_bytes", "tokens"), [(1_999, 500), (10_000, 0), (10_000, -1), (10_000, 1_000_000), (10_000, 100)]
)
def test_it_learns_nothing_from_what_cannot_be(text_bytes, tokens):
    """Tiny prompts are template, and no tokenizer makes so many or so few tokens of a text."""
    calibration = ModelCalibration()
    calibration.on_prompt(text_bytes, tokens)

    assert calibration.bytes_per_token == 4.0


def test_a_new_kind_of_text_takes_over_within_its_window():
    """Chinese after English: 64 prompts later nothing of the old ratio is left."""
    calibration = ModelCalibration()
    for _ in range(64):
        calibration.on_prompt(40_000, 10_000)
    for _ in range(64):
        calibration.on_prompt(40_000, 20_000)

    assert calibration.bytes_per_token == 2.0


def test_answers_are_learned_within_a_few():
    """Twenty short answers outweigh the start values."""
    calibration = ModelCalibration()
    for _ in range(20):
        calibration.on_answer(50)

    assert 50 < calibration.output.mean_tokens < 120
    assert calibration.output.deviation_tokens < 750


@given(st.lists(st.integers(0, 10**6), max_size=50))
def test_deviation_is_never_negative(answers):
    """Nor is the mean."""
    calibration = ModelCalibration()
    for tokens in answers:
        calibration.on_answer(tokens)

    assert calibration.output.mean_tokens >= 0
    assert calibration.output.deviation_tokens >= 0


def test_usual_gaps_are_known_after_twenty_returns():
    """Nineteen of twenty are back by then; each way of ending has its own."""
    gaps = ReturnGaps()
    for gap in range(19):
        gaps.on_return(StopReason.TOOL_USE, float(gap))
    assert gaps.usual_s(StopReason.TOOL_USE) is None

    gaps.on_return(StopReason.TOOL_USE, 1_000.0)

    assert gaps.usual_s(StopReason.TOOL_USE) == 18.0
    assert gaps.usual_s(StopReason.END_TURN) is None
    assert "tool_use" in repr(gaps)


def test_traffic_from_which_nobody_returns_is_recognised():
    """Ten first turns without a second: the eleventh is not waited for."""
    odds = ReturnOdds()
    for _ in range(9):
        odds.on_first_turn(is_named=False)
    assert not odds.is_one_shot(is_named=False)
    for _ in range(10):
        odds.on_first_turn(is_named=False)

    assert odds.is_one_shot(is_named=False)
    assert not odds.is_one_shot(is_named=True)
    assert repr(odds).startswith("<ReturnOdds")


def test_a_few_that_return_are_enough_to_be_waited_for():
    """One in five: agents among plain requests keep their leases."""
    odds = ReturnOdds()
    for number in range(100):
        odds.on_first_turn(is_named=True)
        if number % 5 == 0:
            odds.on_return(is_named=True)

    assert not odds.is_one_shot(is_named=True)


def test_prefill_speed_is_learned_from_prompts_that_were_alone():
    """The first sample replaces the guess; short prompts are mostly overhead."""
    rate = PrefillRate()
    rate.on_first_token(999, 0.01)
    rate.on_first_token(5_000, 0.0)
    assert rate.tokens_per_s == PrefillRate.START_TOKENS_PER_S

    rate.on_first_token(20_000, 1.0)

    assert rate.tokens_per_s == 20_000
    assert repr(rate) == "<PrefillRate 20000/s>"


def test_room_that_comes_free_is_a_mean_over_time():
    """From the first look on, however unevenly it comes; what is new counts for a minute."""
    rate = ReleaseRate()
    rate.look(100.0)
    for second in range(1, 21):
        rate.add(0 if second % 5 else 5_000)
        rate.look(100.0 + second)

    assert rate.tokens_per_s == pytest.approx(1_000)
    assert "1000/s" in repr(rate)
    for second in range(21, 141):
        rate.look(100.0 + second)
    assert rate.tokens_per_s < 200


def test_two_releases_in_one_moment_both_count():
    """A look in between too."""
    rate = ReleaseRate()
    rate.look(0.0)
    rate.add(3_000)
    rate.look(0.0)
    rate.add(3_000)

    assert rate.look(2.0) == pytest.approx(3_000)


def test_what_an_engine_says_of_its_prefill_counts_where_it_is_more():
    """It is a lower bound: prompts of one batch share their time. First tokens go on teaching both ways."""
    rate = PrefillRate()
    rate.on_report(1_000.0)
    rate.on_report(0.0)
    assert rate.tokens_per_s == PrefillRate.START_TOKENS_PER_S

    for _ in range(20):
        rate.on_report(20_000.0)
    assert rate.tokens_per_s == pytest.approx(20_000, rel=0.02)
    for _ in range(20):
        rate.on_first_token(10_000, 1.0)
    assert rate.tokens_per_s == pytest.approx(10_000, rel=0.02)


def test_the_share_from_outside_is_unknown_until_enough_was_counted():
    """A few tokens, or a report without one of the two, are no share."""
    share = ExternalShare()
    for told in [(3_000, 1_000), (None, 10**6), (10**6, None), (0, 0)]:
        share.on_report(*told)
    assert share.ratio is None

    share.on_report(0, 200)

    assert share.ratio == pytest.approx(0.72, abs=0.01)


def test_a_tier_that_is_gone_is_forgotten():
    """Half came from outside, then nothing does."""
    share = ExternalShare()
    for _ in range(100):
        share.on_report(1_000, 1_000)
    assert share.ratio == pytest.approx(0.5)

    for _ in range(200):
        share.on_report(0, 1_000)

    assert share.ratio == pytest.approx(0.0, abs=0.02)


@given(st.lists(st.tuples(st.none() | st.integers(0, 10**7), st.none() | st.integers(0, 10**7)), max_size=50))
def test_the_share_from_outside_is_a_share(told):
    """Whatever an engine counts."""
    share = ExternalShare()
    for fetched, computed in told:
        share.on_report(fetched, computed)

    assert share.ratio is None or 0.0 <= share.ratio <= 1.0


def witness_of(*turns):
    """A witness after turns: what was expected, and what was found."""
    witness = PrefixWitness()
    for expected, cached in turns:
        witness.on_turn(expected, cached)
    return witness


def test_twenty_turns_that_find_nothing_are_no_accident():
    """Of a hundred thousand tokens together."""
    assert not witness_of(*[(10_000, 0)] * 19).is_inert
    assert witness_of(*[(10_000, 0)] * 20).is_inert
    assert not witness_of(*[(4_000, 0)] * 24).is_inert
    assert witness_of(*[(4_000, 0)] * 25).is_inert


def test_a_cache_that_worked_for_hours_and_finds_nothing_any_more_is_found_out_as_soon():
    """What it found before counts for nothing: twenty turns, whether answers tell or only the engine's counters."""
    assert not witness_of(*[(10_000, 9_984)] * 5_000, *[(10_000, 0)] * 19).is_inert
    assert witness_of(*[(10_000, 9_984)] * 5_000, *[(10_000, 0)] * 20).is_inert

    witness = PrefixWitness()
    for second in range(3_600):
        witness.on_report(20_000, 15_000, second)
        witness.on_turn(10_000, None, placed_at=second - 0.5)
    for second in range(3_600, 3_619):
        witness.on_turn(10_000, None, placed_at=second)
        witness.on_report(20_000, 0, second + 0.5)
    assert not witness.is_inert
    witness.on_turn(10_000, None, placed_at=3_620)
    witness.on_report(20_000, 0, 3_621)
    assert witness.is_inert


def test_long_answers_that_end_among_newcomers_are_no_sign():
    """Their prefixes were found when they began; who comes then finds nothing, since there is nothing to find."""
    witness = PrefixWitness()
    witness.on_report(400_000, 380_000, 11.0)
    for _ in range(30):
        witness.on_turn(20_000, None, placed_at=10.0)
    witness.on_report(50_000, 0, 100.0)

    assert not witness.is_inert


def frozen(turns, *, found=15_000, is_limit_lowest=True):
    """A witness after turns that should have found 35,000 tokens, 15,000 of them others' too."""
    witness = PrefixWitness()
    for _ in range(turns):
        witness.on_turn(35_000, found, head_tokens=15_000, is_limit_lowest=is_limit_lowest)
        witness.on_report(35_000, found, 0.0)
    return witness


def test_a_cache_that_has_frozen_finds_old_system_prompts_and_nothing_else():
    """They prove nothing, once the limit is as low as it goes; until then the cache may be overfull."""
    assert not frozen(19).is_inert
    assert frozen(20).is_inert
    assert frozen(20, found=16_000).is_inert  # the head's size is an estimate
    assert not frozen(1_000, is_limit_lowest=False).is_inert
    assert not frozen(1_000, found=30_000).is_inert


def test_where_turns_meet_any_of_several_caches_a_prefix_that_is_elsewhere_is_no_sign():
    """A session on eight engines finds its own once in eight times; nothing at all is a sign there too."""
    witness = frozen(100)
    witness.is_one_engine = False
    assert not witness.is_inert

    for _ in range(20):
        witness.on_turn(35_000, 0, head_tokens=15_000)
    assert witness.is_inert


def test_a_session_that_finds_its_own_prefix_proves_that_it_works():
    """Also when it comes after the verdict; short ones say nothing either way."""
    witness = frozen(30)
    witness.on_turn(18_000, 18_000, head_tokens=15_000)
    assert witness.is_inert

    witness.on_turn(35_000, 34_000, head_tokens=15_000)
    assert not witness.is_inert


def test_any_token_that_is_found_is_proof():
    """Of a cache that had seemed to do nothing too."""
    assert not witness_of(*[(10_000, 0)] * 30, (10_000, 16)).is_inert
    assert not witness_of(*[(10_000, 0)] * 15, (0, 16), *[(10_000, 0)] * 15).is_inert


def test_turns_that_expected_nothing_tell_nothing():
    """A session's first."""
    assert not witness_of(*[(0, 0)] * 100, *[(0, None)] * 100).is_inert


def test_where_answers_do_not_tell_the_engine_itself_does():
    """Its counters: looked up, and found."""
    witness = witness_of(*[(10_000, None)] * 20)
    assert not witness.is_inert
    witness.on_report(None, None)
    witness.on_report(0, 0)
    assert not witness.is_inert

    witness.on_report(200_000, 0)
    assert witness.is_inert
    witness.on_report(10_000, 64)
    assert not witness.is_inert
