"""The picker for requests that need no admission: which of the candidates takes one."""

from collections.abc import Callable, Sequence

from proxy.core.backends import Backend

Chance = Callable[[int], int]
"""A whole number in [0, n), e.g. `random.Random(seed).randrange`."""


def fewest_inflight(candidates: Sequence[Backend], inflight: Callable[[str], int], chance: Chance) -> Backend:
    """The candidate with the fewest requests in flight; chance decides between equals.

    Args:
        candidates: at least one.
        inflight: requests that we have on a backend, by its name.
        chance: so that idle backends share the first requests instead of the first one taking all.
    """
    least = min(inflight(backend.name) for backend in candidates)
    equals = [backend for backend in candidates if inflight(backend.name) == least]
    return equals[chance(len(equals))] if len(equals) > 1 else equals[0]
