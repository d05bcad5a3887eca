import pytest

from proxy.dialects.context_overflow import Overflow, anthropic_words, overflow_of

WINDOW = "This model's maximum context length is 65536 tokens. However, "
VLLM_32 = (
    WINDOW + "your prompt contains at least 65537 input tokens, which exceeds this limit even without any output "
    "tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=65537)"
)
VLLM_BOTH = (
    WINDOW + "you requested 32000 output tokens and your prompt contains at least 33537 input tokens, for a total of "
    "at least 65537 tokens. Please reduce the length of the input prompt or the number of requested output tokens."
)
VLLM_EXACT = (
    WINDOW + "you requested 64000 output tokens and your prompt contains 1537 input tokens, for a total of 65537."
)
VLLM_OUTPUT = (
    "max_completion_tokens=10000000 cannot be greater than max_model_len=65536. Please request fewer output tokens. "
    "(parameter=max_completion_tokens, value=10000000)"
)
VLLM_10 = WINDOW + "your request has 70000 input tokens. Please reduce the length of the input messages."
VLLM_9 = (
    "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is 65536 tokens "
    "and your request has 2000 input tokens (64000 > 65536 - 2000)."
)
VLLM_OLD = WINDOW + "you requested 70000 tokens (60000 in the messages, 10000 in the completion). Please reduce it."
VLLM_OLDEST = WINDOW + "you requested 70000 tokens. Please reduce the length."
VLLM_ENGINE = (
    "The decoder prompt (length 70000) is longer than the maximum model length of 65536. Make sure that "
    "`max_model_len` is no smaller than the number of text tokens."
)
SGLANG = "The input (70000 tokens) is longer than the model's context length (65536 tokens)."
SGLANG_BOTH = (
    "Requested token count exceeds the model's maximum context length of 65536 tokens. You requested a total of 70000 "
    "tokens: 6000 tokens from the input messages and 64000 tokens for the completion."
)


def never():
    """An estimate that must not be asked for."""
    raise AssertionError("the engine counted")


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (VLLM_32, Overflow(65536, 65537, True, None)),
        (VLLM_BOTH, Overflow(65536, 33537, True, 32000)),
        (VLLM_EXACT, Overflow(65536, 1537, False, 64000)),
        (VLLM_OUTPUT, Overflow(65536, None, False, 10000000)),
        (VLLM_10, Overflow(65536, 70000, False, None)),
        (VLLM_9, Overflow(65536, 2000, False, 64000)),
        (VLLM_OLD, Overflow(65536, 60000, False, 10000)),
        (VLLM_OLDEST, Overflow(65536, 70000, False, None)),
        (VLLM_ENGINE, Overflow(65536, 70000, False, None)),
        (SGLANG, Overflow(65536, 70000, False, None)),
        (SGLANG_BOTH, Overflow(65536, 6000, False, 64000)),
    ],
)
def test_l32_every_wording_is_read(message, read):
    """Engines of different ages, one meaning."""
    assert overflow_of(message) == read


@pytest.mark.parametrize(
    "message",
    [
        "",
        "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",
        "The model `x` does not exist.",
        "temperature must be non-negative, got -1.0.",
        "1 validation error: input tokens 5",
        "This model's maximum context length is 8 tokens",
    ],
)
def test_l32_other_errors_are_not_meant(message):
    """Nothing else is worded anew."""
    assert overflow_of(message) is None
    assert anthropic_words(message, never) is None


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        (VLLM_32, "prompt is too long: 65537 tokens > 65536 maximum"),
        (VLLM_10, "prompt is too long: 70000 tokens > 65536 maximum"),
        (VLLM_ENGINE, "prompt is too long: 70000 tokens > 65536 maximum"),
        (VLLM_EXACT, "input length and `max_tokens` exceed context limit: 1537 + 64000 > 65536"),
        (VLLM_9, "input length and `max_tokens` exceed context limit: 2000 + 64000 > 65536"),
        (VLLM_OLD, "input length and `max_tokens` exceed context limit: 60000 + 10000 > 65536"),
    ],
)
def test_l32_the_wording_that_claude_code_knows(message, begins):
    """It begins with Anthropic's words and the numbers; the engine's own text follows whole."""
    worded = anthropic_words(message, never)

    assert worded is not None
    assert worded.startswith(begins + " (")
    assert message in worded


def test_l32_where_the_engine_stopped_counting_our_guess_counts():
    """vLLM counts up to the first token too many: lowering the limit by that would take dozens of tries."""
    assert "limit: 60000 + 32000 > 65536" in str(anthropic_words(VLLM_BOTH, lambda: 60_000))
    assert "limit: 33537 + 32000 > 65536" in str(anthropic_words(VLLM_BOTH, lambda: 100))
    assert "too long: 70000 tokens > 65536 maximum" in str(anthropic_words(VLLM_BOTH, lambda: 70_000))
    assert "limit: 1000 + 10000000 > 65536" in str(anthropic_words(VLLM_OUTPUT, lambda: 1_000))


def test_l32_the_numbers_always_contradict_each_other():
    """A client that subtracts them must find that something has to give."""
    message = WINDOW + "you requested 10 output tokens and your prompt contains 70 input tokens."

    assert "limit: 70 + 65467 > 65536" in str(anthropic_words(message, never))
