"""What the layout promises and no linter checks: tests beside the code, names, sizes, no hidden imports."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "proxy").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MIRRORED = ("core", "policy", "state", "dialects")
WITHOUT_TEST: dict[str, str] = {}
"""Files with behaviour and no test of their own. Shorter is better: an entry goes when its test comes."""

BANNED_WORDS = {"utils", "util", "helpers", "helper", "common", "manager", "base", "types", "misc"}
MAX_LINES = 450

CATCHES_EVERYTHING = {
    "proxy/net/server.py": "the outermost handler: a fault of ours is an answer too",
    "proxy/telemetry/recorder.py": "counting must not break answering",
    "proxy/dispatch.py": "the room that a turn took is given back whatever ended it",
    "proxy/waiting_room.py": "a place in the queue is given up whatever ended the wait",
    "proxy/telemetry/logs.py": "no request may fail because its log line could not be made",
}


def shown(path: Path) -> str:
    """A path as it is named in the lists above."""
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    """A file's syntax."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def has_behaviour(path: Path) -> bool:
    """Whether a file does anything: values, protocols and what merely keeps its arguments do not."""
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(function.name != "__init__" and has_statements(function) for function in functions)


def has_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has more than a docstring."""
    return not all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in function.body)


def untested() -> set[str]:
    """Files with behaviour in the deciding packages that have no test file of their own name."""
    packages = ROOT / "proxy"
    files = [path for name in MIRRORED for path in (packages / name).rglob("*.py") if has_behaviour(path)]
    return {
        path.relative_to(packages).as_posix()
        for path in files
        if not (ROOT / "tests" / path.relative_to(packages).with_name(f"test_{path.name}")).exists()
    }


def broad_handlers(module: ast.Module) -> Iterator[ast.ExceptHandler]:
    """Handlers that catch every error there is."""
    for node in ast.walk(module):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {one.id for one in caught if isinstance(one, ast.Name)}
            if node.type is None or names & {"Exception", "BaseException"}:
                yield node


def late_imports(module: ast.Module) -> Iterator[int]:
    """Lines of imports inside functions."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (node.lineno for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))


def test_what_decides_has_a_test_of_its_own():
    """Who changes a decision finds its test by the file's name."""
    assert untested() - WITHOUT_TEST.keys() == set()


def test_the_exceptions_are_still_exceptions():
    """The list of files without a test names no file that has one, or that is gone."""
    assert WITHOUT_TEST.keys() - untested() == set()


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=shown)
def test_file_names_say_what_is_inside(path):
    """A name that fits everything is where everything ends up."""
    assert BANNED_WORDS.isdisjoint(path.stem.split("_"))


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=shown)
def test_files_can_be_read_in_one_go(path):
    """Beyond this length a file has more than one subject."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_only_listed_files_catch_everything():
    """Elsewhere an error that nobody expected is not swallowed."""
    catching = {shown(path) for path in SOURCES if any(broad_handlers(tree(path)))}

    assert catching == CATCHES_EVERYTHING.keys()


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_imports_stand_at_the_top(path):
    """What a file needs is seen at its head, and a cycle shows itself at once."""
    assert list(late_imports(tree(path))) == []


def test_every_package_is_in_the_layers():
    """A new package gets its place in the layers before it gets its second file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    present = {f"proxy.{path.name.removesuffix('.py')}" for path in (ROOT / "proxy").iterdir()}

    assert present - placed <= {"proxy.__init__", "proxy.__pycache__"}
