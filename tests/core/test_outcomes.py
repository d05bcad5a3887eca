from proxy.core.outcomes import Outcome


def test_refusals_are_what_the_proxy_itself_turned_away():
    """No ending that a backend or a client caused is a refusal."""
    refusals = {outcome for outcome in Outcome if outcome.is_refusal}

    assert {
        Outcome.REFUSED_BAD_REQUEST, Outcome.REFUSED_UNAUTHENTICATED, Outcome.REFUSED_NOT_FOUND,
        Outcome.REFUSED_TOO_LARGE, Outcome.REFUSED_BODY_TIMEOUT, Outcome.REFUSED_NO_BACKEND,
        Outcome.REFUSED_OVERLOADED,
    } == refusals  # fmt: skip


def test_neither_clients_nor_refusals_count_against_a_backend():
    """A client that leaves, and what the engine said about a bad request, never put an engine out."""
    faults = {outcome for outcome in Outcome if outcome.is_backend_fault}

    assert faults.isdisjoint(outcome for outcome in Outcome if outcome.is_refusal)
    assert faults.isdisjoint({Outcome.CLIENT_CLOSED, Outcome.CLIENT_STALLED, Outcome.BACKEND_REJECTED})
    assert {Outcome.UPSTREAM_ERROR_RESET, Outcome.UPSTREAM_ERROR_TIMEOUT, Outcome.UPSTREAM_ERROR_STREAM} <= faults
