#!/usr/bin/env bash
# README command 2: installs what is missing, builds everything, runs every test.
#   bash tests/run.sh [ctest arguments]      e.g. -L fast, -R golden, -j2
# Ends with ctest's own summary and its exit code.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tests/setup.sh tests
deps=${ORTRAIN_DEPS:-$PWD/.deps}
cmake -S . -B build -G Ninja -DORTRAIN_DEPS="$deps" -DORTRAIN_TESTS=ON ${CMAKE_ARGS:-}
cmake --build build
exec ctest --test-dir build --output-on-failure "$@"
