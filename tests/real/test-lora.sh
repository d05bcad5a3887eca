#!/usr/bin/env bash
# Let LoRA adapters of a real vLLM on this CPU come, change and go before `tidegate serve` (two minutes). Installs vLLM the
# first time (see setup-vllm.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-lora: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_lora "$install"
