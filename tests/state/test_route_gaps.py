from proxy.state.route_gaps import RouteGaps


def test_a_gap_is_one_backends_and_one_routes():
    """Nothing is concluded about others."""
    gaps = RouteGaps()

    assert not gaps.missing
    assert gaps.note("a", "messages")
    assert not gaps.note("a", "messages")
    assert gaps.missing
    assert gaps.lacks("a", "messages")
    assert not gaps.lacks("a", "chat_completions")
    assert not gaps.lacks("b", "messages")


def test_a_restart_closes_every_gap():
    """What comes back may be another version."""
    gaps = RouteGaps()
    gaps.note("a", "messages")
    gaps.note("a", "responses")
    gaps.note("b", "messages")
    gaps.forget("a")
    gaps.forget("never seen")

    assert not gaps.lacks("a", "messages")
    assert gaps.lacks("b", "messages")
    gaps.forget("b")
    assert not gaps.missing
