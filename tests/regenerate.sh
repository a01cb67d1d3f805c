#!/usr/bin/env bash
# Writes the generated documents anew: docs/OPS.md and docs/NODE_TESTS.md. Run it after every change of
# an operator's record. Needs a build (default: build/) with `ortrain` and onnx_node_onnx_node_test.
#   bash tests/regenerate.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
"$build/ortrain" ops --markdown > docs/OPS.md
ORTRAIN_NODE_TESTS_MD=docs/NODE_TESTS.md "$build/tests/onnx_node_onnx_node_test" | tail -n 3
