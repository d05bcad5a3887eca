"""The benchmark: what the proxy costs, as ratios to a plain aiohttp proxy and to nginx from one interleaved run.

`make bench` runs it; docs/benchmarks.md says how to read it.
"""
