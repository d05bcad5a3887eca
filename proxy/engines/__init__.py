"""What an engine says, as pure parsers: text of a metrics page in, `EngineReport` values out."""

from proxy.core.reports import EngineKind, EngineReport
from proxy.engines import sglang, vllm
from proxy.engines.detect import kind_of


def parse_page(text: str) -> tuple[EngineReport, ...]:
    """One report for each engine on the page, by rank; none when it is no engine's page. Never raises."""
    match kind_of(text):
        case EngineKind.VLLM:
            return vllm.parse(text)
        case EngineKind.SGLANG:
            return sglang.parse(text)
        case None:
            return ()
