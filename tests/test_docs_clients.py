"""The table of known failures names every rule once, tests that exist, and a reason wherever something is missing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
NEVER_GIVEN = {8, 21, 27, 34, 36, 37, 39, 49, 53, 58}
STATES = {"done", "in part", "not done", "open"}


def rows():
    """The cells of each rule's row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:3] == "| L"]


def existing_tests():
    """The names of all test functions."""
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_rule_has_one_row():
    """In their order, none twice."""
    assert [f"L{number:02d}" for number in range(1, 76) if number not in NEVER_GIVEN] == [row[0] for row in rows()]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_rule_is_proved_or_says_what_is_missing(row):
    """Done is what a test shows; all else has its reason."""
    _, what, state, remark, tests = row

    assert what
    assert state in STATES
    assert tests or state != "done"
    assert remark or state == "done"
    assert re.fullmatch(r"(`test_\w+`(, `test_\w+`)*)?", tests)


def test_every_named_test_exists():
    """A proof that was renamed or removed is none."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))

    assert len(named) > 80
    assert named - existing_tests() == set()


def test_tests_that_bear_a_number_bear_one_of_the_tables():
    """Whoever reads it in a test's name finds it on the page."""
    numbers = {number for name in existing_tests() for number in re.findall(r"_l(\d\d)(?=_)", name)}

    assert {f"L{number}" for number in numbers} <= {row[0] for row in rows()}
