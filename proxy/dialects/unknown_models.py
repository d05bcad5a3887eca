"""What a client is told whose model nobody serves, or nobody who is up and may. Pure."""

from collections.abc import Sequence
from typing import Final

from proxy.core.errors import ModelUnknown, Refusal
from proxy.core.outcomes import Outcome
from proxy.dialects.routes import clipped

_MAX_NAMES: Final = 12


def refusal(model: str, served: Sequence[str]) -> ModelUnknown:
    """A 404 that names what is served instead, as far as that fits into a sentence.

    Args:
        model: what was asked for.
        served: what there is.
    """
    names = ", ".join(clipped(name) for name in served[:_MAX_NAMES])
    more = f" and {len(served) - _MAX_NAMES} more" if len(served) > _MAX_NAMES else ""
    there_is = f" There is: {names}{more}." if served else ""
    message = f"The model `{clipped(model)}` is not served here.{there_is} models.aliases can give it another name."
    return ModelUnknown(Outcome.REFUSED_NOT_FOUND, 404, message)


def elsewhere(model: str, tags: Sequence[str]) -> ModelUnknown:
    """A 404 for a model that only backends serve to which its requests may not go.

    Args:
        model: what was asked for.
        tags: what `models.tags` asks of its backends.
    """
    needed = ", ".join(tags)
    message = f"The model `{clipped(model)}` is served, but by no backend with the tags that it needs: {needed}."
    return ModelUnknown(Outcome.REFUSED_NOT_FOUND, 404, message)


def all_down(tags: Sequence[str], retry_after_s: int) -> Refusal:
    """A 503 while no backend is up to which a model's requests may go.

    Args:
        tags: what `models.tags` asks of them; most often nothing.
        retry_after_s: when to ask again.
    """
    which = f" with the tags that this model needs ({', '.join(tags)})" if tags else ""
    message = f"No backend{which} is available for this request right now."
    return Refusal(Outcome.REFUSED_NO_BACKEND, 503, message, retry_after_s=retry_after_s)
