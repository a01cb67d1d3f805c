#!/usr/bin/env python3
"""`ortrain ops` tells the truth, as far as it can be seen from outside.

docs/OPS.md is what `ortrain ops --markdown` prints; every operator of onnx's default domain has a row or
is refused with a reason, never both; first opsets are onnx's; --json and --markdown hold the same rows.
"""
import json
import os
import subprocess
import sys

SOURCE = os.environ.get("ORTRAIN_SOURCE") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OLDEST = 7  # the oldest opset that is read
# ONNX Runtime's own, which its exporters write into the default domain.
FOREIGN = {"SimplifiedLayerNormalization"}
BIN = os.environ.get("ORTRAIN_BIN") or os.path.join(SOURCE, "build", "ortrain")


def ops(*args):
    return subprocess.run([BIN, "ops", *args], check=True, capture_output=True, text=True).stdout


def onnx_operators():
    """name -> first opset of the default domain; None where onnx is not installed."""
    try:
        import onnx.defs
    except ImportError:
        return None
    first = {}
    for s in onnx.defs.get_all_schemas_with_history():
        if s.domain == "":
            first[s.name] = min(s.since_version, first.get(s.name, s.since_version))
    return first


def main():
    problems = []
    markdown = ops("--markdown")
    matrix = json.loads(ops("--json", "-"))
    with open(os.path.join(SOURCE, "docs", "OPS.md"), encoding="utf-8") as f:
        if f.read() != markdown:
            problems.append("docs/OPS.md is stale: bash tests/regenerate.sh")
    rows = {r["op"]: r for r in matrix["operators"] if r["domain"] == "ai.onnx"}
    refused = {r["op"]: r for r in matrix["refused"] if r["domain"] == "ai.onnx"}
    for r in matrix["operators"]:
        if markdown.count(f"| {r['op']} | {r['domain']} |") != 1:
            problems.append(f"{r['domain']}.{r['op']}: not once in the markdown form")
        if not r["types"] and r["examples"]:
            problems.append(f"{r['domain']}.{r['op']}: no element type can be planned")
    for op in sorted(rows.keys() & refused.keys()):
        problems.append(f"{op}: has a record and is refused")
    for op, r in sorted(refused.items()):
        if len(r["reason"]) < 20:
            problems.append(f"{op}: refused without a reason")
    known = onnx_operators()
    if known is None:
        print("onnx is not installed: its list of operators is not compared")
    else:
        for op in sorted(known.keys() - rows.keys() - refused.keys()):
            problems.append(f"{op}: neither supported nor refused with a reason")
        for op in sorted(rows.keys() - known.keys() - FOREIGN):
            problems.append(f"{op}: no operator of ai.onnx")
        for op in sorted(rows.keys() & known.keys()):
            if rows[op]["since"] != max(known[op], OLDEST):
                problems.append(f"{op}: first opset {rows[op]['since']}, onnx says {known[op]}")
    for p in problems:
        print(p)
    print(f"{len(matrix['operators'])} operators, {len(refused)} refused, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
