#!/usr/bin/env bash
# Install vllm-router, for comparison, once. Prints the path of its executable.
#
#   TIDEGATE_REAL_ROUTER  an executable that is already there; nothing is installed then
#   TIDEGATE_REAL_DIR     where real engines and clients are kept (default: the user's cache folder, tidegate/)
#   PYTHON                the interpreter for its environment (default: python3)
#
# About 100 MB. Needs a Python package index and a wheel for this machine.
set -euo pipefail

version=0.1.17
cache=${TIDEGATE_REAL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}
dir=$cache/vllm-router-$version
found=${TIDEGATE_REAL_ROUTER:-$dir/bin/vllm-router}
if [ -z "${TIDEGATE_REAL_ROUTER:-}" ] && [ ! -e "$dir/complete" ]; then
  echo "setup-vllm-router: installing vllm-router $version into $dir (100 MB) ..." >&2
  "${PYTHON:-python3}" -m venv "$dir" >&2
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "vllm-router==$version" >&2
  touch "$dir/complete"
fi
[ -x "$found" ] || { echo "setup-vllm-router: $found does not start" >&2; exit 1; }
echo "$found"
