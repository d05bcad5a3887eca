import pytest

from proxy.policy.tags import ModelTags

TAGS = ModelTags(
    {"big-1": ["eu"], "big-*": ["h200", "eu"], "b*": ["h200"], "lost": ["mars"]},
    {"a": ["h200", "eu"], "b": ["h200"], "c": []},
)


@pytest.mark.parametrize(
    ("model", "backends", "tags"),
    [
        ("big-7", {"a"}, ("h200", "eu")),
        ("big-1", {"a"}, ("eu",)),
        ("bit", {"a", "b"}, ("h200",)),
        ("lost", set(), ("mars",)),
        ("other", None, ()),
        (None, None, ()),
    ],
)
def test_a_model_goes_to_backends_with_all_of_its_tags(model, backends, tags):
    """And to any where nothing is said; a name goes before patterns, the first pattern before others."""
    assert (TAGS.backends_for(model), tuple(TAGS.tags_for(model))) == (backends, tags)
