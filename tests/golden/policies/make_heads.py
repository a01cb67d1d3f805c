#!/usr/bin/env python3
"""Writes heads.onnx, heads.npz and heads.json: one small net with several heads, and what PyTorch
computes when it trains it in float64 under class weights, label smoothing, ignored labels and several
losses at once. Needs torch, numpy, onnx; tests/checks/policies.py only reads the files.

  python make_heads.py
"""
import json
import os

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, BATCH, STEPS, LR = 48, 8, 12, 0.2
rng = np.random.default_rng(11)
SHAPES = {"w0": (16, 6), "b0": (16,), "w_cls": (5, 16), "b_cls": (5,), "w_reg": (2, 16), "b_reg": (2,),
          "w_seg": (12, 16), "b_seg": (12,), "w_aux": (3, 16)}
PARAMS = {k: (rng.standard_normal(s) * 0.5).astype(np.float32) for k, s in SHAPES.items()}


def data():
    cls = rng.choice(5, SAMPLES, p=[0.5, 0.2, 0.15, 0.1, 0.05]).astype(np.int64)
    cls[:5] = range(5)  # every class occurs
    ignored = cls.copy()
    ignored[rng.random(SAMPLES) < 0.3] = -100
    ignored[8:16] = -100  # a whole batch without a label
    seg = rng.choice(4, (SAMPLES, 3), p=[0.6, 0.2, 0.1, 0.1]).astype(np.int64)
    seg[rng.random((SAMPLES, 3)) < 0.2] = -100
    return {"x": rng.standard_normal((SAMPLES, 6)).astype(np.float32), "cls_label": cls,
            "cls_some": ignored, "seg_labels": seg,
            "reg_target": rng.standard_normal((SAMPLES, 2)).astype(np.float32),
            "bits": (rng.random((SAMPLES, 2)) < [0.2, 0.7]).astype(np.float32)}


def model(path):
    gemm = lambda x, w, b, y: helper.make_node("Gemm", [x, w] + ([b] if b else []), [y], y + "_fc", transB=1)
    nodes = [gemm("x", "w0", "b0", "h0"), helper.make_node("Tanh", ["h0"], ["h"]),
             gemm("h", "w_cls", "b_cls", "cls"), gemm("h", "w_reg", "b_reg", "reg"),
             gemm("h", "w_seg", "b_seg", "seg_flat"),
             helper.make_node("Reshape", ["seg_flat", "seg_shape"], ["seg"]),
             helper.make_node("Sigmoid", ["reg"], ["prob"]), gemm("h", "w_aux", "", "aux")]
    f = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    outputs = [f("cls", ["n", 5]), f("reg", ["n", 2]), f("seg", ["n", 4, 3]), f("prob", ["n", 2]), f("aux", ["n", 3])]
    inits = [numpy_helper.from_array(v, k) for k, v in PARAMS.items()]
    inits.append(numpy_helper.from_array(np.array([-1, 4, 3], np.int64), "seg_shape"))
    m = helper.make_model(helper.make_graph(nodes, "heads", [f("x", ["n", 6])], outputs, inits),
                          opset_imports=[helper.make_opsetid("", 17)])
    m.ir_version = 8
    onnx.checker.check_model(m)
    onnx.save(m, path)


def forward(p, x):
    h = torch.tanh(F.linear(x, p["w0"], p["b0"]))
    reg = F.linear(h, p["w_reg"], p["b_reg"])
    return {"cls": F.linear(h, p["w_cls"], p["b_cls"]), "reg": reg, "prob": torch.sigmoid(reg),
            "seg": F.linear(h, p["w_seg"], p["b_seg"]).reshape(-1, 4, 3)}


def nothing_is_zero(loss):
    """A batch without a label: 0/0 in PyTorch, loss 0 and no gradient here."""
    return torch.where(torch.isnan(loss.detach()), torch.zeros_like(loss.detach()), 1) * torch.nan_to_num(loss)


def balanced(labels, classes):
    count = np.bincount(labels[labels >= 0], minlength=classes)
    return torch.tensor(count.sum() / (classes * count))


def cases(d):
    """name, flags, function of outputs and batch -> [losses], factors"""
    w = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.25], dtype=torch.float64)
    ws = torch.tensor([0.2, 1.0, 1.5, 4.0], dtype=torch.float64)
    bits = torch.tensor(d["bits"], dtype=torch.float64)
    positive = (1 - bits).sum(0) / bits.sum(0)
    W, WS = "0.5,1,2,3,0.25", "0.2,1,1.5,4"
    return [
        ("weights", ["--loss", "cls:cross_entropy(cls_label)", "--class-weights", W],
         [("cls", lambda o, b: F.cross_entropy(o["cls"], b["cls_label"], weight=w))], [1]),
        ("weights_ignore_smooth",
         ["--loss", "cls:cross_entropy(cls_some)", "--class-weights", W, "--label-smoothing", "0.15"],
         [("cls", lambda o, b: F.cross_entropy(o["cls"], b["cls_some"], weight=w, label_smoothing=0.15))], [1]),
        ("ignore_smooth", ["--loss", "cls:cross_entropy(cls_some)", "--label-smoothing", "0.15"],
         [("cls", lambda o, b: F.cross_entropy(o["cls"], b["cls_some"], label_smoothing=0.15))], [1]),
        ("auto", ["--loss", "cross_entropy", "--output", "cls", "--class-weights", "auto"],
         [("cls", lambda o, b: F.cross_entropy(o["cls"], b["cls_label"], weight=balanced(d["cls_label"], 5)))], [1]),
        ("nll", ["--loss", "cls:nll(cls_some)", "--class-weights", W],
         [("cls", lambda o, b: F.nll_loss(o["cls"], b["cls_some"], weight=w))], [1]),
        ("seg", ["--loss", "seg:cross_entropy", "--class-weights", WS, "--label-smoothing", "0.1"],
         [("seg", lambda o, b: F.cross_entropy(o["seg"], b["seg_labels"], weight=ws, label_smoothing=0.1))], [1]),
        ("positives", ["--loss", "reg:bce_with_logits(bits)", "--class-weights", "3,0.5"],
         [("reg", lambda o, b: F.binary_cross_entropy_with_logits(
             o["reg"], b["bits"], pos_weight=torch.tensor([3, 0.5], dtype=torch.float64)))], [1]),
        ("positives_auto", ["--loss", "prob:bce(bits)", "--class-weights", "auto"],
         [("prob", lambda o, b: F.binary_cross_entropy_with_logits(o["reg"], b["bits"], pos_weight=positive))], [1]),
        ("two", ["--loss", "cls:cross_entropy*0.3, reg:mse*0.7"],
         [("cls", lambda o, b: F.cross_entropy(o["cls"], b["cls_label"])),
          ("reg", lambda o, b: F.mse_loss(o["reg"], b["reg_target"]))], [0.3, 0.7]),
        ("three", ["--loss", "cls:cross_entropy(cls_some)*0.3,reg:mse,seg:cross_entropy*2",
                   "--class-weights", f"cls:{W}; seg:{WS}"],
         [("cls", lambda o, b: F.cross_entropy(o["cls"], b["cls_some"], weight=w)),
          ("reg", lambda o, b: F.mse_loss(o["reg"], b["reg_target"])),
          ("seg", lambda o, b: F.cross_entropy(o["seg"], b["seg_labels"], weight=ws))], [0.3, 1, 2]),
    ]


def train(d, losses, factors):
    t = {k: torch.tensor(v, dtype=torch.float64 if v.dtype == np.float32 else torch.int64) for k, v in d.items()}
    p = {k: torch.tensor(v, dtype=torch.float64, requires_grad=k != "w_aux") for k, v in PARAMS.items()}
    out = {"loss": [], "losses": []}

    def evaluate():  # over all samples at once
        with torch.no_grad():
            o = forward(p, t["x"])
            return [float(nothing_is_zero(f(o, t))) for _, f in losses]

    optimizer = torch.optim.SGD([v for k, v in p.items() if k != "w_aux"], lr=LR)
    for step in range(STEPS):
        at = (step * BATCH) % SAMPLES
        b = {k: v[at:at + BATCH] for k, v in t.items()}
        o = forward(p, b["x"])
        parts = [nothing_is_zero(f(o, b)) for _, f in losses]
        total = sum(c * x for c, x in zip(factors, parts))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        out["loss"].append(float(total))
        out["losses"].append([float(x) for x in parts])
    out["eval"] = evaluate()
    out["norms"] = {k: float(torch.linalg.vector_norm(v.detach() - torch.tensor(PARAMS[k]).double()))
                    for k, v in p.items()}
    return out


def main():
    torch.set_num_threads(2)
    d = data()
    model(os.path.join(HERE, "heads.onnx"))
    np.savez(os.path.join(HERE, "heads.npz"), **d)
    result = []
    for name, flags, losses, factors in cases(d):
        result.append({"name": name, "flags": flags, "outputs": [o for o, _ in losses], "factors": factors,
                       **train(d, losses, factors)})
    with open(os.path.join(HERE, "heads.json"), "w") as f:
        json.dump({"batch": BATCH, "steps": STEPS, "lr": LR, "torch": torch.__version__, "cases": result}, f, indent=1)


if __name__ == "__main__":
    main()
