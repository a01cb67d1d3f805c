#!/usr/bin/env python3
# ctest-timeout: 600
"""Trains a golden case with ortrain and holds it to what PyTorch computed (README.md has the formats).

  python3 golden_check.py CASE_DIR [--ortrain PATH] [--file model.onnx] [--extra "--threads 1"]

Every model file of the case to which the golden numbers apply is trained with the flags of case.json.
Compared, within the tolerances of case.json: the loss of each step (from --log), the gradient of each
parameter at step 1 (from `ortrain grads`), parameters and running statistics at the end (from the
exported model). Before that, the untouched initial weights must FAIL the same comparison, so a check
that cannot fail is noticed. digits_full is held to PyTorch's test accuracy instead.
The program is --ortrain or $ORTRAIN_BIN. Prints one line per file; exit code 1 if any differs.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


# ---- layouts and names ---------------------------------------------------------------------------
def to_layout(layout, a):
    """PyTorch's array -> the initializer's layout."""
    if layout == "identity":
        return a
    if layout == "transpose":
        return a.T
    kind, numbers = layout.split(":")
    numbers = [int(n) for n in numbers.split(",")]
    return a.transpose(numbers) if kind == "permute" else a.reshape(numbers)


def from_layout(layout, a, torch_shape):
    """The inverse of to_layout."""
    if layout == "identity":
        return a
    if layout == "transpose":
        return a.T
    kind, numbers = layout.split(":")
    if kind == "permute":
        return a.transpose(np.argsort([int(n) for n in numbers.split(",")]))
    return a.reshape(torch_shape)


def expectations(case_dir, case, file):
    """Yields (initializer name, tolerances, gradient or None, value after training) for one file."""
    facts, tolerances = case["files"][file], case["tolerances"]["per_tensor"]
    golden = np.load(os.path.join(case_dir, "golden.npz"))

    def entry(name, source, arrays, key, fit):
        grad = fit(arrays["grad/" + key]) if "grad_check" in source else None
        return name, source, grad, fit(arrays["param_after/" + key])

    copies = facts.get("tied_copies", [])
    names = facts.get("initializer_map") or {name: name for name in tolerances}
    for name, target in names.items():
        if isinstance(target, str):
            key, fit = target, lambda a: a
        else:
            key = target["golden"]

            def fit(a, t=target):
                return to_layout(t["torch_to_initializer"],
                                 from_layout(t["golden_layout"], a, t["torch_shape"]))
        if key in tolerances:
            source = tolerances[key]
            if name in copies:  # written like the tensor it is tied to, but has no gradient of its own
                source = {k: v for k, v in source.items() if k != "grad_check"}
            yield entry(name, source, golden, key, fit)
    if "golden_file" in facts:  # LSTM and GRU weights, which ONNX stores rearranged
        own = np.load(os.path.join(case_dir, facts["golden_file"]))
        for name, source in facts["per_tensor"].items():
            yield entry(name, source, own, name, lambda a: a)


# ---- comparison ----------------------------------------------------------------------------------
def compare(case_dir, file=None, losses=None, grads=None, params=None):
    """Returns [(what, difference, limit, ok)] for those of losses, grads, params that are given."""
    with open(os.path.join(case_dir, "case.json")) as f:
        case = json.load(f)
    file = file or case["golden_from"]
    rows = []

    def row(what, difference, limit):
        rows.append((what, float(difference), limit, bool(difference <= limit)))  # NaN is not ok

    if losses is not None:
        want = np.load(os.path.join(case_dir, "golden.npz"))["loss"]
        if len(losses) != len(want):
            row(f"number of losses is {len(losses)}, not {len(want)}", np.inf, 0)
        else:
            row("loss", np.max(np.abs(losses - want) / np.abs(want)), case["tolerances"]["loss_rtol"])
    for name, source, grad, after in expectations(case_dir, case, file):
        if grads is not None and grad is not None:
            limit = source["grad_atol"] if source["grad_check"] == "absolute" else (
                source["grad_rtol"] * float(np.max(np.abs(grad))))
            if name not in grads or grads[name].shape != grad.shape:
                row(f"gradient of {name} missing or of another shape", np.inf, limit)
            else:
                row(f"gradient of {name}", np.max(np.abs(grads[name] - grad)), limit)
        if params is not None and source["update_check"]:
            limit = source["update_rtol"] * source["update_norm"]
            if name not in params or params[name].shape != after.shape:
                row(f"{name} missing or of another shape", np.inf, limit)
            else:
                row(f"{name} after training",
                    np.linalg.norm((params[name].astype(np.float64) - after).ravel()), limit)
    return rows


def weights_of(path):
    """{name: array} of all initializers and Constant nodes of an ONNX file; in bodies "node/name"."""
    weights = {}

    def walk(graph, prefix):
        weights.update({prefix + t.name: numpy_helper.to_array(t) for t in graph.initializer})
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    weights[prefix + node.output[0]] = numpy_helper.to_array(attribute.t)
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    walk(attribute.g, prefix + node.name + "/")

    walk(onnx.load(path).graph, "")
    return weights


def read_losses(path):
    with open(path) as f:
        records = [json.loads(line) for line in f if line.strip()]
    return np.array([r["loss"] for r in records if "loss" in r], dtype=np.float64)


# ---- running -------------------------------------------------------------------------------------
def run(command, folder):
    """Runs a command; a failure raises with the end of its output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip()[-600:]
        raise RuntimeError(f"exit {done.returncode}: {shlex.join(command)}\n{tail}")


def with_log(flags, log):
    """The flags of case.json without the model, with the path of the log replaced."""
    flags = list(flags[1:])
    if "--log" in flags:
        flags[flags.index("--log") + 1] = log
    return flags


def pick(flags, names):
    return [f for n in names if n in flags for f in (n, flags[flags.index(n) + 1])]


def check_file(ortrain, case_dir, case, file, extra):
    """Returns the rows of compare() for a run of this file."""
    untouched = compare(case_dir, file, params=weights_of(os.path.join(case_dir, file)))
    accepted = [what for what, _, _, ok in untouched if ok]
    if accepted or not untouched:
        raise RuntimeError(f"the comparison accepts weights that never moved: {accepted}")
    with tempfile.TemporaryDirectory() as out:
        log, grads = os.path.join(out, "run.jsonl"), os.path.join(out, "grads.npz")
        flags = with_log(case["flags"], log)
        repair = case["files"][file].get("flags", [])  # --tie
        run([ortrain, file, *flags, "--out", os.path.join(out, "run"), *repair, *extra],
            case_dir)
        run([ortrain, "grads", file,
             *pick(flags, ("--data", "--loss", "--batch-size", "--shuffle")), "--out", grads, *repair, *extra],
            case_dir)
        return compare(case_dir, file, read_losses(log), dict(np.load(grads)),
                       weights_of(os.path.join(out, "run", "model.onnx")))


def check_accuracy(ortrain, case, extra):
    """digits_full: the first 20 losses in file order, then the accuracy after ten shuffled epochs."""
    folder = os.path.join(SOURCE, "models", "digits")
    rows = []
    with tempfile.TemporaryDirectory() as out:
        log = os.path.join(out, "run.jsonl")
        run([ortrain, *case["flags"], "--epochs", "1", "--steps", "20", "--shuffle", "none",
             "--log", log, "--out", os.path.join(out, "first"), *extra], folder)
        got, want = read_losses(log), np.array(case["loss_first20_shuffle_none_f64"])
        worst = np.max(np.abs(got - want) / want) if len(got) == len(want) else np.inf
        # PyTorch in float32 (four orders inside the batches) is 5e-7 from its float64 run.
        rows.append(("loss", float(worst), 1e-5, bool(worst <= 1e-5)))

        run([ortrain, *case["flags"], "--out", os.path.join(out, "full"), *extra], folder)
        predictions = os.path.join(out, "predictions.npz")
        run([ortrain, "predict", os.path.join(out, "full", "model.onnx"), "--data", "test.npz",
             "--out", predictions, *extra], folder)
        labels = np.load(os.path.join(folder, "test.npz"))["labels"]
        wrong = 1 - float((np.load(predictions)["logits"].argmax(1) == labels).mean())
        limit = 1 - (case["torch_accuracy_min"] - 0.01)
        rows.append(("test error after 10 epochs", wrong, limit, wrong <= limit))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case_dir")
    parser.add_argument("--ortrain", default=os.environ.get("ORTRAIN_BIN", ""))
    parser.add_argument("--file", help="only this model file")
    parser.add_argument("--extra", default="", help="further flags for every run")
    args = parser.parse_args()
    if not args.ortrain or not os.path.exists(args.ortrain):
        sys.exit(f"no ortrain program at '{args.ortrain}' (--ortrain or $ORTRAIN_BIN)")
    ortrain, case_dir = os.path.abspath(args.ortrain), os.path.abspath(args.case_dir)
    with open(os.path.join(case_dir, "case.json")) as f:
        case = json.load(f)

    if "torch_accuracy_min" in case:
        files = ["model.onnx"]
        check = lambda file: check_accuracy(ortrain, case, shlex.split(args.extra))
    else:
        files = sorted(f for f, facts in case["files"].items() if facts.get("golden_applies"))
        check = lambda file: check_file(ortrain, case_dir, case, file, shlex.split(args.extra))
    failed = checked = 0
    for file in files:
        if args.file and file != args.file:
            continue
        try:
            rows = check(file)
            problems = [f"{what}: {diff:.3g}, limit {limit:.3g}" for what, diff, limit, ok in rows if not ok]
        except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            rows, problems = [], [f"{type(error).__name__}: {error}"]
        checked += 1
        failed += bool(problems)
        print(f"{'FAIL' if problems else 'ok  '} {case['case']}/{file}: {len(rows)} comparisons", flush=True)
        for problem in problems[:8]:
            print("       " + problem)
    print(f"{checked - failed} passed, {failed} failed")
    sys.exit(1 if failed or not checked else 0)


if __name__ == "__main__":
    main()
