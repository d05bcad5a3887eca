"""`tidegate demo`, tried as what it prints tells a newcomer to try it."""

import json
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from tests.conformance.bodies import CHAT, ONE_PIXEL_PNG, OPENAI_TOOL, body_for, said
from tests.conformance.programs import Programs
from tests.conformance.wire import ask, is_answering

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
MODEL = "tidegate-demo"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """What these cases start; ended after the last of them."""
    with Programs(tmp_path_factory.mktemp("demo")) as programs:
        yield programs


def started(programs, name, **settings):
    """Start the demo with these variables, wait until it is ready, and return its process."""
    log = programs.log(name)
    return programs.start(
        name,
        [sys.executable, "-m", "proxy", "demo", "--port", "0", "--speed", "50"],
        is_ready=lambda: (
            (address := ADDRESS.search(log.read_text())) is not None and is_answering(address[0], "/readyz")
        ),
        within_s=20,
        environment={"PYTHONUNBUFFERED": "1", **settings},
    )


@pytest.fixture(scope="module")
def printed(programs):
    """All that a running demo has printed."""
    started(programs, "demo")
    return programs.log("demo").read_text()


def found(pattern: str, text: str) -> str:
    """What the pattern's group matches in the text, where it must be."""
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in:\n{text}"
    return match[1]


@pytest.fixture
def url(printed):
    """Where the demo listens."""
    return found(f"({ADDRESS.pattern})", printed)


def test_printed_curl_line(printed, url):
    """The curl line that it prints names a path and a body that give a stream."""
    path = found(rf"curl -N {url}(\S+)", printed)
    body = json.loads(found(r"-d '(.+)'", printed))
    answer = ask(url, path, body)
    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_printed_addresses(printed, url):
    """Every other address that it prints answers."""
    paths = set(re.findall(rf"{url}(/(?!v1)\S+)", printed))
    assert {"/status", "/metrics"} <= paths
    assert all(is_answering(url, path) for path in paths)


def test_openai_sdk(url):
    """The OpenAI SDK gets a whole answer and a stream, with a tool list and an image in the question."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ONE_PIXEL_PNG}"}}
    content = [{"type": "text", "text": "What is this?"}, image]
    asked: dict[str, Any] = {"model": MODEL, "messages": said(content), "tools": [OPENAI_TOOL], "max_tokens": 12}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        whole = client.chat.completions.create(**asked)
        pieces = [
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(stream=True, **asked)
        ]
    assert whole.choices[0].message.content == "".join(pieces) != ""


@pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
def test_anthropic_sdk_with_the_model_for_claude_code(printed, url):
    """The Anthropic SDK gets a whole message and a stream from the model that the line for Claude Code names."""
    model = found(r"ANTHROPIC_MODEL=(\S+)", printed)
    asked: dict[str, Any] = {"model": model, "messages": said(), "max_tokens": 12}
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=30) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
    assert "".join(block.text for block in whole.content if block.type == "text") == text != ""


def test_error_in_the_openai_sdk(url):
    """A model that it does not have is not found."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.NotFoundError),
    ):
        client.chat.completions.create(model="no-such-model", messages=said())


def test_error_in_the_anthropic_sdk(url):
    """A model that it does not have is not found in the other dialect either."""
    client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
    with client, pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="no-such-model", messages=said(), max_tokens=2)


@pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
def test_l44_the_anthropic_sdk_asks_for_claude_codes_small_model(programs):
    """With one line of configuration every name of that family is the served model; whole answers and streams."""
    started(programs, "aliased", TIDEGATE_MODELS__ALIASES=json.dumps({"claude-haiku-*": MODEL}))
    url = found(f"({ADDRESS.pattern})", programs.log("aliased").read_text())
    asked: dict[str, Any] = {"model": "claude-haiku-4-5-20251001", "messages": said(), "max_tokens": 12}
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=30) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
        with pytest.raises(anthropic.NotFoundError, match="claude-opus-9"):
            client.messages.create(model="claude-opus-9", messages=said(), max_tokens=2)
    assert whole.model == MODEL
    assert "".join(block.text for block in whole.content if block.type == "text") == text != ""


def test_both_engines_work(url):
    """Requests that run at the same time are spread over both engines."""
    body = body_for(CHAT, MODEL, max_tokens=400)
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(lambda _: ask(url, CHAT, body), range(6)))
    assert [answer.status for answer in answers] == [200] * 6
    assert {answer.header("x-tidegate-backend") for answer in answers} == {"engine-1", "engine-2"}


def test_interrupt_ends_it(programs):
    """Ctrl-C ends it within seconds, without a traceback and with success."""
    process = started(programs, "interrupted")
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 0
    assert "Traceback" not in programs.log("interrupted").read_text()
