"""Both halves of `make test-vllm`, or one: `python -m tests.real.run_vllm INSTALL HALF [PYTEST ARGS]`.

HALF is `conformance`, `agents` or `both`; the second half runs whatever became of the first.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.programs import clean_up_on_sigterm
from tests.real import run_agents, run_conformance

HALVES: Final = ("both", "conformance", "agents")
_USED_WRONG: Final = 2


def main(install: Path, half: str, arguments: Sequence[str]) -> int:
    """The first exit status that is not zero."""
    if half not in HALVES:
        sys.stderr.write(f"test-vllm: HALF is one of {', '.join(HALVES)}, not {half!r}\n")
        return _USED_WRONG
    statuses = []
    if half != "agents":
        statuses.append(run_conformance.main(install, list(arguments)))
    if half != "conformance":
        statuses.append(run_agents.main(install))
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
