import pytest
from pydantic import ValidationError

from proxy.config import BackendConfig
from proxy.config.backend import repeated


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, "127.0.0.1:8000", "", "127.0.0.1:8000")),
        ("http://Engine.lan", ("engine.lan", 80, "engine.lan", "", "engine.lan:80")),
        ("https://gw/team/a/", ("gw", 443, "gw", "/team/a", "gw:443")),
        ("http://[::1]:8000/", ("::1", 8000, "[::1]:8000", "", "::1:8000")),
        ("HTTP://vllm_1:8000", ("vllm_1", 8000, "vllm_1:8000", "", "vllm_1:8000")),
    ],
)
def test_an_address_falls_into_its_parts(url, parts):
    """A url gives all that is needed to connect, and a name when none is written."""
    backend = BackendConfig(url=url)

    assert (backend.host, backend.port, backend.authority, backend.path_prefix, backend.name) == parts
    assert backend.is_tls == url.lower().startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "h:8000",
        "//h",
        "http://",
        "http://:8000",
        "http://h:0",
        "http://h:70000",
        "http://h:",
        "http://user:pw@h",
        "http://h?a=1",
        "http://h?",
        "http://h#x",
        "http://h/v1",
        "http://h/v1/",
        "http://h/a//b",
        "http://h/a/../b",
        "http://h /",
        "http://h\r\nx: y",
        "http://bücher.example",
        "http://[::1",
    ],
)
def test_an_address_that_cannot_work_is_refused(url):
    """Mistakes show at the start and not with the first request."""
    with pytest.raises(ValidationError):
        BackendConfig(url=url)


@pytest.mark.parametrize("name", ["a b", "a/b", 'a"b', "ä", "a\n", "x" * 256])
def test_a_name_must_fit_a_label_and_a_header(name):
    """Names are used as they are, so they hold nothing that needs escaping."""
    with pytest.raises(ValidationError):
        BackendConfig(url="http://h", name=name)


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "schlüssel"])
def test_a_key_must_fit_a_header(key):
    """A key that would break the request is refused without being shown."""
    with pytest.raises(ValidationError) as refused:
        BackendConfig.model_validate({"url": "http://h", "api_key": key})
    assert not key or key not in str(refused.value)


def test_a_key_is_not_shown():
    """Printing a backend does not print its key."""
    backend = BackendConfig.model_validate({"url": "http://h", "api_key": "sk-hidden"})

    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == "sk-hidden"
    assert "sk-hidden" not in repr(backend)


def test_doubles_are_found():
    """The same engine twice would count its capacity twice."""
    one = BackendConfig(url="http://a", name="x")
    same = BackendConfig(url="http://a/", name="y")
    other = BackendConfig(url="http://b", name="y")

    assert repeated([one, other]) == []
    assert repeated([one, same, other]) == ["name 'y' is used 2 times", "url 'http://a' is used 2 times"]
