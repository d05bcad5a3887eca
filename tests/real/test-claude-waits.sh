#!/usr/bin/env bash
# Keep the real Claude Code waiting in front of a scripted backend. Installs it the first time (see setup-claude.sh).
# Two minutes; needs no engine.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-claude-waits: run 'make setup' first" >&2; exit 1; }
claude=$("$here/setup-claude.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_claude_waits "$claude"
