#!/usr/bin/env bash
# Install the clients of tests/real/clients/package.json, in exactly those versions, beside that file (about 1 GB).
# Needs npm, with whatever registry it is set up for, and Node.js; some clients say that they want 22, and run on 20.
set -euo pipefail

dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/clients" && pwd)
say() { echo "setup-clients: $*" >&2; }

command -v npm >/dev/null && command -v node >/dev/null || { say "needs npm and Node.js 20 or newer"; exit 1; }
if ! cmp -s "$dir/package.json" "$dir/node_modules/.installed"; then
  say "installing real clients into $dir/node_modules (1 GB) ..."
  # No package may run scripts, but for the one that puts opencode's executable in its place.
  npm install --prefix "$dir" --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error >&2
  (cd "$dir/node_modules/opencode-ai" && node postinstall.mjs) >&2
  cp "$dir/package.json" "$dir/node_modules/.installed"
fi
say "ready"
