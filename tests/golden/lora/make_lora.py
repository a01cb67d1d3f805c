#!/usr/bin/env python3
"""Writes lora.onnx, lora_int8.onnx, lora_int4.onnx, train.npz and lora.json: a small net with its weights in
the three layouts that files have, its middle one also as int8 behind DequantizeLinear and as int4 in
MatMulNBits (a frozen quantised base, as QLoRA has), and what PyTorch computes in float64 when only LoRA adapters (PEFT's formula)
and what --train names are trained. A starts as graph/passes/lora.cc documents it, B at zero.
Needs torch, numpy, onnx; tests/checks/lora.py only reads the files.

  python make_lora.py
"""
import json
import math
import os

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, BATCH, STEPS, LR, SEED = 48, 8, 20, 0.01, 5
GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
rng = np.random.default_rng(21)
SHAPES = {"fc1.weight": (8, 16), "fc1.bias": (16,), "fc2.weight": (16, 16), "head.weight": (4, 16), "head.bias": (4,)}
PARAMS = {k: (rng.standard_normal(s) * 0.4).astype(np.float32) for k, s in SHAPES.items()}
SCALE = np.float32(0.01)
# int4: one scale for each row's 16 inputs, zero point 8, the first code of a byte in its low bits.
SCALES4 = (np.abs(PARAMS["fc2.weight"]).max(1) / 7).astype(np.float32)
CODES4 = np.clip(np.round(PARAMS["fc2.weight"] / SCALES4[:, None]) + 8, 0, 15).astype(np.uint8)
WEIGHTS = {"int8": None, "int4": (CODES4.astype(np.float32) - 8) * SCALES4[:, None]}
CODES = np.clip(np.round(PARAMS["fc2.weight"] / SCALE), -127, 127).astype(np.int8)
WEIGHTS["int8"] = CODES.astype(np.float32) * SCALE


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def initial_a(name, inputs, rank):
    """[in, r], uniform in +-1/sqrt(in)."""
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & MASK
    stream = mix(((SEED * GOLDEN) & MASK) ^ h)
    u = [(mix((stream + (i + 1) * GOLDEN) & MASK) >> 11) / 2**52 - 1 for i in range(inputs * rank)]
    return np.array(u).reshape(inputs, rank) / math.sqrt(inputs)


def data():
    return {"x": rng.standard_normal((SAMPLES, 6, 8)).astype(np.float32),
            "labels": rng.integers(0, 4, SAMPLES).astype(np.int64)}


def model(path, integers):
    node = helper.make_node
    nodes = [node("MatMul", ["x", "fc1.weight"], ["m1"], "fc1"), node("Add", ["m1", "fc1.bias"], ["a1"]),
             node("Tanh", ["a1"], ["h1"])]
    inits = [numpy_helper.from_array(v, k) for k, v in PARAMS.items() if not (integers and k == "fc2.weight")]
    if integers == "int4":
        packed = (CODES4[:, ::2] | CODES4[:, 1::2] << 4).reshape(16, 1, 8)
        inits += [numpy_helper.from_array(packed, "fc2.weight"), numpy_helper.from_array(SCALES4, "fc2.scales")]
    elif integers:
        inits += [numpy_helper.from_array(CODES, "fc2.weight"), numpy_helper.from_array(SCALE, "fc2.scale")]
        nodes.append(node("DequantizeLinear", ["fc2.weight", "fc2.scale"], ["fc2_float"], "fc2_dequantize"))
    if integers == "int4":
        nodes.append(node("MatMulNBits", ["h1", "fc2.weight", "fc2.scales"], ["h2"], "fc2", domain="com.microsoft",
                          K=16, N=16, bits=4, block_size=16))
    else:
        nodes += [node("Transpose", ["fc2_float" if integers else "fc2.weight"], ["fc2_t"], perm=[1, 0]),
                  node("MatMul", ["h1", "fc2_t"], ["h2"], "fc2")]
    nodes += [node("Relu", ["h2"], ["r2"]),
              node("ReduceMean", ["r2"], ["pooled"], axes=[1], keepdims=0),
              node("Gemm", ["pooled", "head.weight", "head.bias"], ["logits"], "head", transB=1)]
    f = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    m = helper.make_model(helper.make_graph(nodes, "lora", [f("x", ["n", 6, 8])], [f("logits", ["n", 4])], inits),
                          opset_imports=[helper.make_opsetid("", 17)]
                          + [helper.make_opsetid("com.microsoft", 1)] * (integers == "int4"))
    m.ir_version = 8
    onnx.checker.check_model(m)
    onnx.save(m, path)


def forward(p, adapters, scale, x):
    """Weights as PyTorch has them, [out, in]; A [r, in], B [out, r]."""
    def linear(name, x, weight, bias=None):
        y = F.linear(x, weight, bias)
        if name in adapters:
            a, b = adapters[name]
            y = y + F.linear(F.linear(x, a), b) * scale
        return y
    h = torch.tanh(linear("fc1", x, p["fc1.weight"].T, p["fc1.bias"]))
    h = torch.relu(linear("fc2", h, p["fc2.weight"])).mean(1)
    return linear("head", h, p["head.weight"], p["head.bias"])


def train(d, names, rank, alpha, trained, integers=None):
    p = {k: torch.tensor(v, dtype=torch.float64) for k, v in PARAMS.items()}
    if integers:
        p["fc2.weight"] = torch.tensor(WEIGHTS[integers], dtype=torch.float64)
    for k in trained:
        p[k].requires_grad_()
    sizes = {"fc1": (8, 16), "fc2": (16, 16), "head": (16, 4)}
    adapters = {n: (torch.tensor(initial_a(n + ".lora_A.weight", sizes[n][0], rank).T.copy()).requires_grad_(),
                    torch.zeros(sizes[n][1], rank, dtype=torch.float64, requires_grad=True)) for n in names}
    free = [t for pair in adapters.values() for t in pair] + [p[k] for k in trained]
    optimizer = torch.optim.AdamW(free, lr=LR, weight_decay=0)
    x, labels = torch.tensor(d["x"], dtype=torch.float64), torch.tensor(d["labels"])
    losses = []
    for step in range(STEPS):
        at = (step * BATCH) % SAMPLES
        loss = F.cross_entropy(forward(p, adapters, alpha / rank, x[at:at + BATCH]), labels[at:at + BATCH])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    flat = lambda t: t.detach().reshape(-1).tolist()
    return {"loss": losses, "A": {n: flat(a) for n, (a, _) in adapters.items()},
            "B": {n: flat(b) for n, (_, b) in adapters.items()}, "trained": {k: flat(p[k]) for k in trained},
            "logits": flat(forward(p, adapters, alpha / rank, x))}


def main():
    d = data()
    model(os.path.join(HERE, "lora.onnx"), None)
    model(os.path.join(HERE, "lora_int8.onnx"), "int8")
    model(os.path.join(HERE, "lora_int4.onnx"), "int4")
    np.savez(os.path.join(HERE, "train.npz"), **d)
    cases = [
        {"name": "two_and_head", "model": "lora.onnx", "flags": ["--lora", "r=4,alpha=8,targets=fc1|fc2", "--train", "head"],
         **train(d, ["fc1", "fc2"], 4, 8, ["head.weight", "head.bias"])},
        {"name": "all", "model": "lora.onnx", "flags": ["--lora", "r=2"], **train(d, ["fc1", "fc2", "head"], 2, 2, [])},
        {"name": "int8", "model": "lora_int8.onnx", "flags": ["--lora", "r=3,alpha=6,targets=^fc2"],
         **train(d, ["fc2"], 3, 6, [], integers="int8")},
        {"name": "int4", "model": "lora_int4.onnx", "flags": ["--lora", "r=3,alpha=6,targets=fc", "--train", "head.bias"],
         **train(d, ["fc1", "fc2"], 3, 6, ["head.bias"], integers="int4")},
    ]
    with open(os.path.join(HERE, "lora.json"), "w") as f:
        json.dump({"batch": BATCH, "steps": STEPS, "lr": LR, "seed": SEED, "torch": torch.__version__, "cases": cases}, f)


if __name__ == "__main__":
    main()
