"""The command-line clients: how each is set up, started and read. docs/clients.md shows the same settings."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.real.clients.engine import CONTEXT_TOKENS, MODEL
from tests.real.clients.replies import ToolCall
from tests.real.clients.stage import NOTE_FILE, Printed, Stage

HERE: Final = Path(__file__).parent
MODULES: Final = HERE / "node_modules"
_INSTALL: Final = "tests/real/setup-clients.sh"


class NotInstalledError(Exception):
    """A client is missing; says what installs it."""


@dataclass(frozen=True)
class Cli:
    """One command-line client.

    Attributes:
        session_header: by which the proxy must know its session.
        summary_words: what stands in its request for a summary, and in no other.
        tool: the call of one of its own tools that reads a file.
        set_up: writes its settings into a home, given the proxy's address.
        shown_errors: what it lets its user see of trouble, even if it gets over it.
    """

    name: str
    version: str
    start: tuple[str, ...]
    session_header: str
    summary_words: str
    tool: Callable[[Path], ToolCall]
    set_up: Callable[[Path, str], None]
    environment: Callable[[str], Mapping[str, str]]
    shown_errors: Callable[[Printed], list[str]]

    async def ask(self, stage: Stage, prompt: str, within_s: float, extra: Mapping[str, str] | None = None) -> Printed:
        """One non-interactive run."""
        self.set_up(stage.home, stage.proxy.url)
        environment = {**self.environment(stage.proxy.url), **(extra or {})}
        return await stage.run([*self.start, prompt], environment, within_s)

    def read_note(self, stage: Stage) -> ToolCall:
        """The call of its tool that reads the file on the stage."""
        return self.tool(stage.work / NOTE_FILE)


def version_of(package: str) -> str:
    """Which version of a package is installed.

    Raises:
        NotInstalledError: none is.
    """
    try:
        return str(json.loads((MODULES / package / "package.json").read_text())["version"])
    except OSError:
        raise NotInstalledError(f"{package} is not installed; run {_INSTALL}") from None


def node() -> str:
    """Where node is.

    Raises:
        NotInstalledError: nowhere.
    """
    found = shutil.which("node")
    if found is None:
        raise NotInstalledError("node is not installed; it comes with npm, Node.js 20 or newer")
    return found


def _command(package: str, name: str) -> tuple[str, str]:
    """The version and the path of a command that a package brings."""
    version, path = version_of(package), MODULES / ".bin" / name
    if not path.exists():
        raise NotInstalledError(f"{package} brought no command {name}; run {_INSTALL}")
    return version, str(path)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2))


def _events(printed: Printed, kinds: Sequence[str], field: str = "type") -> list[dict[str, Any]]:
    return [event for event in printed.events if event.get(field) in kinds]


# Claude Code


def claude_code(executable: Path, version: str) -> Cli:
    """Claude Code, as setup-claude.sh found it."""

    def environment(url: str) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "any",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(CONTEXT_TOKENS),
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def shown_errors(printed: Printed) -> list[str]:
        results = _events(printed, ["result"])
        return [str(result["result"]) for result in results if result.get("is_error")]

    return Cli(
        name="claude-code",
        version=version,
        start=(str(executable), "--output-format", "stream-json", "--verbose", "-p"),
        session_header="x-claude-code-session-id",
        summary_words="create a detailed summary of the conversation",
        tool=lambda path: ToolCall("Read", {"file_path": str(path)}),
        set_up=lambda _home, _url: None,
        environment=environment,
        shown_errors=shown_errors,
    )


# Codex

_CODEX_SETTINGS: Final = """\
model = "{model}"
model_provider = "tidegate"
model_context_window = {context}

[model_providers.tidegate]
name = "Tidegate"
base_url = "{url}/v1"
env_key = "VLLM_API_KEY"
wire_api = "responses"
"""


def codex() -> Cli:
    """Codex; its sandbox is off, since it needs rights that a test machine may not give."""
    version, command = _command("@openai/codex", "codex")

    def set_up(home: Path, url: str) -> None:
        path = home / ".codex" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_CODEX_SETTINGS.format(model=MODEL, context=CONTEXT_TOKENS, url=url))

    return Cli(
        name="codex",
        version=version,
        start=(command, "exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"),
        session_header="session-id",
        summary_words="CONTEXT CHECKPOINT COMPACTION",
        tool=lambda path: ToolCall("exec_command", {"cmd": f"cat {path}"}),
        set_up=set_up,
        environment=lambda _url: {"VLLM_API_KEY": "any"},
        shown_errors=lambda printed: [str(event["message"]) for event in _events(printed, ["error"])],
    )


# opencode


def opencode() -> Cli:
    """Opencode, with the provider package for anything that speaks chat completions."""
    version, command = _command("opencode-ai", "opencode")

    def set_up(home: Path, url: str) -> None:
        limit = {"context": CONTEXT_TOKENS, "output": 8_192}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Tidegate",
            "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
            "models": {MODEL: {"name": MODEL, "limit": limit}},
        }
        settings = {
            "provider": {"tidegate": provider},
            "model": f"tidegate/{MODEL}",
            "small_model": f"tidegate/{MODEL}",
            "autoupdate": False,
            "share": "disabled",
        }
        _write_json(home / ".config" / "opencode" / "opencode.json", settings)

    return Cli(
        name="opencode",
        version=version,
        start=(command, "run", "--format", "json"),
        session_header="x-session-id",
        summary_words="Do not mention the summary process",
        tool=lambda path: ToolCall("read", {"filePath": str(path)}),
        set_up=set_up,
        environment=lambda _url: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        shown_errors=lambda printed: [json.dumps(event["error"]) for event in _events(printed, ["error"])],
    )


# Qwen Code


def qwen_code() -> Cli:
    """Qwen Code; it names its session only in a header that its settings spell out."""
    version, command = _command("@qwen-code/qwen-code", "qwen")

    def set_up(home: Path, url: str) -> None:
        generation = {
            "timeout": 600_000,
            "contextWindowSize": CONTEXT_TOKENS,
            "customHeaders": {"X-Qwen-Code-Session-Id": "${session_id}"},
        }
        model = {"id": MODEL, "envKey": "VLLM_API_KEY", "baseUrl": f"{url}/v1", "generationConfig": generation}
        settings = {
            "security": {"auth": {"selectedType": "openai"}},
            "modelProviders": {"openai": [model]},
            "model": {"name": MODEL},
            "outboundCorrelation": {"allowDynamicHeaderValues": True},
            "privacy": {"usageStatisticsEnabled": False},
        }
        _write_json(home / ".qwen" / "settings.json", settings)

    return Cli(
        name="qwen-code",
        version=version,
        start=(command, "-p"),
        session_header="x-qwen-code-session-id",
        summary_words="the component that summarizes a conversation",
        tool=lambda path: ToolCall("read_file", {"file_path": str(path)}),
        set_up=set_up,
        environment=lambda _url: {"VLLM_API_KEY": "any"},
        shown_errors=lambda printed: [line for line in printed.output.splitlines() if "API Error" in line],
    )
