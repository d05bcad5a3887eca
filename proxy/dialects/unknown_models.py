"""What a client is told whose model nobody serves. Pure."""

from collections.abc import Sequence
from typing import Final

from proxy.core.errors import Refusal
from proxy.core.outcomes import Outcome
from proxy.dialects.routes import clipped

_MAX_NAMES: Final = 12


def refusal(model: str, served: Sequence[str]) -> Refusal:
    """A 404 that names what is served instead, as far as that fits into a sentence.

    Args:
        model: what was asked for.
        served: what there is.
    """
    names = ", ".join(clipped(name) for name in served[:_MAX_NAMES])
    more = f" and {len(served) - _MAX_NAMES} more" if len(served) > _MAX_NAMES else ""
    there_is = f" There is: {names}{more}." if served else ""
    message = f"The model `{clipped(model)}` is not served here.{there_is} models.aliases can give it another name."
    return Refusal(Outcome.REFUSED_NOT_FOUND, 404, message)
