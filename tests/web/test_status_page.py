import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from proxy.net.admin import AdminPages
from proxy.web.status_page import status_page
from tests.net.test_admin import fleet_of
from tests.telemetry.fleets import backend, fleet, unknown


def status_with(snapshot, models=("qwen",)):
    """What `/status.json` says of a snapshot."""
    known = fleet_of(*(one.name for one in snapshot.backends))
    for one in snapshot.backends:
        known.models.update(one.name, [{"id": name} for name in models])
    pages = AdminPages(
        version="1.2.3",
        fleet=known,
        exposition=lambda _accept: (b"", ""),
        is_draining=lambda: False,
        snapshot=lambda: snapshot,
    )
    return json.loads(pages.paths()["/status.json"]("").body)


class _Reader(HTMLParser):
    """Keeps the text between the tags."""

    def __init__(self):
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data):
        self.words.append(data)


def text_of(page):
    """What a person reads, in order."""
    reader = _Reader()
    reader.feed(re.sub(r"<style>.*?</style>", "", page))
    return " ".join(" ".join(reader.words).split())


def test_one_look_says_that_agents_wait_and_for_what():
    """At 2 a.m. the first line is the answer, the table below it the reason."""
    read = text_of(status_page(status_with(fleet())))

    assert "3 requests wait for room (79,000 prompt tokens)" in read
    assert "resident 1 9,000 0 s running turns to end" in read
    assert "session 2 70,000 61 s room for a whole session" in read
    assert "control" not in read
    assert "of 100,000 tokens 10,000 97 % 9 turns at once 6,000 4 1 0 s qwen" in read


def test_nobody_waits_is_said_too():
    """A page without a queue is not a page that failed to show it."""
    read = text_of(status_page(status_with(fleet(waiting=()))))

    assert "Nobody waits for room." in read


@pytest.mark.parametrize(("mode", "words"), [("shadow", "everything is let through"), ("off", "Admission is off")])
def test_a_gate_that_holds_nothing_back_says_so(mode, words):
    """Who looks for held agents must not look here in vain."""
    assert words in text_of(status_page(status_with(fleet(admission_mode=mode, waiting=()))))


def test_an_engine_of_unknown_size_is_named_as_such():
    """It gets everything, which is why its queue may be long."""
    read = text_of(status_page(status_with(fleet(unknown()))))

    assert "size unknown, nothing is held back" in read


def test_a_cache_that_does_nothing_is_told_in_words_that_say_what_to_do():
    """By the engine's name, and only while it is so."""
    inert = backend(name="<b>")
    assert inert.kv is not None
    works = backend(name="fine", kv=replace(inert.kv, is_prefix_cache_inert=False))
    read = text_of(status_page(status_with(fleet(inert, works, unknown(name="dark")))))

    assert "<b>: what should lie in its prefix cache is not found" in read
    assert "--enable-prefix-caching" in read
    assert "restart it" in read
    assert read.count("prefix cache") == 1


def test_too_much_held_is_no_negative_room():
    """Below zero means that the limit was lowered; nobody can take less than nothing."""
    kv = backend().kv
    assert kv is not None
    lowered = backend(kv=replace(kv, headroom_tokens=-5_000))
    read = text_of(status_page(status_with(fleet(lowered))))

    assert "of 100,000 tokens 0 97 %" in read


def test_names_from_outside_are_text_and_never_markup():
    """A model's name may hold anything, and so may a backend's."""
    page = status_page(status_with(fleet(backend(name="<b>&'")), models=("<script>alert(1)</script>",)))

    assert "<script>" not in page
    assert "<td>&lt;b&gt;&amp;&#x27;<td" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_needs_nothing_but_itself():
    """No script, no file from elsewhere; it loads itself anew."""
    page = status_page(status_with(fleet()))

    assert "http-equiv=refresh content=2" in page
    assert not re.search(r"<script|<link|src=|https?:|@import|url\(", page)
