#!/usr/bin/env python3
# ctest-label: slow
"""Recomputation changes no bit and keeps its budget: every golden model, gpt_char, and models made here with
Dropout, BatchNormalization and residuals.

Each is trained for some steps with --recompute off, with sqrt, and under two budgets: halfway between the
step's own peak and the least that it can do with, and just above that least. Losses, checkpoints
(parameters, moments, running statistics) and gradients must be equal to the byte, the bytes allocated at
most the budget. A budget that nothing fits must be refused with exit status 3 and flags that then work.
Before that, two runs with different seeds must differ, so that a comparison that cannot fail is noticed.
"""
import glob, json, os, re, subprocess, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SOURCE = os.environ.get("ORTRAIN_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ["ORTRAIN_BIN"]
failed = 0


def say(ok, text):
    global failed
    failed += not ok
    print(("ok   " if ok else "FAIL ") + text, flush=True)


def call(*command):
    done = subprocess.run([BIN, *command], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def train(model, flags, out, *more):
    """Losses and checkpoint contents as bytes, and what the program printed."""
    rc, text, error = call(model, *flags, "--out", out, "--keep", "9", *more)
    if rc:
        return rc, error
    with open(os.path.join(out, "run.jsonl")) as f:
        result = {"losses": [json.loads(line).get("loss") for line in f]}
    for path in sorted(glob.glob(os.path.join(out, "checkpoints", "*", "*"))):
        if not path.endswith(".json"):
            with open(path, "rb") as f:
                result[os.path.relpath(path, out)] = f.read()
    return rc, (result, text)


def gradients(model, flags, out, *more):
    flags = [f for i, f in enumerate(flags) if f != "--steps" and (i == 0 or flags[i - 1] != "--steps")]
    rc, _, error = call("grads", model, *flags, "--out", out, *more)
    if rc:
        return error
    with np.load(out) as z:
        return {k: z[k].tobytes() for k in z.files}


def check(name, model, flags, folder):
    out = lambda kind: os.path.join(folder, f"{name}-{kind}")
    rc, off = train(model, flags, out("off"), "--recompute", "off")
    if rc:
        return say(False, f"{name}: {off}")
    plain, text = off
    grads = gradients(model, flags, out("off.npz"), "--recompute", "off")
    rc, error = train(model, flags, out("none"), "--memory-budget", "1")
    least = re.search(r"needs at least .*?\((\d+) bytes\)", error if isinstance(error, str) else "")
    full = re.search(r"without recomputation the step takes (\d+)", error if isinstance(error, str) else "")
    if rc != 3 or not least or not full:
        return say(False, f"{name}: a budget of one byte: exit {rc}, {error}")
    least, full = int(least[1]), int(full[1])
    tight, half = min(int(least * 1.02) + 64, full), (least + full) // 2
    for kind, more in (("sqrt", ["--recompute", "sqrt"]), ("half", ["--memory-budget", str(half)]),
                       ("tight", ["--memory-budget", str(tight)])):
        rc, got = train(model, flags, out(kind), *more)
        if rc:
            say(False, f"{name} {kind}: {got}")
            continue
        result, text = got
        same = result == plain
        g = gradients(model, flags, out(kind + ".npz"), *(more if kind == "sqrt" else ["--recompute", "sqrt"]))
        line = re.search(r"recompute: (\d+) nodes run again", text)
        used = re.search(r"; (\d+) bytes in all, budget (\d+)", text)
        fits = kind == "sqrt" or (used and int(used[1]) <= int(used[2]) == int(more[1]))
        say(same and g == grads and bool(fits),
            f"{name} {kind}: {line[1] if line else 0} nodes again, {used[1] if used else '-'} of {full} bytes"
            + ("" if same else ", losses or checkpoints differ") + ("" if g == grads else ", gradients differ")
            + ("" if fits else ", budget not kept"))
    return full, least


def shares(name, model, flags, folder):
    """Budgets in percent of the unconstrained step: kept, or proven to be impossible."""
    out = lambda kind: os.path.join(folder, f"{name}-{kind}")
    rc, off = train(model, flags, out("plain"), "--recompute", "off")
    if rc:
        return say(False, f"{name}: {off}")
    for percent in (100, 80, 60, 50):
        rc, got = train(model, flags, out(percent), "--memory-budget", f"{percent}%")
        if rc == 3:
            bound = re.search(r"no order and no recomputation can go below (\d+): .+ alone needs .* of (\d+) bytes", got)
            budget = re.search(r"--memory-budget allows .*?\((\d+) bytes\)", got)
            least = re.search(r"needs at least .*?\((\d+) bytes\)", got)
            proof = bound and int(bound[1]) > int(budget[1])
            say(bool(budget and least and int(least[1]) > int(budget[1])) and percent < 80
                and bool(proof or "the least found" in got),
                f"{name} {percent} %: {'impossible' if proof else 'not found'}, {bound[1] if bound else least and least[1]} "
                f"of {budget[1] if budget else got} bytes")
            continue
        if rc:
            say(False, f"{name} {percent} %: {got}")
            continue
        result, text = got
        used = re.search(r"; (\d+) bytes in all, budget (\d+)", text)
        again = re.search(r"recompute: (\d+) nodes", text)
        say(result == off[0] and used and int(used[1]) <= int(used[2]),
            f"{name} {percent} %: {again[1] if again else 0} nodes again, {used[1] if used else '?'} bytes, budget "
            f"{used[2] if used else '?'}" + ("" if result == off[0] else ", losses or checkpoints differ"))


def made_model(path, kind):
    """A deep classifier with residuals and dropout; "conv": with batch norms on images."""
    rng = np.random.default_rng(0)
    nodes, init = [], []

    def add(op, inputs, outputs=1, **attrs):
        names = [f"v{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(op, inputs, names, name=f"n{len(nodes)}", **attrs))
        return names[0]

    def param(name, *shape):
        init.append(numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[-1] * 3)).astype(np.float32), name))
        return name

    init.append(numpy_helper.from_array(np.float32(0.2), "ratio"))
    init.append(numpy_helper.from_array(np.array(True), "training"))
    x = "x"
    if kind == "conv":
        x = add("Conv", [x, param("w_in", 16, 3, 3, 3)], pads=[1] * 4)
        for i in range(6):
            y = add("Conv", [x, param(f"w{i}", 16, 16, 3, 3)], pads=[1] * 4)
            for s in ("scale", "bias", "mean", "var"):
                init.append(numpy_helper.from_array(np.abs(rng.standard_normal(16)).astype(np.float32) + 0.5, f"{s}{i}"))
            y = add("BatchNormalization", [y] + [f"{s}{i}" for s in ("scale", "bias", "mean", "var")])
            y = add("Dropout", [add("Relu", [y]), "ratio", "training"])
            x = add("Add", [x, y])
        x = add("Flatten", [add("GlobalAveragePool", [x])])
        shape = ["N", 3, 16, 16]
    else:
        x = add("MatMul", [x, param("w_in", 24, 64)])
        for i in range(6):
            init.append(numpy_helper.from_array(np.linspace(0.5, 1.5, 64, dtype=np.float32) + i, f"scale{i}"))
            y = add("LayerNormalization", [x, f"scale{i}"])
            y = add("Gelu", [add("MatMul", [y, param(f"a{i}", 64, 256)])])
            y = add("MatMul", [add("Dropout", [y, "ratio", "training"]), param(f"b{i}", 256, 64)])
            x = add("Add", [x, y])
        shape = ["N", 24]
    nodes.append(helper.make_node("MatMul", [x, param("w_out", 16 if kind == "conv" else 64, 5)], ["logits"], name="head"))
    graph = helper.make_graph(nodes, kind, [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 5])], init)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    data = path[:-5] + ".npz"
    np.savez(data, x=rng.standard_normal([512] + shape[1:]).astype(np.float32), labels=rng.integers(0, 5, 512))
    batch = "32" if kind == "conv" else "256"
    return ["--data", data, "--optimizer", "adamw", "--lr", "0.003", "--batch-size", batch, "--steps", "4"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        models = []
        for kind in ("conv", "mlp"):
            path = os.path.join(folder, kind + ".onnx")
            models.append((kind, path, made_model(path, kind)))
        name, path, flags = models[0]
        first, other = (train(path, flags, os.path.join(folder, f"seed{s}"), "--seed", str(s))[1][0] for s in (1, 2))
        say(first != other, "another seed gives another run")
        for case in sorted(glob.glob(os.path.join(SOURCE, "tests/golden/*/case.json"))):
            case_dir = os.path.dirname(case)
            with open(case) as f:
                facts = json.load(f)
            flags, skip = [], False
            for i, f in enumerate(facts["flags"][1:]):
                previous = facts["flags"][i]
                if f == "--log" or previous == "--log":
                    continue
                flags.append(os.path.join(case_dir, f) if previous in ("--data", "--eval-data") else f)
            if not os.path.exists(os.path.join(case_dir, facts["flags"][0])):
                continue  # its model lies under models/
            if "--epochs" not in flags:
                flags[flags.index("--steps") + 1] = "4"
            models.append((os.path.basename(case_dir), os.path.join(case_dir, facts["flags"][0]), flags))
        char = os.path.join(SOURCE, "models/gpt_char")
        models.append(("gpt_char", os.path.join(char, "model.onnx"), ["--batch-size", "8", "--steps", "3"]))
        sizes = {}
        for name, path, flags in models:
            sizes[name] = check(name, path, flags, folder)
        for name, path, flags in models:
            if name in ("conv", "mlp", "resnet_tiny", "bert_tiny", "gpt_tiny", "gpt_char"):
                shares(name, path, flags, folder)
        for name in ("conv", "mlp", "gpt_char"):
            if sizes[name]:
                full, least = sizes[name]
                say(least < 0.7 * full, f"{name}: the least, {least}, is well below {full} bytes")
        # Refused, with a change that works.
        name, path, flags = models[0]
        full, least = sizes[name]
        rc, error = train(path, flags, os.path.join(folder, "refused"), "--memory-budget", str(int(least * 0.9)))
        advice = re.search(r"\n  (--batch-size \d+ --accumulate \d+)   \(.*?(\d+) bytes\)", error if rc else "")
        say(rc == 3 and bool(advice), f"refusal: exit {rc}: {error if rc else ''}")
        if advice and "--accumulate" in call("--help")[1]:
            rc, got = train(path, flags, os.path.join(folder, "advice"), "--memory-budget", str(int(least * 0.9)),
                            *advice[1].split())
            say(rc == 0, f"the advice {advice[1]}: exit {rc} {got if rc else ''}")
        for text, wanted in (("4Gib", 2), ("-1", 2), ("120%", 2), ("0", 2), ("4 GB", 0), ("1e3KiB", 3)):
            rc = call("bench", path, *flags, "--memory-budget", text)[0]
            say(rc == wanted, f"--memory-budget '{text}': exit {rc}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
