"""Tells whose metrics page a text is. Pure."""

from typing import Final

from proxy.core.reports import EngineKind

_PREFIXES: Final = {
    "vllm:": EngineKind.VLLM,
    "vllm_": EngineKind.VLLM,
    "sglang:": EngineKind.SGLANG,
    "sglang_": EngineKind.SGLANG,
}


def kind_of(text: str) -> EngineKind | None:
    """The engine whose sample comes first, or None."""
    starts = ((0 if text.startswith(prefix) else text.find("\n" + prefix), kind) for prefix, kind in _PREFIXES.items())
    return min(((at, kind) for at, kind in starts if at >= 0), default=(0, None))[1]
