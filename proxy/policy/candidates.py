"""Filters and the picker: which of the candidates may take a request, and which one does."""

from collections.abc import Callable, Sequence

from proxy.core.backends import Candidate

Chance = Callable[[int], int]
"""A whole number in [0, n), e.g. `random.Random(seed).randrange`."""


def prefer_serving_model(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Keep those that listed the model; all of them when none did, so that an engine's own 404 reaches the client."""
    serving = [candidate for candidate in candidates if candidate.serves_model]
    return serving or candidates


def fewest_inflight(candidates: Sequence[Candidate], chance: Chance) -> Candidate:
    """The candidate with the fewest requests in flight; chance decides between equals.

    Args:
        candidates: at least one.
        chance: so that idle backends share the first requests instead of the first one taking all.
    """
    least = min(candidate.inflight_requests for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.inflight_requests == least]
    return equals[chance(len(equals))] if len(equals) > 1 else equals[0]
