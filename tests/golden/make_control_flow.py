#!/usr/bin/env python3
"""Writes the golden case control_flow: a recurrent classifier of Loop, If and Scan, and what PyTorch
computes when it trains the same function (written as Python loops) in float64.

  python3 make_control_flow.py        needs torch, onnx, numpy; writes control_flow/

The Loop's trip count is the extent of an axis of x; its body holds a parameter of its own, reads
others of the graph around it, and holds an If on run-time data whose one branch has a parameter too.
Its stacked outputs go backwards through a Scan. Tolerances are those of make_golden.py's floor.
"""
import json
import os

import numpy as np
import onnx
import torch
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "control_flow")
BATCH, STEPS, SAMPLES, TIME, IN, HIDDEN, CLASSES = 16, 20, 320, 6, 4, 8, 3
LR, MOMENTUM = 0.1, 0.9
rng = np.random.default_rng(7)


def weight(*shape, scale=0.5):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


weights = {  # by the name that ortrain gives them
    "wx": weight(IN, HIDDEN), "b": weight(HIDDEN), "gain": 1 + weight(HIDDEN, scale=0.1),
    "decay": 0.6 + weight(HIDDEN, scale=0.1), "wo": weight(HIDDEN, CLASSES), "bo": weight(CLASSES),
    "loop/wh": weight(HIDDEN, HIDDEN, scale=0.3), "loop/if/shift": weight(HIDDEN, scale=0.2),
}


def tensor(name):
    return numpy_helper.from_array(weights[name], name.split("/")[-1])


def ints(name, values, dims=None):
    return numpy_helper.from_array(np.array(values, np.int64).reshape(dims or [len(values)]), name)


def value(name, kind=T.FLOAT, shape=None):
    return h.make_tensor_value_info(name, kind, shape)


def model():
    then = h.make_graph([h.make_node("Mul", ["raw", "gain"], ["out_then"], "mul")], "then", [],
                        [value("out_then")])
    other = h.make_graph([h.make_node("Sub", ["raw", "shift"], ["out_else"], "sub")], "else", [],
                         [value("out_else")], [tensor("loop/if/shift")])
    body = h.make_graph([
        h.make_node("Gather", ["x", "t"], ["xt"], "x_t", axis=1),
        h.make_node("MatMul", ["xt", "wx"], ["ax"], "mx"),
        h.make_node("MatMul", ["state", "wh"], ["ah"], "mh"),
        h.make_node("Add", ["ax", "ah"], ["a"], "add"),
        h.make_node("Add", ["a", "b"], ["ab"], "bias"),
        h.make_node("Tanh", ["ab"], ["raw"], "tanh"),
        h.make_node("ReduceMean", ["raw"], ["mean"], "mean", keepdims=0),
        h.make_node("Greater", ["mean", "zero"], ["high"], "greater"),
        h.make_node("If", ["high"], ["next"], "if", then_branch=then, else_branch=other),
        h.make_node("Identity", ["go"], ["go_on"], "go_on"),
    ], "body", [value("t", T.INT64, []), value("go", T.BOOL, []), value("state")],
        [value("go_on", T.BOOL, []), value("next"), value("raw")], [tensor("loop/wh")])
    back = h.make_graph([
        h.make_node("Mul", ["s", "decay"], ["sd"], "mul"),
        h.make_node("Add", ["sd", "z"], ["s_next"], "add"),
    ], "back", [value("s"), value("z")], [value("s_next")])
    g = h.make_graph([
        h.make_node("Shape", ["x"], ["shape"], "shape"),
        h.make_node("Gather", ["shape", "one"], ["time"], "time"),
        h.make_node("Gather", ["shape", "first"], ["batch"], "batch"),
        h.make_node("Concat", ["batch", "hidden"], ["state_shape"], "state_shape", axis=0),
        h.make_node("ConstantOfShape", ["state_shape"], ["zeros"], "zeros"),
        h.make_node("Loop", ["time", "true", "zeros"], ["h", "hs"], "loop", body=body),
        h.make_node("Scan", ["h", "hs"], ["last"], "scan", body=back, num_scan_inputs=1,
                    scan_input_directions=[1]),
        h.make_node("Gemm", ["last", "wo", "bo"], ["logits"], "head"),
    ], "control_flow", [value("x", T.FLOAT, ["batch", TIME, IN])],
        [value("logits", T.FLOAT, ["batch", CLASSES])],
        [tensor(n) for n in weights if "/" not in n] +
        [ints("one", [1], []), ints("first", [0]), ints("hidden", [HIDDEN]),
         numpy_helper.from_array(np.float32(0), "zero"),
         numpy_helper.from_array(np.bool_(True), "true")])
    m = h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(m)
    return m


def forward(p, x, margins):
    s = torch.zeros(x.shape[0], HIDDEN, dtype=x.dtype)
    raws = []
    for t in range(x.shape[1]):
        raw = torch.tanh(x[:, t] @ p["wx"] + s @ p["loop/wh"] + p["b"])
        margins.append(raw.mean().item())
        s = raw * p["gain"] if raw.mean() > 0 else raw - p["loop/if/shift"]
        raws.append(raw)
    for raw in reversed(raws):
        s = s * p["decay"] + raw
    return s @ p["wo"] + p["bo"]


def main():
    torch.set_num_threads(1)
    os.makedirs(HERE, exist_ok=True)
    x = rng.standard_normal((SAMPLES, TIME, IN)).astype(np.float32)
    x += rng.standard_normal((SAMPLES // BATCH, TIME, 1)).astype(np.float32).repeat(BATCH, 0)
    labels = x[:, :, :CLASSES].sum(1).argmax(1).astype(np.int64)
    p = {n: torch.tensor(w, dtype=torch.float64, requires_grad=True) for n, w in weights.items()}
    optimizer = torch.optim.SGD(p.values(), lr=LR, momentum=MOMENTUM)
    golden, losses, margins = {}, [], []
    for step in range(STEPS):
        at = slice(step * BATCH, (step + 1) * BATCH)
        out = forward(p, torch.tensor(x[at], dtype=torch.float64), margins)
        loss = torch.nn.functional.cross_entropy(out, torch.tensor(labels[at]))
        optimizer.zero_grad()
        loss.backward()
        losses.append(float(loss))
        if step == 0:
            for n in p:
                golden["grad/" + n] = p[n].grad.numpy().astype(np.float32)
        optimizer.step()
    taken = [m > 0 for m in margins]
    assert any(taken) and not all(taken) and min(map(abs, margins)) > 1e-4, "branches: another seed"
    tolerances = {}
    for n in p:
        after = p[n].detach().numpy()
        golden["param_after/" + n] = after
        tolerances[n] = {"grad_check": "relative", "grad_rtol": 1e-4, "update_check": True,
                         "update_rtol": 5e-4,
                         "update_norm": float(np.linalg.norm((after - weights[n]).ravel()))}
        assert np.abs(golden["grad/" + n]).max() > 1e-3, n
    golden["loss"] = np.array(losses)
    np.savez(os.path.join(HERE, "golden.npz"), **golden)
    np.savez(os.path.join(HERE, "train.npz"), x=x, labels=labels)
    onnx.save(model(), os.path.join(HERE, "model.onnx"))
    case = {
        "case": "control_flow",
        "description": "Recurrent classifier of Loop, If on run-time data and Scan; parameters in bodies.",
        "golden_from": "model.onnx",
        "flags": ["model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--optimizer", "sgd",
                  "--lr", str(LR), "--momentum", str(MOMENTUM), "--batch-size", str(BATCH),
                  "--steps", str(STEPS), "--shuffle", "none", "--log", "run.jsonl"],
        "files": {"model.onnx": {"golden_applies": True}},
        "tolerances": {"loss_rtol": 1e-5, "per_tensor": tolerances},
        "branches_taken": {"then": sum(taken), "else": len(taken) - sum(taken)},
    }
    with open(os.path.join(HERE, "case.json"), "w") as f:
        json.dump(case, f, indent=1)
    print(losses[0], losses[-1], case["branches_taken"], min(map(abs, margins)))


if __name__ == "__main__":
    main()
