from proxy.dialects.unknown_models import refusal


def test_l44_an_unknown_model_is_a_404_that_names_what_there_is():
    """Whoever mistyped sees the right name."""
    told = refusal("gtp-oss", ["gpt-oss", "qwen3"])

    assert (told.status, told.retry_after_s) == (404, None)
    assert "`gtp-oss`" in told.message
    assert "gpt-oss, qwen3." in told.message


def test_many_models_are_not_all_named():
    """A sentence stays one, and a name of the client's is made harmless."""
    told = refusal("a\x1b[31m\n" + "b" * 500, [f"adapter-{number}" for number in range(40)])

    assert "and 28 more" in told.message
    assert "\x1b" not in told.message
    assert len(told.message) < 400


def test_with_nothing_to_name_nothing_is_named():
    """Engines that list no model."""
    assert "There is" not in refusal("m", []).message
