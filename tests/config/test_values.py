import pytest
from pydantic import TypeAdapter, ValidationError

from proxy.config.values import Count, Seconds, SizeBytes, format_size, parse_size


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("32MiB", 32 * 2**20),
        ("512 MiB", 512 * 2**20),
        ("1GB", 10**9),
        ("1.5KiB", 1536),
        ("64Ki", 65536),
        ("2gi", 2 * 2**30),
        ("9000B", 9000),
    ],
)
def test_sizes_may_be_written_with_a_unit(written, size_bytes):
    """A size is read as people write it."""
    assert parse_size(written) == size_bytes


@pytest.mark.parametrize("written", ["32", "32M", "3 parsecs", "-1MiB", "MiB", "1e3MiB", "1,5GiB", "", "٣MiB"])
def test_what_is_no_size_is_refused(written):
    """An ambiguous or unknown unit is never guessed."""
    with pytest.raises(ValueError, match="unit such as"):
        parse_size(written)


@pytest.mark.parametrize("value", [True, 1.5e6, None, 0, -1, 2**60, [1]])
def test_a_size_is_a_whole_positive_number_within_reason(value):
    """Neither booleans nor fractions nor absurd numbers pass as sizes."""
    with pytest.raises(ValidationError):
        TypeAdapter(SizeBytes).validate_python(value)


@pytest.mark.parametrize("size_bytes", [1024, 1536, 32 * 2**20, 2**30, 1_000_000_007, 3 * 2**40])
def test_a_formatted_size_reads_back_as_itself(size_bytes):
    """What `check` prints can be put into a file again."""
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize("value", [0, -1, True, "10", float("nan"), float("inf"), 600_000])
def test_seconds_are_positive_finite_and_not_milliseconds(value):
    """Values that would make a timeout meaningless are refused; 600000 is ten minutes in the wrong unit."""
    with pytest.raises(ValidationError):
        TypeAdapter(Seconds).validate_python(value)


@pytest.mark.parametrize("value", [0, 1.0, True, "3"])
def test_counts_are_whole_numbers_from_one(value):
    """Nothing is coerced into a count."""
    with pytest.raises(ValidationError):
        TypeAdapter(Count).validate_python(value)
