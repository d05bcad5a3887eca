"""Which backends a model's requests may go to, by what is configured about both. A filter; pure.

Made once from the configuration, asked for each request where it says anything at all.
"""

from collections.abc import Collection, Mapping, Sequence

from proxy.core.globs import Globs


class ModelTags:
    """The tags that models ask of their backends, and who has them.

    Args:
        wanted: tags by name or pattern of a served model: its requests go only to backends that have all of them.
        tags: what each backend has, by its name.
    """

    def __init__(self, wanted: Mapping[str, Sequence[str]], tags: Mapping[str, Collection[str]]) -> None:
        self._wanted = Globs({model: tuple(needed) for model, needed in wanted.items()})
        self._having = {
            needed: frozenset(name for name, own in tags.items() if set(needed) <= set(own))
            for needed in map(tuple, wanted.values())
        }

    def tags_for(self, model: str | None) -> Sequence[str]:
        """The tags that a model asks of its backends; none for most."""
        return (self._wanted.find(model) or ()) if model is not None else ()

    def backends_for(self, model: str | None) -> Collection[str] | None:
        """The backends that a model's requests may go to, by name; None for all."""
        needed = tuple(self.tags_for(model))
        return self._having[needed] if needed else None
