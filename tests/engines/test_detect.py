from proxy.core.reports import EngineKind
from proxy.engines.detect import kind_of
from tests.engines.pages import NAMES, page


def test_every_page_is_recognised():
    """By the first sample with a known prefix."""
    for name in NAMES:
        assert EngineKind(name.partition("-")[0]) is kind_of(page(name)), name


def test_other_pages_are_nobodys():
    """HTML, another exporter, a mention in a comment, nothing."""
    for text in ("", "<html><body>vllm:</body></html>", "node_load1 3\n", "# HELP vllm:x y\n", " vllm:x 1\n"):
        assert kind_of(text) is None, text


def test_the_first_sample_decides():
    """A page that shows both is the one that comes first."""
    assert EngineKind.SGLANG is kind_of("sglang:a 1\nvllm:b 1\n")
    assert EngineKind.VLLM is kind_of("vllm_a 1\nsglang:b 1\n")
