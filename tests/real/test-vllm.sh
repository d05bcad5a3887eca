#!/usr/bin/env bash
# Run the conformance cases against a real vLLM on this CPU, through `tidegate serve`. Installs vLLM the first time
# (see setup-vllm.sh). Arguments go to pytest: tests/real/test-vllm.sh -k golden -x
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-vllm: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_conformance "$install" "$@"
