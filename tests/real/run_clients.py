"""Real clients through the proxy in front of a scripted engine: `python -m tests.real.run_clients CLAUDE [WORD...]`.

CLAUDE is what setup-claude.sh printed; with words, only scenarios run whose title has one of them. Each scenario is
bounded in time. Exit status 0 when every verdict holds, 1 when one does not, 2 when a client is missing or no scenario
has the word.
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.programs import Programs, clean_up_on_sigterm, say, start_proxy
from tests.real.clients import commands, stories_claude, stories_cli, stories_overflow, stories_sdk
from tests.real.clients.engine import ScriptedEngine, scripted_engine
from tests.real.clients.scenario import Played, Scenario
from tests.real.clients.stage import Stage
from tests.real.trial import run_trial
from tests.real.verdicts import tell_verdicts

_SILENT_S: Final = 60.0
_SILENT_OTHERS_S: Final = 20.0
"""Longer than the proxy stays silent itself, where it keeps streams alive."""
_CLAUDE_SAYS: Final = "Claude Code"


def all_scenarios(claude: Path) -> list[Scenario]:
    """Every scenario of every client.

    Raises:
        NotInstalledError: a client is missing.
    """
    said = subprocess.run([claude, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    if _CLAUDE_SAYS not in said:
        raise commands.NotInstalledError(f"{claude} is no Claude Code; run tests/real/setup-claude.sh")
    claude_code = commands.claude_code(claude, said.split()[0])
    codex, opencode, qwen_code = commands.codex(), commands.opencode(), commands.qwen_code()
    return [
        *stories_cli.scenarios(claude_code, [429, 529, 503], _SILENT_S),
        *stories_claude.scenarios(claude_code),
        *stories_cli.scenarios(codex, [503, 429], _SILENT_OTHERS_S),
        *stories_cli.scenarios(opencode, [429, 503], _SILENT_OTHERS_S),
        *stories_cli.scenarios(qwen_code, [429, 503], _SILENT_OTHERS_S),
        *stories_overflow.scenarios(codex, opencode, qwen_code),
        *stories_sdk.scenarios(),
    ]


async def play_all(programs: Programs, folder: Path, scenarios: Sequence[Scenario]) -> bool:
    """Play them one after the other; says whether every verdict holds."""
    table: list[tuple[Scenario, bool, str]] = []
    async with scripted_engine() as engine:
        proxy = await asyncio.to_thread(start_proxy, programs, engine.url)
        stage = Stage(engine, proxy, folder / "stage")
        for scenario in scenarios:
            await stage.clear()
            played = await scenario.play(stage)
            holds = _tell(scenario, played, engine)
            if not holds:
                stage.keep(folder / f"failed-{len(table)}")
            table.append((scenario, holds, played.said))
    sys.stdout.write("\n")
    for scenario, holds, said in table:
        sys.stdout.write(
            f"{'ok  ' if holds else 'FAIL'}  {scenario.client} {scenario.version}: {scenario.name}: {said}\n"
        )
    return all(holds for _, holds, _ in table)


def _tell(scenario: Scenario, played: Played, engine: ScriptedEngine) -> bool:
    sys.stdout.write(f"\n{scenario.client} {scenario.version}: {scenario.name} ({len(engine.asked)} requests)\n")
    for lines in played.sent:
        sys.stdout.writelines(f"      {line}\n" for line in lines.splitlines())
    sys.stdout.write(f"      printed: {played.said}\n")
    holds = tell_verdicts(played.verdicts)
    sys.stdout.flush()
    return holds


def main(claude: Path, words: Sequence[str]) -> int:
    """Choose the scenarios, play them."""
    try:
        scenarios = all_scenarios(claude)
    except commands.NotInstalledError as missing:
        say(f"test-clients: {missing}")
        return 2
    chosen = [one for one in scenarios if not words or any(word in one.title for word in words)]
    if not chosen:
        say("test-clients: no scenario has that word; there are:\n  " + "\n  ".join(one.title for one in scenarios))
        return 2

    def play(programs: Programs, folder: Path) -> bool:
        return asyncio.run(play_all(programs, folder, chosen))

    return run_trial("clients", play)


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
