"""Which models each backend says it serves, and the merged list that clients are shown.

Written by `net.probe`, read when placing, answering `/v1/models` and labelling metrics. Bounded by what backends
list, at most `MAX_MODELS` entries a backend.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_MODELS: Final = 1_000
"""A fleet's LoRA adapters fit; a backend gone mad does not fill the metrics."""
_DIGEST_BITS: Final = 2**64 - 1


class ModelTable:
    """Model cards per backend, in the order that the backend listed them."""

    def __init__(self) -> None:
        self._cards: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._names: frozenset[str] = frozenset()
        self._first_roots: dict[str, dict[str, str]] = {}
        self._replaced: dict[str, dict[str, int]] = {}

    def update(self, backend_name: str, cards: Sequence[Mapping[str, Any]]) -> bool:
        """Replace what a backend serves, and say whether that is anything else. Cards without an id are dropped."""
        before = self._cards.get(backend_name)
        now = {card["id"]: card for card in cards[:MAX_MODELS] if _is_usable(card.get("id"))}
        self._cards[backend_name] = now
        self._names = frozenset(name for cards in self._cards.values() for name in cards)
        self._see_roots(backend_name, now)
        return before is None or before.keys() != now.keys()

    def _see_roots(self, backend_name: str, cards: Mapping[str, Mapping[str, Any]]) -> None:
        """Notice models whose weights are from elsewhere than when the backend first listed them."""
        first = self._first_roots.setdefault(backend_name, {})
        roots = {model: root for model, card in cards.items() if isinstance(root := card.get("root"), str)}
        self._replaced[backend_name] = {
            model: hash((backend_name, root)) & _DIGEST_BITS
            for model, root in roots.items()
            if first.setdefault(model, root) != root
        }
        while len(first) > MAX_MODELS:  # names that come and go for months
            del first[next(iter(first))]

    def weights_of(self, model: str | None) -> int:
        """0 while a model is what it was when it was first listed; else a digest of what has taken its place.

        An adapter may be loaded anew under its name, from another folder. vLLM shares no prefix between the two.
        """
        weights = 0
        if model is not None:
            for replaced in self._replaced.values():
                weights ^= replaced.get(model, 0)
        return weights

    def is_known(self, backend_name: str) -> bool:
        """Whether a backend has ever listed its models."""
        return backend_name in self._cards

    def serves(self, backend_name: str, model: str) -> bool:
        """Whether a backend listed this model."""
        return model in self._cards.get(backend_name, ())

    def may_serve(self, backend_name: str, model: str) -> bool:
        """Whether a backend listed this model, or has never listed any."""
        cards = self._cards.get(backend_name)
        return cards is None or model in cards

    def of(self, backend_name: str) -> list[str]:
        """The models that a backend listed, in its order."""
        return list(self._cards.get(backend_name, ()))

    def is_served(self, model: str) -> bool:
        """Whether any backend listed this model."""
        return model in self._names

    def context_tokens(self, model: str) -> int | None:
        """The smallest context that a backend listed for this model, or None when none says it.

        vLLM's card of an adapter leaves it out: its base model's context is its own.
        """
        limits = [_context_of(cards, model) for cards in self._cards.values() if model in cards]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    def label(self, model: str | None) -> str:
        """A closed metric label for what a client asked for."""
        if model is None:
            return "none"
        return model if model in self._names else "other"

    def merged(self) -> list[Mapping[str, Any]]:
        """One card a model over all backends; the first backend that lists it speaks."""
        merged: dict[str, Mapping[str, Any]] = {}
        for cards in self._cards.values():
            for model, card in cards.items():
                merged.setdefault(model, card)
        return list(merged.values())

    def __repr__(self) -> str:
        return f"<ModelTable { ({name: list(cards) for name, cards in self._cards.items()}) }>"


def _context_of(cards: Mapping[str, Mapping[str, Any]], model: str) -> Any:
    card = cards[model]
    context, parent = card.get("max_model_len"), card.get("parent")
    return cards.get(parent, card).get("max_model_len") if context is None and isinstance(parent, str) else context


def _is_usable(model: Any) -> bool:
    """Whether a model's name can be shown and written."""
    return isinstance(model, str) and 0 < len(model) <= 512 and model.isprintable()
