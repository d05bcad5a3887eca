"""The step time model against points of the fits it was made from."""

from dataclasses import replace

import pytest

from proxy.sim.presets import preset


@pytest.mark.parametrize(
    ("decoders", "milliseconds"), [(1, 27.3), (4, 29.4), (8, 30.5), (16, 34.9), (24, 40.7), (32, 45.5)]
)
def test_card_decode_steps(decoders, milliseconds):
    """The 32 GB card's decode steps come out within 5 % of the ones it was fitted to."""
    speed = preset("card-32gb", mtp=0).effective_step_time
    assert speed.decode_s(decoders, decoders * 150) * 1000 == pytest.approx(milliseconds, rel=0.05)


@pytest.mark.parametrize(
    ("name", "decoders", "context", "milliseconds"),
    [
        ("h200-8b", 1, 581, 5.18),
        ("h200-8b", 64, 581, 6.86),
        ("h200-8b", 32, 3_800, 9.12),
        ("h200-8b", 1, 60_100, 7.19),
        ("h200-32b", 1, 549, 18.3),
        ("h200-32b", 64, 549, 21.9),
        ("h200-32b", 8, 15_000, 25.1),
    ],
)
def test_h200_decode_steps(name, decoders, context, milliseconds):
    """The H200's decode steps come out within 3 % of the measured ones."""
    speed = preset(name).effective_step_time
    assert speed.decode_s(decoders, decoders * context) * 1000 == pytest.approx(milliseconds, rel=0.03)


@pytest.mark.parametrize(
    ("name", "new", "seconds"),
    [("h200-8b", 4_000, 0.12), ("h200-8b", 8_000, 0.243), ("h200-32b", 2_000, 0.22), ("h200-32b", 8_000, 0.97)],
)
def test_h200_prefill(name, new, seconds):
    """One chunk of prompt, host included, takes what was measured within 15 %."""
    speed = preset(name).effective_step_time
    simulated = speed.step_s(0, 0, new, new * new / 2) + speed.host_s_per_token * new
    assert simulated == pytest.approx(seconds, rel=0.15)


def test_drafting_costs_per_step_and_per_decoder():
    """Each draft adds 1.5 ms a step and 65 % of the cost of a decoder."""
    speed = preset("card-32gb", mtp=0).step_time
    drafting = speed.with_mtp(2)
    assert drafting.base_s == pytest.approx(speed.base_s + 0.003)
    assert drafting.per_decoder_s == pytest.approx(speed.per_decoder_s * 2.3)


def test_a_knee_costs_nothing_up_to_where_it_begins():
    """And makes more decoders slower in all than fewer are."""
    speed = replace(preset("card-32gb").effective_step_time, knee_decoders=8, per_decoder_past_knee_s=0.008)
    plain = preset("card-32gb").effective_step_time

    assert speed.decode_s(8, 0) == plain.decode_s(8, 0)
    assert 12 / speed.decode_s(12, 0) < 8 / speed.decode_s(8, 0)
