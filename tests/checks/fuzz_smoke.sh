#!/usr/bin/env bash
# ctest-label: slow
# Fuzzes every reader of hostile files (tests/fuzz/*_fuzz.cc) under ASan and UBSan for a short time.
# FUZZ_SECONDS (default 20) per target. Skipped, and says so, without clang or without targets.
set -euo pipefail
cd "${ORTRAIN_SOURCE:-$(dirname "$0")/../..}"
shopt -s nullglob
targets=(tests/fuzz/*_fuzz.cc)
[[ ${#targets[@]} -gt 0 ]] || { echo "skipped: no tests/fuzz/*_fuzz.cc"; exit 77; }
command -v clang++ >/dev/null || { echo "skipped: clang++ is not installed"; exit 77; }
build=${ORTRAIN_BUILD:-build}/fuzz
prefix=$(dirname "$(dirname "${ORTRAIN_PYTHON:-.deps/bin/python3}")")
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DORTRAIN_FUZZ=ON -DORTRAIN_DEPS="$prefix" \
  -DORTRAIN_WERROR=OFF >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
for source in "${targets[@]}"; do
  name=$(basename "$source" .cc)
  cmake --build "$build" --target "$name" >"$build.log" 2>&1 || { tail -40 "$build.log"; exit 1; }
  mkdir -p "$build/corpus/$name"
  seeds=()
  [[ -d tests/fuzz/seeds/${name%_fuzz} ]] && seeds=("tests/fuzz/seeds/${name%_fuzz}")
  echo "== $name"  # libFuzzer would exit with 77 on a crash, which ctest reads as skipped
  "$build/$name" -max_total_time="${FUZZ_SECONDS:-20}" -rss_limit_mb=2048 -timeout=10 -error_exitcode=1 \
    -print_final_stats=1 \
    -artifact_prefix="$build/$name-" "$build/corpus/$name" ${seeds[@]+"${seeds[@]}"} 2>&1 | tail -15
done
