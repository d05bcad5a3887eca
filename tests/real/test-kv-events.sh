#!/usr/bin/env bash
# Let a real vLLM on this CPU tell `tidegate serve` of its KV cache: cleared, evicted, missed and sent again (two
# minutes). Installs vLLM the first time (see setup-vllm.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-kv-events: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_kv_events "$install"
