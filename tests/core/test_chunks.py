from proxy.core.chunks import BODY_STARTS, SIZE_LINES


def test_a_whole_chunk_is_told_by_its_length():
    """As long as it has no extension: its size line and where its body begins and ends."""
    for size in (1, 9, 10, 15, 16, 255, 256, 2_047, 2_048):
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        assert chunk.startswith(SIZE_LINES[len(chunk)])
        assert chunk[BODY_STARTS[len(chunk)] : -2] == b"x" * size


def test_what_is_too_long_or_no_chunk_at_all_has_no_line():
    """Such reads take the long way; between two numbers of digits one length is none of any chunk."""
    longest = len(b"800\r\n") + 2_048 + 2
    assert [length for length in range(longest + 10) if length not in SIZE_LINES] == [
        *range(6),
        21,
        262,
        *range(longest + 1, longest + 10),
    ]
