"""Text of a wanted length in tokens, and conversations made of it. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.bench.plans import TurnPlan, chance

_SHORT_WORDS: Final = (
    "the and for not are was one all can has but our out use new now old see two way who did its let put say she too "
    "any may try run set get key map row col sum max min top end add cut mix fix ask pay own few six ten big low raw "
    "dry hot odd red tap box log bit day job net bus win fit int str def del arg len val var num pos idx obj ref src "
    "dst tmp buf ptr err msg url api app web sys env dir doc tag img css sql csv xml bin hex hash list dict self type "
    "name file data path line text word code test case time date user node tree item next last init main call func "
    "load save read open send recv port host byte char bool none true else with from that this have been were they "
    "return import class value error index string object method module param result"
)
CANDIDATES: Final = tuple(_SHORT_WORDS.split())
"""Words of prose and code: with a space before it, nearly each is one token of a BPE vocabulary."""
BYTES_PER_TOKEN: Final = 4.0
"""What is assumed of a server that counts no tokens for us."""


class Words:
    """Text by the token."""

    def __init__(self, words: Sequence[str] = CANDIDATES, tokens_per_word: float | None = None) -> None:
        self._words = words
        self.tokens_per_word = tokens_per_word or sum(len(word) + 1 for word in words) / len(words) / BYTES_PER_TOKEN

    def text(self, rng: random.Random, tokens: int) -> str:
        """Random words that make about so many tokens, at least one."""
        return " ".join(rng.choices(self._words, k=max(1, round(tokens / self.tokens_per_word))))


def one_token_words(pieces: Sequence[str]) -> tuple[str, ...]:
    """The candidates that a tokenizer kept whole, from the tokens that it made of `" ".join(CANDIDATES)`."""
    plain = {piece.lstrip("Ġ▁ ") for piece in pieces if piece[:1] in "Ġ▁ "}
    return tuple(word for word in CANDIDATES if word in plain)


@dataclass(slots=True)
class Message:
    """One message and its size."""

    role: str
    text: str
    tokens: int


class Conversation:
    """A session's context as it is sent: the shared head, then users and assistants in turn."""

    def __init__(self, words: Words, *, run: str, shared_tokens: int, session: object) -> None:
        self._words = words
        self._rng = chance(run, "text", session)
        self.head = words.text(chance(run, "head"), shared_tokens)
        self.messages: list[Message] = []
        self._shared_tokens = shared_tokens

    def ask(self, turn: TurnPlan) -> None:
        """Take the next turn's text in, dropping what the turn does not keep."""
        if turn.kept_tokens is not None:
            self._cut(turn.kept_tokens - self._shared_tokens)
        self.add_user(self._words.text(self._rng, turn.new_tokens), turn.new_tokens)

    def add_user(self, text: str, tokens: int) -> None:
        """Take a user's text in; into the last message if that is a user's too, as some chat templates insist on."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "user":
            last.text = f"{last.text} {text}"
            last.tokens += tokens
        else:
            self.messages.append(Message("user", text, tokens))

    def make_up_answer(self, tokens: int) -> None:
        """Answer a turn without asking anyone."""
        self.answer(self._words.text(self._rng, tokens), tokens)

    def answer(self, text: str, tokens: int) -> None:
        """Take an answer in, as it came back."""
        if text:
            self.messages.append(Message("assistant", text, tokens))

    def _cut(self, kept_tokens: int) -> None:
        """Keep the beginning: whole messages, and of the one that crosses the limit its first words if a user's."""
        left = max(kept_tokens, 0)
        for number, message in enumerate(self.messages):
            if message.tokens > left:
                del self.messages[number + (message.role == "user" and left > 0) :]
                if message.role == "user" and left > 0:
                    words = message.text.split(" ")
                    message.text = " ".join(words[: max(1, round(len(words) * left / message.tokens))])
                    message.tokens = left
                return
            left -= message.tokens
