import pytest

from proxy.config.yaml_text import dump, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("1:30", "1:30"),
        ("010", 10),
        ("2026-01-01", "2026-01-01"),
        ("1e3", 1000.0),
        ("8900", 8900),
        ("-1", -1),
        ("0.5", 0.5),
        ("~", None),
        ("", None),
        ("[a, 1, null]", ["a", 1, None]),
        ('{"port": 1}', {"port": 1}),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("32MiB", "32MiB"),
    ],
)
def test_scalars_mean_what_they_look_like(text, value):
    """YAML 1.1's surprises (off is false, 1:30 is 90, 010 is 8) are not there."""
    assert parse(text) == (value, [])


def test_doubled_keys_are_all_found():
    """Of two equal keys none wins silently."""
    _, faults = parse("a: 1\nb: {c: 1, c: 2}\na: 3\n")

    assert sorted(faults) == ["line 2: c is given twice", "line 3: a is given twice"]


@pytest.mark.parametrize(
    "text",
    [
        "k: *SECRET",
        "k: !SECRET x",
        "k: !<SECRET> x",
        "k: [SECRET",
        "k: @SECRET",
        'k: "SECRET',
        "k: &SECRET",
        "k: %SECRET",
        "k: !SE'CRET'x SECRET",
        "SECRET: a: b",
        "k: |SECRET\n  x",
        "SECRET\0",
    ],
)
def test_a_syntax_error_does_not_repeat_the_text(text):
    """The place is named, the text is not: it may be a key."""
    _, faults = parse(text)

    assert "SECRET" not in "".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x]",
        "[" * 3000,
        "9" * 5000,
        "a: b: c",
        "--- a\n--- b",
        "!!python/object:os.x {}",
        "!!bool x",
        "!!timestamp x",
        "!!int [1]",
        "!!int x",
        "? [a]\n: b",
    ],
)
def test_hostile_text_is_a_fault_and_not_a_crash(text):
    """Nesting, loops, giant numbers and tags end in one sentence."""
    value, faults = parse(text)

    assert (value, len(faults)) == (None, 1)
    assert "not valid YAML" in faults[0]


def test_dump_keeps_the_order():
    """What is shown stands in the order of the models."""
    assert dump({"b": 1, "a": [None, True]}) == "b: 1\na:\n- null\n- true\n"
