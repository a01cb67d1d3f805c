#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 900
"""16-bit runs with everything else: resume, recompute, accumulation, LoRA, and a loss of the graph's own.

Per precision (bf16; fp16 with dynamic loss scaling whose scale moves within the run):
- a run stopped after some steps and resumed has the checkpoints and losses of the straight one, to the byte;
- --recompute sqrt changes no byte of it either;
- the gradients' step of 2 micro-batches is that of one batch up to the units of the type, and LoRA's loss falls
  and follows the fp32 one;
- a model file that holds its own loss (or, where it has one, its own backward) trains in 16 bits as in fp32.
Each comparison that expects equal bytes is made once more with another seed or precision, where it must fail.
"""
import glob, json, os, subprocess, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BIN = os.environ["ORTRAIN_BIN"]
SOURCE = os.environ.get("ORTRAIN_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(SOURCE, "tests", "golden")
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
failed = 0


def say(ok, text):
    global failed
    failed += not ok
    print(("ok   " if ok else "FAIL ") + text, flush=True)


def ortrain(*args, cwd=None):
    done = subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=300)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {' '.join(map(str, args))}\n{done.stderr[-600:]}")
    return done.stdout


def losses(out):
    with open(os.path.join(out, "run.jsonl")) as f:
        return [s["loss"] for s in map(json.loads, f) if "loss" in s]


def contents(out, step):
    found = {}
    for path in sorted(glob.glob(os.path.join(out, "checkpoints", f"step-{step:06d}", "*"))):
        if not path.endswith(".json"):
            with open(path, "rb") as f: found[os.path.basename(path)] = f.read()
    assert found, out
    return found


def flags_of(name):
    with open(os.path.join(GOLDEN, name, "case.json")) as f:
        case = json.load(f)
    flags, keep = case["flags"], ("--data", "--loss", "--optimizer", "--lr", "--batch-size", "--shuffle")
    return [x for n in keep if n in flags for x in (n, flags[flags.index(n) + 1])]


def same_bytes(name, precision, tmp):
    folder = os.path.join(GOLDEN, name)
    flags = [*flags_of(name), "--precision", precision, "--checkpoint-every", 3, "--keep", 9, "--seed", 3, "--dropout", 0.1,
             "--schedule", "cosine"]
    if precision == "fp16":
        flags += ["--loss-scale", "dynamic,init=1024,interval=2"]
    out = lambda kind: os.path.join(tmp, f"{name}-{precision}-{kind}")
    ortrain("model.onnx", *flags, "--steps", 7, "--out", out("straight"), "--recompute", "off", cwd=folder)
    os.makedirs(os.path.join(out("parts"), "checkpoints"))
    ortrain("model.onnx", *flags, "--steps", 7, "--out", out("sqrt"), "--recompute", "sqrt", cwd=folder)
    ortrain("model.onnx", *flags, "--steps", 7, "--out", out("seed"), "--seed", 4, cwd=folder)
    ortrain("model.onnx", *flags, "--steps", 7, "--out", out("copy"), cwd=folder)
    whole = contents(out("straight"), 7)
    os.rename(os.path.join(out("copy"), "checkpoints", "step-000003"), os.path.join(out("parts"), "checkpoints", "step-000003"))
    ortrain("model.onnx", *flags, "--steps", 7, "--out", out("parts"), "--resume", cwd=folder)
    say(contents(out("parts"), 7) == whole, f"{name} {precision}: a resumed run has the straight one's bytes")
    say(losses(out("parts")) == losses(out("straight"))[3:], f"{name} {precision}: and its losses")
    say(contents(out("sqrt"), 7) == whole, f"{name} {precision}: recomputation changes no byte")
    say(contents(out("seed"), 7) != whole, f"{name} {precision}: another seed does")
    if precision == "fp16":
        scales = []
        with open(os.path.join(out("straight"), "run.jsonl")) as f:
            scales = [s["loss_scale"] for s in map(json.loads, f) if "loss_scale" in s]
        say(len(set(scales)) > 1, f"{name} fp16: the scale moved: {sorted(set(scales))}")


def updates(model, flags, out, cwd=None):
    """What one step of plain SGD adds to every tensor of the exported file."""
    ortrain(model, *flags, "--steps", 1, "--optimizer", "sgd", "--lr", 1, "--out", out, cwd=cwd)
    read = lambda path: {t.name: numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(path).graph.initializer}
    before, after = read(os.path.join(cwd or "", model)), read(os.path.join(out, "model.onnx"))
    return {n: after[n] - before[n] for n in after if n in before and after[n].dtype == np.float64 and np.any(after[n] != before[n])}


def distance(a, b):
    names = [n for n in b if n in a]
    assert names
    return np.sqrt(sum(np.sum((a[n] - b[n])**2) for n in names) / sum(np.sum(b[n]**2) for n in names))


def accumulated(name, precision, tmp):
    folder, flags = os.path.join(GOLDEN, name), flags_of(name)
    for drop in ("--optimizer", "--lr"):
        i = flags.index(drop)
        del flags[i:i + 2]
    i = flags.index("--batch-size")
    batch = int(flags[i + 1])
    out = lambda kind: os.path.join(tmp, f"{name}-{precision}-acc-{kind}")
    exact = updates("model.onnx", flags, out("fp32"), folder)
    one = updates("model.onnx", [*flags, "--precision", precision], out("one"), folder)
    flags[i + 1] = batch // 2
    two = updates("model.onnx", [*flags, "--accumulate", 2, "--precision", precision], out("two"), folder)
    first = updates("model.onnx", [*flags, "--precision", precision], out("half"), folder)
    off, limit, half = distance(two, one), 2 * distance(one, exact) + 2 * UNIT[precision], distance(first, one)
    say(off <= limit, f"{name} {precision}: two micro-batches are {off:.2g} from one batch, limit {limit:.2g}")
    say(half > limit, f"{name} {precision}: one micro-batch alone is {half:.2g} from it")


def lora(name, precision, tmp):
    folder, ends = os.path.join(GOLDEN, name), {}
    for p in ("fp32", precision):
        out = os.path.join(tmp, f"{name}-{p}-lora-{precision}")
        ortrain("model.onnx", *flags_of(name), "--precision", p, "--lora", "r=4,alpha=8", "--steps", 20, "--out", out, cwd=folder)
        ends[p] = losses(out)
    far = abs(ends[precision][-1] - ends["fp32"][-1]) / (ends["fp32"][0] - ends["fp32"][-1])
    say(ends["fp32"][-1] < ends["fp32"][0] and far < 0.05, f"{name} {precision}: LoRA ends at {ends[precision][-1]:.5g}, fp32 {ends['fp32'][-1]:.5g}")
    say(ends[precision] != ends["fp32"], f"{name} {precision}: and was computed in 16 bits")


def own_loss(precision, tmp):
    """A file whose output is its loss: mean((relu(x w) v - target)^2)."""
    rng = np.random.default_rng(3)
    f = lambda *dims: rng.standard_normal(dims).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"), helper.make_node("Relu", ["a"], ["r"], "relu"),
             helper.make_node("MatMul", ["r", "v"], ["y"], "second"), helper.make_node("Sub", ["y", "target"], ["d"], "off"),
             helper.make_node("Mul", ["d", "d"], ["q"], "square"), helper.make_node("ReduceMean", ["q"], ["loss"], "mean", keepdims=0)]
    graph = helper.make_graph(
        nodes, "own", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32]),
                       helper.make_tensor_value_info("target", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(0.2 * f(32, 48), "w"), numpy_helper.from_array(0.2 * f(48, 4), "v")])
    path = os.path.join(tmp, f"own-{precision}.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = f(64, 32)
    data = os.path.join(tmp, "own.npz")
    np.savez(data, x=x, target=np.tanh(x[:, :4]))
    flags = ["--data", data, "--loss", "graph", "--batch-size", 64, "--shuffle", "none"]
    exact = updates(path, flags, os.path.join(tmp, f"own-fp32-{precision}"))
    got = updates(path, [*flags, "--precision", precision], os.path.join(tmp, f"own-{precision}"))
    off = distance(got, exact)
    say(len(got) == 2 and 0 < off < 8 * UNIT[precision], f"own loss {precision}: its step is {off:.2g} from fp32's")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        for precision in ("bf16", "fp16"):
            for name in ("bert_tiny", "resnet_tiny", "lstm_tags"):
                same_bytes(name, precision, tmp)
            for name in ("mlp_digits", "gpt_tiny"):
                accumulated(name, precision, tmp)
            lora("gpt_tiny", precision, tmp)
            own_loss(precision, tmp)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
