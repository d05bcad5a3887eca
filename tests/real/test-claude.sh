#!/usr/bin/env bash
# Run the real Claude Code through `tidegate serve` in front of a real vLLM on this CPU. Installs both the first time
# (see setup-vllm.sh and setup-claude.sh). Some minutes: a first prompt of Claude Code is 35,000 tokens.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-claude: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
claude=$("$here/setup-claude.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_claude "$install" "$claude"
