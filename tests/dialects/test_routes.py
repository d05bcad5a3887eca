import pytest

from proxy.core.errors import Refusal
from proxy.core.requests import Dialect
from proxy.dialects import routes


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/v1/chat/completions", "chat_completions"),
        ("POST", "/v1/completions", "completions"),
        ("POST", "/v1/messages", "messages"),
        ("POST", "/v1/messages/count_tokens", "count_tokens"),
        ("POST", "/v1/responses", "responses"),
        ("GET", "/v1/responses/resp_1a", "stored_response"),
        ("POST", "/v1/responses/resp_1a/cancel", "stored_response"),
        ("POST", "/v1/embeddings", "embeddings"),
        ("POST", "/rerank", "rerank"),
        ("POST", "/v2/rerank", "rerank"),
        ("POST", "/score", "score"),
        ("POST", "/tokenize", "tokenize"),
        ("POST", "/v1/audio/transcriptions", "audio"),
    ],
)
def test_public_paths_have_a_route(method, path, name):
    """Every public path that vLLM serves is known under its closed name."""
    route, _ = routes.match(method, path)

    assert name == route.name


@pytest.mark.parametrize(
    "path",
    [
        "/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/update_weights",
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/invocations", "/server_info", "/v1/../pause",
        "/v1/%2e%2e/pause", "//v1/messages", "/v1/messages/", "/V1/messages", "/v1/messages;/../pause",
        "/v1/./messages",
        "/v1/responses/", "/v1/responses/a/b", "/v1/responses/a%2f..", "/", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_else_is_reachable(method, path):
    """L63: engine control paths and creative spellings end here, whatever the method."""
    with pytest.raises(Refusal) as refused:
        routes.match(method, path)

    assert refused.value.status == 404


def test_a_known_path_under_another_method_says_which_it_takes():
    """L26: a known route never answers 404, which would send Claude Code into its fallback."""
    with pytest.raises(Refusal) as refused:
        routes.match("GET", "/v1/messages")

    assert (405, "POST") == (refused.value.status, refused.value.allow)


def test_a_stored_response_names_its_id():
    """By-id routes tell which response they mean."""
    assert routes.match("GET", "/v1/responses/resp_9")[1] == "resp_9"


def test_messages_paths_speak_anthropic_even_when_unknown():
    """The error shape follows the path, known or not."""
    assert routes.dialect_of("/v1/messages/batches") is Dialect.ANTHROPIC
    assert routes.dialect_of("/v1/chat") is Dialect.OPENAI


def test_clipped_text_is_bounded_and_printable():
    """What a client sent is repeated only in a harmless form."""
    assert routes.clipped("a\nb\x1b[31m") == "a?b?[31m"
    assert len(routes.clipped("x" * 10_000)) == 83
