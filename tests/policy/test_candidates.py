import random

from proxy.core.backends import Backend
from proxy.policy.candidates import fewest_inflight


def chosen_among(inflight, chance):
    """The name of the chosen one."""
    backends = [Backend(name=name, host=name, port=1, authority=name) for name in inflight]
    return fewest_inflight(backends, inflight.__getitem__, chance).name


def test_the_least_busy_backend_is_chosen():
    """Fewest requests in flight wins, whatever chance says."""
    assert chosen_among({"a": 3, "b": 1, "c": 2}, random.Random(1).randrange) == "b"


def test_chance_spreads_over_equals():
    """Idle backends share the first requests."""
    chance = random.Random(1).randrange

    assert {chosen_among(dict.fromkeys("abcd", 0), chance) for _ in range(100)} == set("abcd")
