"""What is found out about a URL before agents start."""

import json

import pytest

from proxy.bench.client import Target, session_for
from proxy.bench.dialects import Api
from proxy.bench.probing import UnfitTargetError, probe
from proxy.bench.words import CANDIDATES
from tests.fakes.backend import STREAM_HEAD, json_answer, scripted_backend

PAGE = 'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'


class Server:
    """Tokenizes one word to `tokens_per_word` tokens, and may lack routes."""

    def __init__(self, *, tokens_per_word=2, has_tokenizer=True, knows_ignore_eos=True, status=200):
        self.tokens_per_word = tokens_per_word
        self.has_tokenizer = has_tokenizer
        self.knows_ignore_eos = knows_ignore_eos
        self.status = status

    async def __call__(self, request, connection):
        """Serve one request."""
        asked = json.loads(request.body or b"{}")
        await connection.send(self.answer(request.line.split()[1], asked))

    def answer(self, path, asked):
        """What it says."""
        if path == "/tokenize" and self.has_tokenizer:
            pieces = [piece for word in asked["prompt"].split() for piece in self.pieces(word)]
            return json_answer(json.dumps({"count": len(pieces), "token_strs": pieces}).encode())
        if path in {Api.CHAT.path, Api.MESSAGES.path}:
            return self.chat(asked)
        return json_answer(b"{}", 404)

    def pieces(self, word):
        """A word as its tokenizer cuts it."""
        return [f"Ġ{word}"] if self.tokens_per_word == 1 else [f"Ġ{word[:1]}", *[word] * (self.tokens_per_word - 1)]

    def chat(self, asked):
        """One streamed answer of nothing but usage."""
        if self.status != 200:
            return json_answer(b"{}", self.status)
        if "ignore_eos" in asked and not self.knows_ignore_eos:
            return json_answer(b"{}", 400)
        words = sum(len(message["content"].split()) for message in asked["messages"])
        usage = {"prompt_tokens": 17 + words * self.tokens_per_word, "completion_tokens": 1}
        event = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
        return STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)


async def probed(server, *, metrics_page="", metrics_urls=(), **target):
    """What is found out, and the server."""
    async with scripted_backend(server) as backend, session_for(1) as http:
        backend.metrics_page = metrics_page
        return await probe(http, Target(url=backend.url, **{"model": "", **target}), metrics_urls), backend


@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("tokens_per_word", [1, 2])
async def test_a_words_tokens_are_counted_by_the_server(tokens_per_word, has_tokenizer):
    """By its tokenizer's route, else from the usage of two small questions."""
    known, _ = await probed(Server(tokens_per_word=tokens_per_word, has_tokenizer=has_tokenizer))

    assert known.words.tokens_per_word == tokens_per_word
    assert known.target.model == "m"


async def test_a_server_that_counts_nothing_gets_the_rule_of_thumb():
    """It still can be measured."""
    known, _ = await probed(Server(has_tokenizer=False, status=500))

    assert known.words.tokens_per_word == pytest.approx(sum(len(word) + 1 for word in CANDIDATES) / len(CANDIDATES) / 4)


async def test_an_engine_that_does_not_know_fixed_lengths_is_not_asked_for_them():
    """It would refuse every turn."""
    known, _ = await probed(Server(knows_ignore_eos=False))

    assert not known.target.has_fixed_lengths


async def test_an_engines_own_metrics_are_found():
    """A proxy's page is none; a page that was named is taken as it is."""
    engine, backend = await probed(Server(), metrics_page=PAGE)
    proxy, _ = await probed(Server(), metrics_page="tidegate_waiting_requests 0\n")
    named, _ = await probed(Server(), metrics_urls=["http://e:1", "http://e:2/metrics"])

    assert engine.metrics_urls == (f"{backend.url}/metrics",)
    assert proxy.metrics_urls == ()
    assert named.metrics_urls == ("http://e:1/metrics", "http://e:2/metrics")


@pytest.mark.parametrize("status", [401, 404])
async def test_a_wrong_key_or_model_is_said_before_anything_starts(status):
    """Not after a minute of failed turns."""
    with pytest.raises(UnfitTargetError, match=f"answered {status}"):
        await probed(Server(status=status), model="other")


async def test_nobody_there():
    """Said in one line."""
    async with session_for(1) as http:
        with pytest.raises(UnfitTargetError, match="does not answer"):
            await probe(http, Target(url="http://127.0.0.1:1", model=""), ())
