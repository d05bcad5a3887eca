"""The command line, as its user meets it: words, exit statuses, signals. Never a traceback."""

import os
import re
import signal
import socket
import subprocess
import sys
from time import monotonic

import click
import pytest
from click.testing import CliRunner

from proxy.__main__ import main
from tests.conformance.programs import end_group
from tests.conformance.wire import Call, ask, eventually, is_answering

COMMANDS = ("serve", "demo", "check", "replay", "simulate")
ADDRESS = re.compile(r"(?:listens on|Tidegate \S+ on) (http://127\.0\.0\.1:\d+)")
SECRET = "canary-77ab"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


class Program:
    """A running `tidegate`, and what it has printed so far."""

    def __init__(self, folder, *arguments, **environ):
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "proxy", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**CLEAN, **environ},
            )

    @property
    def out(self):
        """Standard output."""
        return self._out.read_text()

    @property
    def err(self):
        """Standard error."""
        return self._err.read_text()

    def address(self, *, within_s=20.0):
        """Where it listens, once it says so."""
        assert eventually(
            lambda: ADDRESS.search(self.out) is not None or self.process.poll() is not None, within_s=within_s
        )
        found = ADDRESS.search(self.out)
        assert found is not None, self.err
        return found[1]

    def ended_with(self, signum=None, *, within_s=8.0):
        """Its exit status, after a signal if one is given."""
        if signum is not None:
            self.process.send_signal(signum)
        return self.process.wait(within_s)


@pytest.fixture
def start(tmp_path):
    """Starts `tidegate` with arguments; all of them end with the test."""
    started: list[Program] = []

    def run(*arguments, **environ):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Program(folder, *arguments, **environ))
        return started[-1]

    yield run
    for program in started:
        end_group(program.process)


@pytest.fixture
def taken_port():
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


def invoke(*arguments, **environ):
    """Run a command in this process; only for those that end by themselves."""
    return CliRunner().invoke(main, arguments, env={"TIDEGATE_CONFIG": None, **environ})


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_names_every_command(flag):
    """A newcomer sees what there is, and a first command to try."""
    result = invoke(flag)

    assert 0 == result.exit_code
    assert set(COMMANDS) == set(main.commands)
    assert all(re.search(rf"^  {name} +\S", result.output, re.MULTILINE) for name in COMMANDS)
    assert "tidegate demo" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_each_of_its_options(command):
    """No option without words."""
    result = invoke(command, "--help")

    assert 0 == result.exit_code
    for option in main.commands[command].params:
        if isinstance(option, click.Argument):
            continue
        assert option.opts[-1] in result.output
        assert getattr(option, "help", None)


def test_the_version_is_told():
    """One line with the name and the number."""
    assert re.fullmatch(r"tidegate, version \d+\.\d+\.\d+\S*\n", invoke("--version").output)


def test_check_prints_what_would_be_used_with_its_secrets_hidden(tmp_path):
    """Every section with the values that count, and no key of clients or backends."""
    file = tmp_path / "tidegate.yaml"
    file.write_text(f"auth: {{keys: [{SECRET}]}}\nbackends: [{{url: 'http://a:1', api_key: {SECRET}}}]\n")

    result = invoke("check", "--config", str(file), TIDEGATE_LISTEN__PORT="9123")

    assert 0 == result.exit_code
    assert all(word in result.output for word in ("http://a:1", "port: 9123", "drain_s: 600", "********"))
    assert SECRET not in result.output


def test_check_lists_every_fault_at_once_and_says_so_by_its_exit_status(tmp_path):
    """Section 4 of the design: each fault with its path and source, status 1, no secret, no traceback."""
    file = tmp_path / "tidegate.yaml"
    file.write_text(f"listen: {{prot: 1}}\nretry: {{max_attempts: 0}}\nauth: {{keys: ['{SECRET} x']}}\n")

    result = invoke("check", "-c", str(file), "--backend", "ftp://a", TIDEGATE_HEALTH__FALL="many")

    assert 1 == result.exit_code
    for path in ("listen.prot", "retry.max_attempts", "auth.keys[0]", "backends[0].url", "health.fall"):
        assert 1 == sum(line.startswith(path + ":") for line in result.output.splitlines()), result.output
    assert "did you mean port?" in result.output
    assert "TIDEGATE_HEALTH__FALL" in result.output
    assert SECRET not in result.output


@pytest.mark.parametrize(
    "arguments",
    [("serve",), ("serve", "--backend", "a"), ("serve", "-c", "/nowhere"), ("serve", "--prot", "1"), ("simulat",)],
    ids=["no backend", "bad backend", "no file", "no such option", "no such command"],
)
def test_wrong_use_is_status_2_and_says_what_to_do(arguments):
    """Used wrong is not found wrong."""
    result = invoke(*arguments)

    assert 2 == result.exit_code
    assert "Traceback" not in result.output
    assert re.search(r"--backend|backends\[0\]\.url|does not exist|Did you mean|No such command", result.output)


@pytest.mark.parametrize("command", [("serve", "--backend", "http://127.0.0.1:9"), ("demo",)], ids=["serve", "demo"])
def test_a_used_port_is_one_clear_line(start, taken_port, command):
    """Status 1, the address in it, and no traceback."""
    program = start(*command, "--port", taken_port, "--log-level", "error")

    assert 1 == program.ended_with(within_s=20)
    assert ("", 1) == (program.out, len(program.err.splitlines()))
    assert re.match(rf"tidegate: .*{taken_port}.*in use", program.err)


@pytest.mark.parametrize("url", ["http://" + "a" * 70, "http://a..b:8000", "http://does-not-exist.invalid"])
def test_a_host_that_cannot_exist_is_no_traceback(start, url):
    """Refused as a setting, or down like any backend that does not answer."""
    program = start("serve", "--backend", url, "--port", "0")

    assert eventually(lambda: program.process.poll() is not None or "listens on" in program.out, within_s=20)
    assert program.process.poll() in {None, 2}
    assert "Traceback" not in program.err


def test_the_demo_is_ready_soon_and_says_what_to_try(start):
    """Ready within five seconds, with three things to try that name its address; Ctrl-C ends it well."""
    began = monotonic()
    program = start("demo", "--port", "0", "--speed", "50")
    url = program.address()
    assert eventually(lambda: is_answering(url, "/readyz"), within_s=5)
    took_s = monotonic() - began

    assert took_s < 5
    for words in (
        f"curl -N {url}/v1/chat/completions",
        f"ANTHROPIC_BASE_URL={url} ",
        f"{url}/status",
        f"{url}/metrics",
        "Ctrl-C stops it.",
    ):
        assert words in program.out
    assert 0 == program.ended_with(signal.SIGINT)
    assert "Traceback" not in program.err


def test_serve_tells_where_it_listens_and_which_backends_are_down(start):
    """A dead backend does not stop the start; the lines say what is up, and both signals end it well."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        program = start("serve", "-b", "http://127.0.0.1:9", "--port", "0", "--log-format", "json")
        url = program.address()

        assert "backend 127.0.0.1:9: DOWN" in program.out
        assert 503 == ask(url, "/readyz", method="GET").status
        assert 0 == program.ended_with(signum)
        assert "Traceback" not in program.err


@pytest.mark.parametrize(("max_tokens", "is_hurried"), [(60, False), (50_000, True)], ids=["once", "twice"])
def test_sigterm_lets_a_stream_end_and_a_second_one_does_not(start, max_tokens, is_hurried):
    """Rows 102 and 103: drained, the stream is whole; hurried, it is cut at once; the status is 0 either way."""
    body = {"model": "tidegate-demo", "messages": [{"role": "user", "content": "x"}], "stream": True}
    program = start("demo", "--port", "0", "--engines", "1", "--speed", "2")
    with Call(program.address(), "/v1/chat/completions", {**body, "max_tokens": max_tokens}) as call:
        pieces = call.pieces()
        received = [next(pieces)]
        program.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: "Stopping" in program.err, within_s=5)
        if is_hurried:
            program.process.send_signal(signal.SIGTERM)
        else:
            assert b"".join([*received, *pieces]).endswith(b"data: [DONE]\n\n")
        assert 0 == program.ended_with()
    assert "Traceback" not in program.err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_it_without_a_traceback(start, signum):
    """Row 103: whenever it comes, it is an order to stop and no crash."""
    with socket.socket() as mute:  # takes the first probe and says nothing: the start waits for it
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        program = start("serve", "-b", url, "--port", "0", TIDEGATE_HEALTH__TIMEOUT_S="0.5")
        mute.settimeout(20)
        asked, _ = mute.accept()
        with asked:
            status = program.ended_with(signum, within_s=15)

    assert 0 == status
    assert "Traceback" not in program.err


def test_a_reader_of_its_output_that_leaves_is_no_traceback(tmp_path):
    """`tidegate serve | head -0` ends, in one line at most."""
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy", "serve", "-b", "http://127.0.0.1:9", "--port", "0", "--log-level", "error"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        process.stdout.close()
        assert 1 == process.wait(20)
    finally:
        end_group(process)
    assert "Traceback" not in (tmp_path / "err").read_text()
