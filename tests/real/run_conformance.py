"""The conformance cases on a real vLLM behind the proxy: `python -m tests.real.run_conformance INSTALL [PYTEST ARGS]`.

INSTALL is the folder that setup-vllm.sh printed. The exit status is pytest's, or 1 when something did not start.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.conformance.programs import ROOT, NotStartedError, Programs, clean_up_on_sigterm, say, start_proxy
from tests.real.engine import MODEL_NAMES, start_vllm

_CASE_TIMEOUT_S: Final = "180"
"""A CPU takes its time over long prompts; a case that hangs is still found."""


def run_cases(engine_url: str, proxy_url: str, engine_log: Path, arguments: list[str]) -> int:
    """Run pytest over the cases and return its exit status."""
    environment = {
        **os.environ,
        "TIDEGATE_CONFORMANCE_URL": proxy_url,
        "TIDEGATE_CONFORMANCE_DIRECT_URL": engine_url,
        "TIDEGATE_CONFORMANCE_MODEL": MODEL_NAMES[0],
        "TIDEGATE_CONFORMANCE_ENGINE_LOG": str(engine_log),
        "TIDEGATE_CONFORMANCE_COMPLETE": "1",
    }
    # Hypothesis has no part here, and its plug-in, which imports it for the summary, can crash CPython 3.11 there.
    pytest = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "--timeout", _CASE_TIMEOUT_S]
    command = [*pytest, "tests/conformance", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main(install: Path, arguments: list[str]) -> int:
    """Start both, run the cases, stop both; keep and show the logs when something failed."""
    logs = Path(tempfile.mkdtemp(prefix="tidegate-vllm-"))
    with Programs(logs) as programs:
        try:
            engine = start_vllm(programs, install)
            proxy = start_proxy(programs, engine.url)
            status = run_cases(engine.url, proxy.url, engine.log, arguments)
        except NotStartedError as error:
            say(f"test-vllm: {error}")
            status = 1
        if status:
            programs.show_logs()
    if status:
        say(f"test-vllm: failed; whole logs are in {logs}")
    else:
        shutil.rmtree(logs)
    return status


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
