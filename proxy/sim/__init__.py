"""The simulated engine: a pure model of vLLM's scheduler in virtual time, and an HTTP face on it."""
