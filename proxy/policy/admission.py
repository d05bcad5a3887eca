"""Whether a request may be placed now. The port that every admission policy fills, and the one that admits all."""

from collections.abc import Sequence
from typing import Protocol

from proxy.core.backends import Candidate
from proxy.core.requests import RequestView


class Admission(Protocol):
    """Narrows the candidates to those that may take this request now."""

    def admissible(self, view: RequestView, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The candidates with room; none means that the request has to wait or be refused."""


class AdmitAll:
    """No limit at all: what a plain load balancer does."""

    def admissible(self, view: RequestView, candidates: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002
        """Every candidate has room."""
        return candidates
