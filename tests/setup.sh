#!/usr/bin/env bash
# Installs what building (and testing) ortrain needs on Debian or Ubuntu; a second run returns at once.
#   bash tests/setup.sh [build|tests]     build: enough for the program; tests (default): everything
# apt packages only when one is missing (as root, or through sudo). Python packages go into a venv of
# this checkout, .deps (or $ORTRAIN_DEPS), never into the system: oneDNN 3.2, onnx's .proto and node
# tests, numpy. When pip cannot be reached, Debian's own oneDNN 2.6 and onnx files serve instead.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-tests}
deps=${ORTRAIN_DEPS:-$PWD/.deps}
say() { echo "setup: $*"; }

packages=(g++ cmake ninja-build ccache lld git ca-certificates python3 python3-venv
  libprotobuf-dev protobuf-compiler libhwy-dev libcli11-dev nlohmann-json3-dev
  libtomlplusplus-dev zlib1g-dev libxxhash-dev libturbojpeg0-dev libpng-dev libwebp-dev
  libdnnl-dev ocl-icd-opencl-dev)  # the last: Debian's dnnl-config.cmake requires OpenCL
if [[ $what == tests ]]; then
  packages+=(libgtest-dev libgmock-dev clang-format)
  # Fuzzing needs clang's own runtimes; without them the fuzz check says so and skips.
  packages+=(clang libclang-rt-14-dev libomp-14-dev)
fi

install_packages() {  # names...: installs those that are missing
  local missing=() name
  for name in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || missing+=("$name")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  local sudo=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || { say "run as root, or install: ${missing[*]}" >&2; return 1; }
    sudo=(sudo)
  fi
  say "installing ${#missing[@]} packages with apt: ${missing[*]}"
  local try
  for try in 1 2 3; do
    if "${sudo[@]}" apt-get update -qq &&
       "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
         "${missing[@]}" >/dev/null; then
      return 0
    fi
    say "apt-get failed (try $try of 3)"; sleep $((try * 5))
  done
  return 1
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  install_packages "${packages[@]}"
else
  say "no apt on this machine; needed (Debian's names): ${packages[*]}"
fi

# ---- Python packages ----
python_packages=("onnx==1.22.0" numpy safetensors)
[[ $(uname -m) == x86_64 ]] && python_packages=("onednn-devel-cpu-gomp==2023.2.0" "${python_packages[@]}")
stamp="$deps/ortrain.stamp" key="${python_packages[*]}"

install_python_packages() {
  [[ -x $deps/bin/python3 ]] || python3 -m venv "$deps" || return 1
  local try
  for try in 1 2 3; do
    if "$deps/bin/python3" -m pip install -q --disable-pip-version-check "${python_packages[@]}"; then
      return 0
    fi
    say "pip failed (try $try of 3)"; sleep $((try * 3))
  done
  return 1
}

has_python_packages() {
  [[ -x $deps/bin/python3 ]] && "$deps/bin/python3" -c 'import numpy, onnx, safetensors' 2>/dev/null
}

if [[ ! -f $stamp || $(cat "$stamp") != "$key" ]]; then
  # A venv that was given with ORTRAIN_DEPS and has everything is used as it is.
  if [[ -n ${ORTRAIN_DEPS:-} ]] && has_python_packages; then
    :
  elif say "Python packages into $deps: ${python_packages[*]}" && install_python_packages; then
    # The wheel holds three full copies of one 54 MB library.
    real="$deps/lib/libdnnl.so.3.2"
    if [[ -f $real ]]; then
      for copy in libdnnl.so libdnnl.so.3; do ln -sf libdnnl.so.3.2 "$deps/lib/$copy"; done
    fi
    echo "$key" >"$stamp"
  else
    say "pip cannot be reached: using Debian's oneDNN 2.6 (slower) and older onnx files instead."
    say "  Run this script again with a connection for oneDNN 3.2 and the newest ONNX operators."
    fallback=(libonnx-dev)
    [[ $what == tests ]] && fallback+=(python3-numpy python3-onnx)
    install_packages "${fallback[@]}"
  fi
fi
