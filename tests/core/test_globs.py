import pytest

from proxy.core.globs import Globs, is_pattern

ENTRIES = {"claude-*": 1, "claude-haiku-?": 2, "claude-haiku-9": 3, "*.7b": 4, "a[bc]+": 5}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("claude-haiku-9", 3),
        ("claude-haiku-4", 1),
        ("claude-", 1),
        ("Claude-x", None),
        ("x.7b", 4),
        ("x-7b", None),
        ("a[bc]+", 5),
        ("ab", None),
        ("claude-\n", 1),
        ("", None),
    ],
)
def test_a_name_goes_before_patterns_and_the_first_pattern_counts(name, found):
    """In the order of the configuration, however narrow a later one is; nothing but * and ? means anything else."""
    assert Globs(ENTRIES).find(name) == found


def test_what_patterns_say_is_told_apart():
    """A name's own entry is no pattern's."""
    globs = Globs(ENTRIES)

    assert globs.matching("claude-haiku-9") == 1
    assert globs.exact == {"claude-haiku-9": 3, "a[bc]+": 5}
    assert [name for name in ENTRIES if is_pattern(name)] == ["claude-*", "claude-haiku-?", "*.7b"]
