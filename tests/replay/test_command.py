"""The command line says what is wrong before it starts anything."""

import pytest
from click.testing import CliRunner

from proxy.bench.command import replay


def run(*arguments):
    """The command with these arguments."""
    return CliRunner().invoke(replay, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["localhost:8000"], "is no http:// or https:// URL"),
        (["http://a", "--agents", "0"], "--agents"),
        (["http://a", "--api-key-env", "TIDEGATE_TEST_NO_SUCH_KEY"], "holds no API key"),
        (["http://a", "--trace", __file__], "is no packed Claude Code trace"),
    ],
)
def test_used_wrong(arguments, message):
    """Exit status 2 and one line."""
    result = run(*arguments)

    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def test_nobody_there_is_found_wrong():
    """Exit status 1."""
    result = run("http://127.0.0.1:1")

    assert result.exit_code == 1
    assert "http://127.0.0.1:1 does not answer" in result.output
