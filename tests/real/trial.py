"""One run on a real engine that is judged at its end: what it wrote is kept when it did not hold."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.conformance.programs import NotStartedError, Programs, say


class NotMeasuredError(Exception):
    """A run gave nothing that could be judged."""


def run_trial(name: str, play: Callable[[Programs, Path], bool]) -> int:
    """Run it and end whatever it started.

    Args:
        name: the make target.
        play: does it, given where to start programs and a folder for what they write; says whether everything held.

    Returns:
        An exit status.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))
    failure: Exception | None = None
    holds = False
    with Programs(folder) as programs:
        try:
            holds = play(programs, folder)
        except (NotStartedError, NotMeasuredError) as error:
            failure = error
            programs.show_logs()
    if holds:
        shutil.rmtree(folder)
        return 0
    say(f"{name}: {failure or 'a verdict failed'}; whole logs and reports are in {folder}")
    return 1
