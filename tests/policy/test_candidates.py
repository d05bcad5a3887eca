import random

from proxy.core.backends import Backend, Candidate
from proxy.policy.candidates import fewest_inflight, prefer_serving_model


def candidate(name, inflight, *, serves=True):
    """A candidate of that name."""
    return Candidate(Backend(name=name, host=name, port=1, authority=name), inflight, serves)


def test_the_least_busy_backend_is_chosen():
    """Fewest requests in flight wins, whatever chance says."""
    chosen = fewest_inflight([candidate("a", 3), candidate("b", 1), candidate("c", 2)], random.Random(1).randrange)

    assert chosen.backend.name == "b"


def test_chance_spreads_over_equals():
    """Idle backends share the first requests."""
    equals = [candidate(name, 0) for name in "abcd"]
    chance = random.Random(1).randrange

    assert {fewest_inflight(equals, chance).backend.name for _ in range(100)} == set("abcd")


def test_a_backend_that_lists_the_model_is_preferred():
    """Others are asked only when nobody lists it, so that an engine's own 404 reaches the client."""
    serving, other = candidate("a", 9), candidate("b", 0, serves=False)

    assert list(prefer_serving_model([serving, other])) == [serving]
    assert list(prefer_serving_model([other])) == [other]
