#!/usr/bin/env bash
# README command 1: from a fresh machine to a trained model. Installs what is missing, builds the
# program, trains the handwritten-digits network of models/digits/ and evaluates the exported file.
#   bash models/quickstart.sh [gpt_char]     trains models/gpt_char/ instead
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-digits}
deps=${ORTRAIN_DEPS:-$PWD/.deps}
step() { printf '\n== %s\n' "$*"; }

step "1/4 packages"
bash tests/setup.sh build

step "2/4 building build/ortrain"
tests=(-DORTRAIN_TESTS=OFF)  # GoogleTest is not needed here; a build folder made by tests/run.sh keeps its own choice
[[ -f build/CMakeCache.txt ]] && tests=()
cmake -S . -B build -G Ninja -DORTRAIN_DEPS="$deps" ${tests[@]+"${tests[@]}"} ${CMAKE_ARGS:-}
cmake --build build --target ortrain

step "3/4 training: build/ortrain models/$model/model.onnx"
build/ortrain "models/$model/model.onnx"

trained=$(ls -td runs/*/model.onnx | head -n 1)  # the run folder just written
step "4/4 evaluating the exported file: build/ortrain eval $trained --data models/$model/test.npz"
build/ortrain eval "$trained" --data "models/$model/test.npz" --loss cross_entropy
