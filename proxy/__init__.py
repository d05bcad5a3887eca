"""Tidegate: a load-balancing proxy for vLLM that admits only what fits the engines' live KV cache."""

__version__ = "0.1.0"
