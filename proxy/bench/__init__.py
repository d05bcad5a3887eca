"""Measures an engine, or a proxy in front of one, from the client's side: `replay` runs coding agents against a URL."""
