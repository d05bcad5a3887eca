"""The simulate command as a user calls it."""

import json

import pytest
from click.testing import CliRunner

from proxy.gate.engine_room import EngineRoom
from proxy.gate.lessons import Lessons
from proxy.gate.starts import Starts
from proxy.sim.gate_policy import VARIANTS
from proxy.sim.simulate_command import ENGINES, build_policy, simulate

SHORT = ["--workload", "agents", "--engine", "h200-8b", "--warm-up", "0.2", "--minutes", "0.5"]


def call(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(simulate, arguments)


def test_a_table_with_a_line_a_run():
    """Policies side by side, with agents and seeds said."""
    result = call(*SHORT, "-n", "4", "--policy", "pass", "--policy", "gate", "--seed", "1", "--seed", "2")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines() if line.startswith(("pass ", "gate "))]
    assert [row[:3] for row in rows] == [["pass", "4", "1"], ["gate", "4", "1"], ["pass", "4", "2"], ["gate", "4", "2"]]


def test_json_lines():
    """Everything that is known of a run, one object a line."""
    result = call(*SHORT, "-n", "4", "--policy", "gate", "--json")
    assert result.exit_code == 0, result.output
    (run,) = [json.loads(line) for line in result.output.splitlines()]
    assert run["policy"] == "gate"
    assert run["agents"] == 4
    assert run["seed"] == 1
    assert run["turns_per_min"] > 0
    assert "theta" in run["facts"]


def test_recorded_sessions_by_default():
    """No file is needed: the recordings come with the package."""
    result = call("-n", "2", "--minutes", "2", "--warm-up", "0", "--policy", "pass")
    assert result.exit_code == 0, result.output
    assert "claude-code" in result.output


@pytest.mark.parametrize("spec", ["nothing", "turn-cap", "turn-cap:0", "turn-cap:x", "pass:1", "gate:no-such-part"])
def test_an_unknown_policy_is_a_usage_error(spec):
    """Exit status 2, with the choices."""
    result = call("--policy", spec)
    assert result.exit_code == 2
    assert "choose from" in result.output


@pytest.mark.parametrize(
    "spec", ["gate:no-leases", "gate:no-ghost-loop", "thunderagent", "session-cap:7", "working-set:125000"]
)
def test_policies_carry_the_name_they_were_asked_by(spec):
    """So that a table's line can be run again."""
    assert build_policy(spec, 2, ENGINES["card-243k"]).name == spec


def test_what_is_switched_off_is_there_when_it_is_on():
    """A part that the gate has renamed would otherwise be compared with itself."""
    for variant in VARIANTS.values():
        for kind in {variant.starts, variant.lessons, variant.room} - {Starts, Lessons, EngineRoom}:
            overridden = [name for name in vars(kind) if not name.startswith("__")]
            assert all(hasattr(kind.__base__, name) for name in overridden)


@pytest.mark.parametrize("part", sorted(filter(None, VARIANTS)))
def test_every_part_that_the_help_names_can_be_switched_off(part):
    """An ablation that cannot be run is no evidence."""
    result = call("--workload", "agents", "-n", "2", "--warm-up", "0", "--minutes", "0.2", "--policy", f"gate:{part}")

    assert result.exit_code == 0, result.exception


def test_the_knee_guard_is_faster_where_there_is_a_knee():
    """And the same to the digit where there is none: the users' card, on which memory ends before decoding does."""
    load = ["--workload", "writers", "-n", "16", "--warm-up", "5", "--policy", "gate", "--policy", "gate:knee-guard"]
    knee, without, undrafted = (
        [
            json.loads(line)
            for line in call(*load, "--json", "--minutes", minutes, "--engine", *engine).output.splitlines()
        ]
        for minutes, *engine in (("20", "card-32gb-knee"), ("5", "card-32gb"), ("5", "card-32gb", "--mtp", "0"))
    )

    assert knee[1]["tokens_per_s"] > 1.04 * knee[0]["tokens_per_s"]
    assert knee[1]["facts"]["capped_s"] > 0
    for plain, with_guard in (without, undrafted):
        assert with_guard["facts"]["capped_s"] == 0
        assert with_guard["tokens_per_s"] == plain["tokens_per_s"]
