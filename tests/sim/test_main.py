"""The command line of the simulated engine."""

from click.testing import CliRunner

from proxy.sim.__main__ import main


def test_compare_prints_all_and_passes(monkeypatch):
    """The comparison shows measured, simulated and ratio, and finds every queue start inside its bracket."""
    monkeypatch.setattr("proxy.sim.compare.AGENTS_WARM_UP_S", 5.0)
    monkeypatch.setattr("proxy.sim.compare.AGENTS_WINDOW_S", 20.0)
    result = CliRunner().invoke(main, ["compare"])
    assert result.exit_code == 0
    assert "card-32gb MTP 3" in result.output
    assert "h200-8b plain" in result.output
    assert result.output.count(": inside") == 4


def test_unknown_preset_is_a_usage_error():
    """A wrong preset names the right ones and exits with 2."""
    result = CliRunner().invoke(main, ["serve", "--preset", "nope"])
    assert result.exit_code == 2
    assert "card-32gb" in result.output
