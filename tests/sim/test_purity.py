"""The pure part of the simulation stays free of clocks, loops and sockets."""

import subprocess
import sys

import pytest

PURE = (
    "engine",
    "agents",
    "compare",
    "answers",
    "asks",
    "chat_template",
    "metrics_page",
    "wire_openai",
    "wire_anthropic",
)


@pytest.mark.parametrize("module", PURE)
def test_importing_it_loads_no_loop_and_no_server(module):
    """A policy simulation can use the engine without asyncio or aiohttp ever being imported."""
    code = f"import sys, proxy.sim.{module}; print([m for m in ('asyncio', 'aiohttp', 'socket') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
