#!/usr/bin/env python3
"""Writes the golden cases control_flow and control_flow_torch: recurrent classifiers of Loop, If and
Scan, and what PyTorch computes when it trains the same functions (as Python loops) in float64.

  python3 make_control_flow.py        needs torch, onnx, onnxscript, numpy; writes both folders

control_flow_torch is one module as PyTorch's exporters write it: a scripted loop over a list
(model_ts.onnx: Loop, If, sequences) and torch.cond with scan (model.onnx: If, Scan).
control_flow is written by hand. The Loop's trip count is the extent of an axis of x; its body holds a parameter of its own, reads
others of the graph around it, and holds an If on run-time data whose one branch has a parameter too.
Its stacked outputs go backwards through a Scan. Tolerances are those of make_golden.py's floor.
"""
import json
import os
import warnings
from typing import List

import numpy as np
import onnx
import torch
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from golden_export import strip_traces

HERE = os.path.dirname(os.path.abspath(__file__))
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


class Scripted(torch.nn.Module):
    """The function of control_flow_torch as a loop over a list that grows."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(IN, HIDDEN)
        self.b = torch.nn.Linear(HIDDEN, HIDDEN)
        self.c = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        h = torch.zeros([x.size(0), 8], dtype=x.dtype)
        seen: List[torch.Tensor] = []
        for t in range(x.size(1)):
            h = torch.tanh(self.a(x[:, t]) + self.b(h))
            if t % 2 == 0:
                h = h * 0.5
            seen.append(h)
        if bool(h.mean() > 0):
            h = h * 2.0
        else:
            h = h.sin()
        return self.c(h + torch.stack(seen).mean(0))


class Functional(Scripted):
    """The same function with torch.cond and scan."""

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        def step(h, xt):
            h = torch.tanh(self.a(xt[0]) + self.b(h)) * 0.5
            even = h
            h = torch.tanh(self.a(xt[1]) + self.b(h))
            return h, even + h

        first = torch.zeros([x.size(0), HIDDEN], dtype=x.dtype)
        h, sums = scan(step, first, x.transpose(0, 1).reshape(TIME // 2, 2, -1, IN), dim=0)
        y = torch.cond(h.mean() > 0, lambda h: h * 2.0, lambda h: h.sin(), (h,))
        return self.c(y + sums.sum(0) / TIME)


def export_torch(net, folder):
    x = torch.randn(5, TIME, IN)
    torch.onnx.export(torch.jit.script(net), (x,), os.path.join(folder, "model_ts.onnx"), dynamo=False,
                      opset_version=17, input_names=["x"], output_names=["logits"],
                      do_constant_folding=False, dynamic_axes={"x": {0: "batch", 1: "time"}})
    other = Functional()
    other.load_state_dict(net.state_dict())
    assert torch.allclose(other(x), net(x), atol=1e-6)
    program = torch.onnx.export(other, (x,), dynamo=True, input_names=["x"], output_names=["logits"],
                                dynamic_shapes=({0: torch.export.Dim("batch")},), optimize=False,
                                verbose=False)
    written = program.model_proto
    strip_traces(written.graph)
    onnx.save(written, os.path.join(folder, "model.onnx"))


# ---- training and writing ------------------------------------------------------------------------
def write_case(case, description, p, forward, files):
    """Trains parameters p (float64, by initializer name) and writes everything but the models."""
    folder = os.path.join(HERE, case)
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(11)
    x = rng.standard_normal((SAMPLES, TIME, IN)).astype(np.float32)
    x += rng.standard_normal((SAMPLES // BATCH, TIME, 1)).astype(np.float32).repeat(BATCH, 0)
    labels = x[:, :, :CLASSES].sum(1).argmax(1).astype(np.int64)
    initial = {n: w.detach().numpy().copy() for n, w in p.items()}
    optimizer = torch.optim.SGD(p.values(), lr=LR, momentum=MOMENTUM)
    golden, losses, margins = {}, [], []
    for step in range(STEPS):
        at = slice(step * BATCH, (step + 1) * BATCH)
        out = forward(torch.tensor(x[at], dtype=torch.float64), margins)
        loss = torch.nn.functional.cross_entropy(out, torch.tensor(labels[at]))
        optimizer.zero_grad(set_to_none=False)  # a branch not taken has gradient 0, not none
        loss.backward()
        losses.append(loss.item())
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
                         "update_norm": float(np.linalg.norm((after - initial[n]).ravel()))}
        assert np.abs(golden["grad/" + n]).max() > 1e-3, n
    golden["loss"] = np.array(losses)
    np.savez(os.path.join(folder, "golden.npz"), **golden)
    np.savez(os.path.join(folder, "train.npz"), x=x, labels=labels)
    facts = {
        "case": case,
        "description": description,
        "golden_from": files[0],
        "flags": ["model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--optimizer", "sgd",
                  "--lr", str(LR), "--momentum", str(MOMENTUM), "--batch-size", str(BATCH),
                  "--steps", str(STEPS), "--shuffle", "none", "--log", "run.jsonl"],
        "files": {f: {"golden_applies": True} for f in files},
        "tolerances": {"loss_rtol": 1e-5, "per_tensor": tolerances},
        "branches_taken": {"then": sum(taken), "else": len(taken) - sum(taken)},
    }
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump(facts, f, indent=1)
    print(case, losses[0], losses[-1], facts["branches_taken"], min(map(abs, margins)))


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    os.makedirs(os.path.join(HERE, "control_flow_torch"), exist_ok=True)
    os.makedirs(os.path.join(HERE, "control_flow"), exist_ok=True)

    p = {n: torch.tensor(w, dtype=torch.float64, requires_grad=True) for n, w in weights.items()}
    write_case("control_flow",
               "Recurrent classifier of Loop, If on run-time data and Scan; parameters in bodies.", p,
               lambda x, margins: forward(p, x, margins), ["model.onnx"])
    onnx.save(model(), os.path.join(HERE, "control_flow", "model.onnx"))

    net = Scripted()
    export_torch(net, os.path.join(HERE, "control_flow_torch"))
    net = net.double()

    def run(x, margins):
        h = torch.zeros([x.size(0), HIDDEN], dtype=x.dtype)
        with torch.no_grad():
            for t in range(TIME):
                h = torch.tanh(net.a(x[:, t]) + net.b(h)) * (0.5 if t % 2 == 0 else 1.0)
        margins.append(h.mean().item())
        return net(x)

    write_case("control_flow_torch",
               "The same kind of model as PyTorch's exporters write it: scripted, and torch.cond with scan.",
               dict(net.named_parameters()), run, ["model.onnx", "model_ts.onnx"])


if __name__ == "__main__":
    main()
