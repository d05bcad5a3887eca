"""Text as tokens."""

import pytest

from proxy.sim.text import (
    Special,
    count_tokens,
    encode,
    encode_ids,
    encode_image,
    filler,
    slices,
    token_ids,
)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abc", 1), ("abcd", 1), ("abcde", 2), ("Küche", 2), ("茶", 1)])
def test_four_bytes_are_a_token(text, tokens):
    """Tokens are counted in bytes of UTF-8, rounded up."""
    assert count_tokens(encode(text)) == tokens


def test_lone_surrogates_are_text_too():
    """JSON can hold what UTF-8 cannot; it must not break the engine."""
    assert count_tokens(encode("\ud800")) == 1


def test_generated_words_are_one_token_each():
    """A generated text read back has the tokens that were generated."""
    words = filler(b"seed", 50)
    assert count_tokens(encode("".join(words))) == len(words) == 50
    assert slices("".join(words)) == words
    assert filler(b"seed", 50) == words != filler(b"other", 50)


def test_specials_are_no_text():
    """No text contains a special token."""
    with pytest.raises(UnicodeDecodeError):
        Special.TURN_END.encoded.decode()


def test_ids_round_trip():
    """Token numbers name the tokens they came from."""
    encoded = encode("hello there")
    assert encode_ids(token_ids(encoded)) == encoded


def test_images_cost_what_they_are_said_to():
    """An image has a fixed number of tokens that depend on its data."""
    assert count_tokens(encode_image("data", 1_001)) == 1_001
    assert encode_image("data", 50) != encode_image("other", 50)
