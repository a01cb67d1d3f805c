#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 1200
"""Trains models that others made and published, from end to end (cases.py has the list).

  python real_models.py [--only CASE,CASE] [--ortrain PATH]

Tier A: 20 steps with falling loss (mean of the last three below mean of the first three) and finite
gradients, a valid export that predicts finite numbers; step-1 gradients in double precision against
PyTorch's (expected.json) and, where affordable, against finite differences in 20 random directions.
Tier B: the same, and the tool must say what does not train. Tier C: refused in one message, exit code 1.
Exit code 77 (skipped) when the files cannot be downloaded.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx

import cases
import fetch_models

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "golden"))
import golden_check  # noqa: E402
# Both sides compute in double precision from the same numbers; only the order of sums differs
# (measured: at most 1e-10). Case.rtol is relative to the gradient's norm; below FLOOR times the
# largest norm of the model a gradient is zero but for rounding (a bias before a batch norm).
FLOOR = 1e-12


class Failed(Exception):
    pass


def run(command, folder, expect=0):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode != expect:
        tail = (done.stderr + done.stdout).strip()[-500:]
        raise Failed(f"exit {done.returncode}, not {expect}: {shlex.join(command)}\n{tail}")
    return done


def without_dropout(path, to):
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("ratio", 0.0))
    onnx.save(model, to)


def check_training(ortrain, case, model, folder, common):
    run([ortrain, model, *common, "--steps", "20", "--lr", str(case.lr),
         "--clip-norm", "1e12", "--out", "run"], folder)  # clips nothing, but logs the gradients' norm
    with open(os.path.join(folder, "run", "run.jsonl")) as f:
        steps = [r for r in map(json.loads, filter(str.strip, f)) if "loss" in r and "step" in r]
    losses = np.array([r["loss"] for r in steps])
    if len(losses) != 20 or not np.all(np.isfinite(losses)):
        raise Failed(f"{len(losses)} losses, expected 20 finite ones: {losses}")
    norms = [r["grad_norm"] for r in steps if r.get("grad_norm") is not None]
    if len(norms) != 20 or not np.all(np.isfinite(norms)):
        raise Failed(f"gradient norms {norms}: expected 20 finite ones")
    if any(r["skipped"] for r in steps):
        raise Failed(f"steps were skipped: {[r['step'] for r in steps if r['skipped']]}")
    if not losses[-3:].mean() < losses[:3].mean():
        raise Failed(f"the loss does not fall: {losses}")
    return f"loss {losses[0]:.4g} -> {losses[-1]:.4g}"


def check_inspection(ortrain, model, folder, common):
    """`inspect` says of every float tensor of the file whether it trains, and why not."""
    said = run([ortrain, "inspect", model, *common], folder).stdout
    rows = re.findall(r"^  (train|fixed) +(\S+) +\[.*?\] +(\S.*)$", said, re.M)
    listed = {name for _, name, reason in rows if reason}
    floats = {t.name for t in onnx.load(model).graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    if not floats or floats - listed:
        raise Failed(f"inspect does not say what becomes of {sorted(floats - listed)}:\n{said}")
    return f"{sum(kind == 'train' for kind, _, _ in rows)} tensors train, {len(rows)} listed"


def check_export(ortrain, case, model, folder):
    exported = os.path.join(folder, "run", "model.onnx")
    onnx.checker.check_model(onnx.load(exported))
    before = golden_check.weights_of(model)
    for name, values in golden_check.weights_of(exported).items():
        was_finite = name not in before or np.all(np.isfinite(before[name]))
        if values.dtype.kind == "f" and was_finite and not np.all(np.isfinite(values)):
            raise Failed(f"'{name}' is not finite after training")
    run([ortrain, "predict", exported, "--data", "data.npz", "--batch-size", str(case.batch),
         "--out", "predicted.npz"], folder)
    with np.load(os.path.join(folder, "predicted.npz")) as outputs:
        if not outputs.files:
            raise Failed("the export predicts nothing")
        for name in outputs.files:
            if not outputs[name].size or not np.all(np.isfinite(outputs[name])):
                raise Failed(f"the export's output '{name}' is empty or not finite")


def check_gradients(ortrain, name, case, model, folder, common, expected):
    if case.no_dropout:
        model, original = os.path.join(folder, "no_dropout.onnx"), model
        without_dropout(original, model)
    check = ["--check", str(case.differences)] if case.differences else []
    done = run([ortrain, "grads", model, *common, "--precision", "fp64", "--out", "grads.npz", *check], folder)
    with np.load(os.path.join(folder, "grads.npz")) as f:
        got = {k: f[k] for k in f.files}
    loss, want = float(got.pop("loss")), expected["gradients"]
    if not abs(loss - expected["loss"]) <= case.rtol * abs(expected["loss"]):
        raise Failed(f"loss {loss!r}, PyTorch {expected['loss']!r}")
    largest = max(row[1] for row in want.values())
    worst = 0.0
    for key, gradient in got.items():
        if key not in want:
            raise Failed(f"'{key}' trains, but PyTorch has no gradient for it")
        shape, *numbers = want[key]
        if list(gradient.shape) != shape:
            raise Failed(f"gradient of '{key}' has shape {gradient.shape}, PyTorch's {shape}")
        scale = numbers[0] + FLOOR / case.rtol * largest
        difference = np.max(np.abs(np.subtract(cases.summary(key, gradient), numbers))) / scale
        if not difference <= case.rtol:
            raise Failed(f"gradient of '{key}': norm and projections {cases.summary(key, gradient)}, "
                         f"PyTorch {numbers}")
        worst = max(worst, difference)
    # What PyTorch has a gradient for and ortrain does not train: single numbers (an epsilon, a
    # scale) and nothing else (what the case freezes is not in the file).
    left = [k for k, row in want.items() if k not in got and int(np.prod(row[0])) > 1
            and not (case.fixed and re.search(case.fixed, k))]
    if left:
        raise Failed(f"not trained although a gradient reaches them: {left}")
    text = f"{len(got)} gradients within {worst:.0e} of PyTorch"
    if check:
        text += ", differences " + re.search(r"largest relative difference (\S+)", done.stdout).group(1)
    return text


def check_case(ortrain, name, models, expected):
    case = cases.CASES[name]
    model = os.path.join(models, case.model + ".onnx")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(os.path.join(folder, "data.npz"), **cases.data_of(name))
        common = ["--data", "data.npz", "--loss", case.loss, "--batch-size", str(case.batch),
                  "--shuffle", "none", *case.flags]
        common += ["--freeze", case.freeze] if case.freeze else []
        common += ["--output", case.output] if case.output else []
        said = [check_inspection(ortrain, model, folder, common)] if case.tier == "B" else []
        said += [check_training(ortrain, case, model, folder, common)]
        check_export(ortrain, case, model, folder)
        said.append(check_gradients(ortrain, name, case, model, folder, common, expected[name]))
    return "; ".join(said)


def check_refused(ortrain, model, names):
    """One message on standard error that names every op at fault; nothing else, exit code 1."""
    with tempfile.TemporaryDirectory() as folder:
        for command in ("inspect", "train"):
            np.savez(os.path.join(folder, "data.npz"), labels=np.zeros(1, np.float32))
            done = run([ortrain, command, model, *(["--data", "data.npz"] if command == "train" else [])],
                       folder, expect=1)
            lines = done.stderr.strip().splitlines()
            if sum(line.startswith("ortrain: ") for line in lines) != 1:
                raise Failed(f"{command}: expected one message, got {done.stderr!r}")
            missing = [n for n in names if n not in done.stderr]
            if missing:
                raise Failed(f"{command}: {missing} not named in {done.stderr!r}")
            others = [line for line in lines[1:] if not any(n in line for n in names)]
            if others:
                raise Failed(f"{command}: refuses more than expected: {others}")
    return "refused, naming " + ", ".join(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--ortrain", default=os.environ.get("ORTRAIN_BIN", ""))
    parser.add_argument("--models", default=fetch_models.folder())
    args = parser.parse_args()
    if not args.ortrain or not os.path.exists(args.ortrain):
        sys.exit(f"no ortrain program at '{args.ortrain}' (--ortrain or $ORTRAIN_BIN)")
    ortrain = os.path.abspath(args.ortrain)
    with open(os.path.join(HERE, "expected.json")) as f:
        expected = json.load(f)

    wanted = args.only.split(",") if args.only else list(cases.CASES) + list(cases.REFUSED)
    model_of = lambda name: cases.CASES[name].model if name in cases.CASES else name
    missing = fetch_models.fetch(args.models, sorted({model_of(n) for n in wanted}))
    for model, reason in missing.items():
        print(f"{model} could not be fetched: {reason}")
    failed = checked = 0
    for name in wanted:
        if model_of(name) in missing:
            continue
        start = time.time()
        try:
            if name in cases.CASES:
                text = check_case(ortrain, name, args.models, expected)
            else:
                path = os.path.join(args.models, name + ".onnx")
                text = check_refused(ortrain, path, cases.REFUSED[name])
            verdict = "ok  "
        except (Failed, OSError, KeyError, ValueError, subprocess.TimeoutExpired,
                onnx.checker.ValidationError) as error:
            verdict, text = "FAIL", f"{type(error).__name__}: {error}"
            failed += 1
        checked += 1
        print(f"{verdict} {name} ({time.time() - start:.0f} s): {text}", flush=True)
    print(f"{checked - failed} passed, {failed} failed, {len(missing)} not there")
    return 1 if failed else 77 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
