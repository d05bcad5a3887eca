"""The page of failures names tests that exist, and events, statuses and headers that the code knows."""

import ast
import re
from pathlib import Path

import pytest

from proxy.gate.reporting import EngineChange

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def rows():
    """The cells of each row of the tables, without their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| failure |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def existing_tests():
    """Names of all test functions, those of classes included."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(node.name)
    return found


def test_every_named_test_exists():
    """A row whose proof was renamed or removed is a promise that nobody keeps."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))

    assert len(named) > 50
    assert named - existing_tests() == set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_every_failure_has_what_is_done_what_is_seen_and_a_test(row):
    """No row without its proof."""
    failure, does, seen, tests = row

    assert failure
    assert len(does) > 10
    assert seen
    assert re.fullmatch(r"`test_\w+`(, `test_\w+`)*", tests)


def test_every_named_event_is_written_and_explained():
    """Whoever searches the log for one finds it; so does whoever searches the code or the page of metrics."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py"))
    changes = {f"backend.{change.value}" for change in EngineChange}
    named = set(re.findall(r"`(backend\.[a-z_]+)`", PAGE))

    assert {name for name in named if f'"{name}"' not in source} - changes == set()
    assert {name for name in named | changes if f"`{name}`" not in METRICS} == set()
