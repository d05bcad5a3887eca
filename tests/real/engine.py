"""A real vLLM on this CPU, serving the tiny model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance.programs import Programs, Served, free_port
from tests.conformance.wire import is_answering

MODEL_NAMES: Final = ("tiny", "claude-sonnet-4-5")

_ENGINE_START_S: Final = 240.0
_QUIET: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_ONE_CORE: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Size:
    """How much an engine holds.

    Attributes:
        kv_blocks: of 128 tokens each in the CPU build.
        running_at_once: requests in one batch at most.
    """

    kv_blocks: int
    running_at_once: int
    context_tokens: int


CARD: Final = Size(kv_blocks=1_000, running_at_once=16, context_tokens=65_536)
"""128,000 tokens: about what a 32 GB card has left beside a 27B model."""


def start_vllm(
    programs: Programs,
    install: Path,
    flags: Sequence[str] = (),
    *,
    size: Size = CARD,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Served:
    """Serve the tiny model of an install that setup-vllm.sh made, on a free port unless one is given."""
    port = port or free_port()
    command = [
        str(install / "venv/bin/vllm"), "serve", str(install / "model"),
        "--served-model-name", *MODEL_NAMES,
        "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "bfloat16", "--enforce-eager",
        "--num-gpu-blocks-override", str(size.kv_blocks), "--max-num-seqs", str(size.running_at_once),
        "--max-model-len", str(size.context_tokens), "--max-num-batched-tokens", "8192",
        "--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        *flags,
    ]  # fmt: skip
    served = Served(f"http://127.0.0.1:{port}", programs.log("vllm"))
    programs.start(
        "vllm",
        command,
        is_ready=lambda: is_answering(served.url, "/health"),
        within_s=_ENGINE_START_S,
        environment={**_QUIET, **_ONE_CORE, **(environment or {})},
    )
    return served
