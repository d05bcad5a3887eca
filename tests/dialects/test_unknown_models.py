from proxy.core.outcomes import Outcome
from proxy.dialects.unknown_models import all_down, elsewhere, refusal


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


def test_a_model_whose_backends_lack_the_tags():
    """It says which, since nobody else can see why a model that is listed is not found."""
    refused = elsewhere("m", ["h200", "eu"])

    assert (refused.outcome, refused.status) == (Outcome.REFUSED_NOT_FOUND, 404)
    assert "h200, eu" in refused.message


def test_no_backend_is_up():
    """With the tags where there are any."""
    plain, tagged = all_down((), 2), all_down(["eu"], 2)

    assert {(one.outcome, one.status, one.retry_after_s) for one in (plain, tagged)} == {
        (Outcome.REFUSED_NO_BACKEND, 503, 2)
    }
    assert "tags" not in plain.message
    assert "(eu)" in tagged.message
