"""The pages say what is there: paths, commands, settings, routes, headers, metrics, each compared with the code."""

import re
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from pydantic import BaseModel

from proxy.__main__ import main
from proxy.config import TidegateConfig
from proxy.config.faults import section_of
from proxy.core.backends import Backend
from proxy.core.outcomes import Outcome
from proxy.core.requests import RequestView
from proxy.core.turns import PrefixBreak
from proxy.dialects import routes
from proxy.net import header_rules
from proxy.net.forward import request_head

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES_FOR_USERS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "docs" / "clients.md"]
"""Other pages may speak of commands that are still to come."""
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

SECTIONS = "|".join(TidegateConfig.model_fields)
FOLDERS = "proxy|tests|docs|config|deploy"
NAMED_FILE = re.compile(
    rf"`((?:(?:{FOLDERS}|\.ci)/[\w./-]+)|Makefile|Dockerfile|requirements[\w-]*\.lock|[\w-]+\.toml)`"
)
THEIRS = {"config.toml"}
"""Files that are named but are somebody else's."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def below(heading: str) -> str:
    """The part of the architecture page below a heading, up to the next one."""
    return re.split(r"^#+ ", ARCHITECTURE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(section: str) -> list[list[str]]:
    """The cells of each table row, without the table's head."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def ticked(text: str) -> set[str]:
    """Everything between backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def names(headers) -> set[str]:
    """Header names as they are written on the page."""
    return {name.decode() for name in headers}


def is_setting(dotted: str) -> bool:
    """Whether a dotted name is a key of the configuration."""
    model: type[BaseModel] | None = TidegateConfig
    *sections, key = dotted.split(".")
    for name in sections:
        model = section_of(model, name) if model is not None else None
    return model is not None and key in model.model_fields


@every_page
def test_links_lead_somewhere(page):
    """Every relative link names a file or folder."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]

    assert [target for target in local if not (page.parent / target).exists() and not _is_number(page, target)] == []


def _is_number(page: Path, target: str) -> bool:
    """Whether a link names a decision by its number and first words, without its ending."""
    return (page.parent / f"{target}.md").exists()


@every_page
def test_named_files_exist(page):
    """Every file of this repository that a page names is there."""
    named = set(NAMED_FILE.findall(page.read_text(encoding="utf-8"))) - THEIRS

    assert {path for path in named if not (ROOT / path).exists()} == set()


@every_page
def test_named_settings_exist(page):
    """Every dotted setting, and every environment variable that stands for one, can be set."""
    text = page.read_text(encoding="utf-8")
    dotted = set(re.findall(rf"(?<![\w./-])((?:{SECTIONS})(?:\.[a-z_]+)+)\b(?!\()", text))
    dotted = {name for name in dotted if not name.endswith((".md", ".py", ".yaml", ".toml"))}
    variables = re.findall(r"\bTIDEGATE_([A-Z_]*__[A-Z_]+)\b", text.replace("TIDEGATE_SECTION__KEY", ""))
    dotted |= {variable.lower().replace("__", ".") for variable in variables}

    assert {name for name in dotted if not is_setting(name)} == set()


@pytest.mark.parametrize("page", PAGES_FOR_USERS, ids=lambda page: page.name)
def test_named_commands_exist(page):
    """Every command and every option of it can be typed; so can every make target."""
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wrong = []
    for line in re.findall(r"(?<![\w-])tidegate(?::[\d.]+)? ([a-z][^`\n|]*)", _code(text)):
        name, *words = line.split()
        command = main.commands.get(name)
        options = {option for one in command.params for option in one.opts} if command is not None else set()
        wrong += [f"{name} {word}" for word in words if word.startswith("-") and word not in options]
        wrong += [name] if command is None else []
    wrong += [target for target in re.findall(r"\bmake ([a-z][\w-]*)", _code(text)) if f"\n{target}:" not in makefile]

    assert wrong == []


def _code(text: str) -> str:
    """What a page shows as code, block by block and span by span."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return "\n".join(blocks + spans)


@every_page
def test_named_metrics_and_outcomes_exist(page):
    """Every metric and every ending can be found where the page says; `docs/metrics.md` is checked by its own test."""
    text = page.read_text(encoding="utf-8")
    metrics = set(re.findall(r"\btidegate_[a-z_]+[a-z]\b", text)) - {"tidegate_"}
    endings = set(re.findall(r"\b(?:refused|upstream_error|client)_[a-z_]+\b(?!\.)", text)) - {
        "client_side",
        PrefixBreak.CLIENT_UPGRADE,
    }
    known = {outcome.value for outcome in Outcome}

    assert {name for name in metrics if name not in METRICS} == set()
    assert {name for name in endings if name not in known and f"{name}*" not in text} == set()


def test_the_readme_opens_with_the_two_commands():
    """Whoever has just cloned this finds them before anything else that can be typed."""
    commands = re.search(r"```sh\n(.*?)```", README, flags=re.DOTALL)

    assert commands is not None
    assert ["make run", "make test"] == [line.split("#")[0].strip() for line in commands[1].splitlines()]
    assert README.index("make test") < README.index("tidegate serve --backend http://127.0.0.1:8000")


def test_every_command_is_documented():
    """No command has to be found by accident."""
    assert isinstance(main, click.Group)
    assert {
        name for name in main.commands if f"tidegate {name}" not in README + (ROOT / "CHANGELOG.md").read_text()
    } == set()


def test_every_decision_is_listed():
    """The first decision names all the others, each with its title's number."""
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\((\S+\.md)\)", (folder / "0001-record-decisions.md").read_text(encoding="utf-8")))
    present = {path.name for path in folder.glob("*.md")}

    assert present - {"0001-record-decisions.md"} == listed
    assert all((folder / name).read_text(encoding="utf-8").startswith(f"# {name[:4]}: ") for name in present)


def test_every_library_has_its_reason():
    """No run-time dependency came in without a row, and no row outlived its library."""
    page = (ROOT / "docs" / "decisions" / "0002-libraries.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    at_run_time = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["kv-events"]
    wanted = {re.split(r"[<>=;\s]", dependency)[0] for dependency in at_run_time}

    assert wanted == {row[0].lower() for row in rows(page.split("\n**Rejected.**")[0])}


def test_the_layers_are_those_that_are_checked():
    """The page shows the order that import-linter holds the code to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checked = project["tool"]["importlinter"]["contracts"][0]["layers"]
    block = re.search(r"```text\n(.*?)```", below("Layers"), flags=re.DOTALL)

    assert block is not None
    assert [_parts(layer) for layer in checked] == [_parts(line) for line in block[1].splitlines()]


def _parts(layer: str) -> set[str]:
    return {name.strip(" ()") for name in layer.split("|")}


def test_the_route_table_is_the_allow_list():
    """Each row is forwarded under that name and dialect, and nothing is forwarded that has no row."""
    table = {(row[0], row[1].strip("`")): (row[2].strip("`"), row[3].lower()) for row in rows(below("Routes"))}
    matched = {key: routes.match(key[0], key[1].replace("{id}", "resp_1"))[0] for key in table}
    by_id = {("GET", "/v1/responses/{id}"), ("POST", "/v1/responses/{id}/cancel")}

    assert table == {key: (route.name, route.dialect.value) for key, route in matched.items()}
    assert set(table) == by_id | {(method, path) for path, methods in routes._FORWARDED.items() for method in methods}
    assert {name for name, _ in table.values()} == routes.ROUTE_NAMES


def test_the_headers_that_stop_on_the_way_to_a_backend():
    """Exactly these do not reach an engine."""
    listed = [cells[1] for cells in rows(below("Stopped on the way to a backend"))]

    assert set().union(*map(ticked, listed)) == names(header_rules._STOPPED)
    assert ticked(listed[0]) == names(header_rules.HOP_BY_HOP)
    assert ticked(below("Never to be named in Connection")) == names(header_rules._NEVER_NAMED)


def test_the_headers_that_are_added_on_the_way_to_a_backend():
    """Exactly these are written by the proxy."""
    view = RequestView(
        request_id="r", route=routes.match("POST", "/v1/messages")[0], method="POST", target="/v1/messages",
        headers=(), body=b"{}", arrived_at=0.0,
    )  # fmt: skip
    head = request_head(view, Backend(name="a", host="h", port=1, authority="h:1", api_key="k"), rank=0)
    added = {line.split(b":")[0].decode().lower() for line in head.split(b"\r\n")[1:] if line}

    assert added == {cells[0].strip("`") for cells in rows(below("Added on the way to a backend"))}


def test_the_headers_that_stop_on_the_way_to_the_client():
    """Exactly these do not reach a client."""
    listed = [cells[1] for cells in rows(below("Stopped on the way to the client"))]

    assert set().union(*map(ticked, listed)) == names(header_rules._NOT_RELAYED)


def test_every_timeout_is_explained():
    """The table names each setting that limits a wait on the way of a request."""
    explained = {cells[0].strip("`") for cells in rows(below("Timeouts"))}
    timeouts = section_of(TidegateConfig, "timeouts")

    assert timeouts is not None
    assert explained >= {f"timeouts.{key}" for key in timeouts.model_fields}


def test_yaml_on_the_pages_is_configuration():
    """A block that is shown as YAML can be pasted."""
    blocks = [block for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]

    assert all(TidegateConfig.model_validate(yaml.safe_load(block)) for block in blocks)
