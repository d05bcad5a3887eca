import pytest

from proxy.engines.exposition import number, samples, spelled

WANTED = {"m": "fact"}


def read(text):
    """The samples of the metric m."""
    return [(dict(sample.labels), sample.value) for sample in samples(text, WANTED)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m 1\n", [({}, 1.0)]),
        ("m{} 1\n", [({}, 1.0)]),
        ('m{a="b",c="d"} 2.5\n', [({"a": "b", "c": "d"}, 2.5)]),
        ('m{ a = "b" , c="d", } 1e3 1700000000000\n', [({"a": "b", "c": "d"}, 1000.0)]),
        ('m{a="}{,= \\"\\\\\\n"} 1\n', [({"a": '}{,= "\\\n'}, 1.0)]),
        ('m{a="b"} 1\r\n', [({"a": "b"}, 1.0)]),
        ('m{a="b\n', []),
        ('m{a="b} 1\n', [({}, 1.0)]),
        ("m\n", []),
        ("m{}\n", []),
        ("m NaN\nm -1\nm +Inf\nm x\n", []),
        ("# m 1\nmm 1\nm_bucket 1\n", []),
        ("m 1\nm 16", [({}, 1.0)]),
        ("m 1", []),
    ],
)
def test_lines_are_read_for_what_they_say(text, expected):
    """Broken ones say nothing, and cost no other; one without its end may be half a number."""
    assert expected == read(text)


def test_a_hostile_page_is_read_within_bounds():
    """Lines without end, lines without number, a million samples."""
    assert [] == read("m{" + 'a="",' * 10_000 + "} 1\n")
    assert 100_000 == len(read('m{a="b"} 1\n' * 300_000))
    assert 1 == len(read("m 1\n" + "\n" * 300_000 + "m 1\n"))


def test_names_are_spelled_in_four_ways():
    """Collectors replace the colon, clients add `_total`."""
    assert {"v:a", "v_a", "v:a_total", "v_a_total"} == set(spelled("v", {"a": "fact"}))


@pytest.mark.parametrize(("text", "expected"), [("1", 1.0), ("", None), ("None", None), ("nan", None), ("-0.1", None)])
def test_numbers_are_finite_and_not_negative(text, expected):
    """Anything else is unknown."""
    assert expected == number(text)
