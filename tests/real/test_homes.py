from tests.real.homes import Homes, homes, read_notes


def note(at_s, session, target="/v1/chat/completions"):
    """One request as a tap writes it down."""
    headers = [["host", "x"], *([["x-session-id", session]] if session else [])]
    return {"at_s": at_s, "target": target, "headers": headers}


def test_a_turn_is_at_home_where_the_one_before_went():
    """Sessions by themselves, in the order of time over all engines."""
    first = [note(1, "a"), note(3, "a"), note(4, "b"), note(9, "a")]
    second = [note(2, "b"), note(5, "b"), note(6, "c"), note(7, "a")]
    found = homes([first, second])

    assert found == Homes((4, 4), returns=5, kept=1)
    assert found.kept_ratio == 0.2


def test_what_is_no_turn_of_a_session_does_not_count():
    """Probes, and requests that name no session."""
    found = homes([[note(1, "a", "/v1/models"), note(2, None), note(3, "a")]])

    assert found == Homes((1,), returns=0, kept=0)
    assert found.kept_ratio is None


def test_a_line_that_is_not_whole_yet_is_left_out(tmp_path):
    """The tap may be writing."""
    path = tmp_path / "notes"
    assert read_notes(path) == []

    path.write_text('{"at_s": 1}\n{"at_s"')
    assert read_notes(path) == [{"at_s": 1}]
