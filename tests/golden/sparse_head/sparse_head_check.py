#!/usr/bin/env python3
# ctest-label: fast
# ctest-timeout: 300
"""sparse_head changes no number: the head's products for the positions that count alone = those of all positions.

1. A net of its own (Gather, MatMul + bias, Tanh, head) with labels of which most are ignored: loss and gradients
   against numpy in float64, by 1e-12 (fp64) and 1e-6 (fp32) of a tensor's largest; bf16 and fp16 by four roundings.
2. gpt_tiny (head tied to the embedding), its labels ignored by parts: with the pass and without it (--disable-pass):
   to the bit with --kernels ref (3 steps: parameters, moments, losses, norms), gradients by 1e-12 (fp64), 1e-6
   (fp32) or one rounding (bf16, fp16) of the model's largest with the library's kernels, whose sums have another
   order. Also with flags that change the graph. The dump must show that the pass was at work, else the comparison could not fail.
The program is $ORTRAIN_BIN.
"""
import json
import os
import re
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from program import ortrain

GPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpt_tiny")
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
LIMIT = {"fp64": 1e-12, "fp32": 1e-6, **ROUNDING}
rng = np.random.default_rng(5)
problems = []


def say(what, worst, limit):
    good = worst <= limit
    print(f"{'ok  ' if good else 'FAIL'} {what}: {worst:.1e}, limit {limit:g}", flush=True)
    if not good:
        problems.append(what)


def far(got, want):
    """The largest difference, by the largest number of all."""
    if got.keys() != want.keys():
        return np.inf
    size = max(np.abs(v).max(initial=0) for v in want.values())
    diffs = [np.abs(got[k].astype(np.float64) - v).max(initial=0) / max(size, 1e-30) for k, v in want.items()]
    return np.inf if np.isnan(diffs).any() else float(max(diffs))


def gradients(tmp, *flags):
    out = os.path.join(tmp, "grads.npz")
    text = ortrain("grads", *flags, "--out", out)
    with np.load(out) as z:
        return {k.removeprefix("grad/"): z[k].astype(np.float64) for k in z.files}, text


# --- a net of its own against numpy -------------------------------------------------------------------------------
B, T, D, H, C, SMOOTH, IGNORE = 4, 37, 8, 12, 33, 0.1, 3


def small_model(path, p):
    nodes = [helper.make_node("Gather", ["emb", "ids"], ["e"]), helper.make_node("MatMul", ["e", "w0"], ["m"]),
             helper.make_node("Add", ["m", "b0"], ["a"]), helper.make_node("Tanh", ["a"], ["h"]),
             helper.make_node("MatMul", ["h", "w1"], ["l"]), helper.make_node("Add", ["l", "b1"], ["logits"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", T])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", T, C])],
                              [numpy_helper.from_array(v.astype(np.float32), k) for k, v in p.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def numpy_gradients(p, ids, labels, weights):
    e = p["emb"][ids]
    h = np.tanh(e @ p["w0"] + p["b0"])
    x = h @ p["w1"] + p["b1"]
    counts = labels != IGNORE
    t = np.where(counts, labels, 0)
    target = ((1 - SMOOTH) * np.eye(C)[t] + SMOOTH / C) * weights
    soft = np.exp(x - x.max(-1, keepdims=True))
    soft /= soft.sum(-1, keepdims=True)
    divisor = (weights[t] * counts).sum()
    loss = -(target * np.log(soft) * counts[..., None]).sum() / divisor if divisor else 0.0
    dx = (soft * target.sum(-1, keepdims=True) - target) * counts[..., None] / (divisor or 1)
    da = dx @ p["w1"].T * (1 - h * h)
    demb = np.zeros_like(p["emb"])
    np.add.at(demb, ids, da @ p["w0"].T)
    return {"emb": demb, "w0": np.einsum("btd,bth->dh", e, da), "b0": da.sum((0, 1)),
            "w1": np.einsum("bth,btc->hc", h, dx), "b1": dx.sum((0, 1)), "loss": np.array(loss)}


def against_numpy(tmp):
    f32 = lambda *s: rng.standard_normal(s).astype(np.float32).astype(np.float64) * 0.5
    p = {"emb": f32(20, D), "w0": f32(D, H), "b0": f32(H), "w1": f32(H, C), "b1": f32(C)}
    model, data = os.path.join(tmp, "small.onnx"), os.path.join(tmp, "small.npz")
    small_model(model, p)
    weights = np.where(np.arange(C) % 2, 1.0, 0.5)
    ids = rng.integers(0, 20, (B, T))
    for name, share in (("85 % ignored", 0.85), ("none ignored", 0.0), ("all ignored", 1.0)):
        labels = rng.integers(0, C, (B, T))
        labels[labels == IGNORE] = 4
        labels[rng.random((B, T)) < share] = IGNORE
        np.savez(data, ids=ids, labels=labels)
        want = numpy_gradients(p, ids, labels, weights)
        for precision, limit in LIMIT.items():
            got, text = gradients(tmp, model, "--data", data, "--batch-size", B, "--loss", "cross_entropy", "--shuffle",
                                  "none", "--ignore-index", IGNORE, "--label-smoothing", SMOOTH, "--class-weights",
                                  ",".join(map(str, weights)), "--precision", precision, "--dump-after", "sparse_head")
            if "LinearRows" not in text:
                problems.append(f"{name}: the pass did nothing")
            got.setdefault("loss", np.array(float(re.search(r"\bloss ([-+.\de]+),", text)[1])))
            loss = abs(got.pop("loss") - want["loss"]) / max(1.0, want["loss"])
            if precision in ROUNDING:
                limit *= 4  # inputs, h, logits and their gradient are rounded
            say(f"numpy, {name}, {precision}: loss", float(loss), max(limit, 1e-6))  # as printed
            say(f"numpy, {name}, {precision}: gradients", far(got, {k: v for k, v in want.items() if k != "loss"}), limit)


# --- gpt_tiny with and without the pass ---------------------------------------------------------------------------
def trained(out, *flags):
    text = ortrain(*flags, "--steps", 3, "--checkpoint-every", 3, "--clip-norm", 0.5, "--out", out)
    folder = os.path.join(out, "checkpoints", "step-000003")
    found = {k: v for f in ("params", "optimizer") for k, v in load_file(os.path.join(folder, f + ".safetensors")).items()}
    with open(os.path.join(out, "run.jsonl")) as f:
        rows = [r for r in map(json.loads, f) if "loss" in r]
    found["losses"] = np.array([r["loss"] for r in rows], np.float64)  # null, without a target: nan
    found["norms"] = np.array([r["grad_norm"] for r in rows if "grad_norm" in r], np.float64)
    assert len(found["losses"]) > 0 and len(found["norms"]) > 0
    return found, text


def on_and_off(tmp):
    with np.load(os.path.join(GPT, "train.npz")) as z:
        arrays = {k: z[k] for k in z.files}
    labels = arrays["labels"]
    every = np.zeros(labels.shape, bool)
    some = rng.random(labels.shape) < 0.85
    uneven = some.copy()
    uneven[:16] = True
    uneven[1, 3] = False        # a batch with a single label, one without
    uneven[16:24] = False       # one with all
    none = ["--disable-pass", "sparse_head"]
    data = os.path.join(tmp, "gpt.npz")
    for name, mask in (("none ignored", every), ("85 % ignored", some), ("one, none, all of a batch", uneven)):
        np.savez(data, **{**arrays, "labels": np.where(mask, -100, labels)})
        flags = [os.path.join(GPT, "model.onnx"), "--data", data, "--loss", "cross_entropy", "--batch-size", 8, "--shuffle", "none"]
        for precision, limit in LIMIT.items():
            on, text = gradients(tmp, *flags, "--precision", precision, "--dump-after", "sparse_head")
            if "LinearRows" not in text:
                problems.append(f"{name}: the pass did nothing")
            off, text = gradients(tmp, *flags, "--precision", precision, *none, "--dump-after", "autodiff")
            assert "LinearRows" not in text and "LinearGrad" in text
            say(f"gpt_tiny, {name}, {precision}", far(on, off), limit)
        more = [[]]
        if mask is uneven:
            more += [["--accumulate", 2], ["--recompute", "sqrt"], ["--pad-dims", 16], ["--lora", "r=2,alpha=4"],
                     ["--label-smoothing", 0.1], ["--precision", "tf32"]]
        more += [["--precision", p] for p in ROUNDING]
        for i, extra in enumerate(more):
            run = lambda which, *f: trained(os.path.join(tmp, f"{name}-{i}-{which}"), *flags, "--kernels", "ref", *extra, *f)[0]
            a, b = run("on"), run("off", *none)
            same = a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)
            say(f"gpt_tiny, {name}, ref, 3 steps {' '.join(map(str, extra))}", 0.0 if same else max(far(a, b), 1e-30), 0.0)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        against_numpy(tmp)
        on_and_off(tmp)
    for p in problems:
        print("FAIL " + p)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
