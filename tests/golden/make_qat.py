#!/usr/bin/env python3
"""Writes the golden case qat_mlp: a quantised (QDQ) model, and what PyTorch's fake quantization gives
when it trains the same function for 20 steps in float64.

  python3 make_qat.py        needs torch, onnx, numpy; writes the folder qat_mlp

Activations u8 per tensor, weights i8: per channel in the first layer, per tensor in the second. The
scales stay as they are. A float32 run can round a value that lies on a tie to the other side, so the
seed is one where no value of the whole run comes near a tie (MARGIN of a step).
"""
import json
import os

import numpy as np
import onnx
import torch
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "qat_mlp")
BATCH, STEPS, IN, HIDDEN, CLASSES = 8, 20, 6, 10, 4
LR, MOMENTUM, MARGIN = 0.1, 0.9, 3e-5


class Run:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.x = rng.uniform(-1, 1, (BATCH * STEPS, IN)).astype(np.float32)
        self.labels = (self.x[:, :CLASSES] + 0.3 * self.x[:, 2:]).argmax(1).astype(np.int64)
        self.initial = {"w1": rng.standard_normal((HIDDEN, IN)).astype(np.float32),
                        "b1": rng.standard_normal(HIDDEN).astype(np.float32) * np.float32(0.1),
                        "w2": rng.standard_normal((CLASSES, HIDDEN)).astype(np.float32) * np.float32(0.5),
                        "b2": rng.standard_normal(CLASSES).astype(np.float32) * np.float32(0.1)}
        f32 = np.float32
        self.scales = {  # a little too small, so that clipping happens
            "x": (f32(0.0071), np.uint8(128)),
            "w1": (np.abs(self.initial["w1"]).max(1).astype(f32) * f32(0.8 / 127), np.zeros(HIDDEN, np.int8)),
            "r": (f32(0.009), np.uint8(0)),
            "w2": (f32(np.abs(self.initial["w2"]).max() * f32(0.9 / 127)), np.int8(0))}
        self.margin, self.clipped = 1.0, 0

    def fake(self, name, v):
        scale, zero = (torch.tensor(a) for a in self.scales[name])
        low, high = (0, 255) if name in "xr" else (-128, 127)
        steps = v.detach() / (scale.double() if scale.ndim == 0 else scale.double()[:, None])
        inside = (steps.round() + zero.reshape(-1)[0] >= low) & (steps.round() + zero.reshape(-1)[0] <= high)
        self.clipped += int((~inside).sum())
        self.margin = min(self.margin, float((steps - steps.floor() - 0.5).abs().min()))
        # by hand in float64 (torch's operator computes in float32): straight-through with clipping
        s = scale.double() if scale.ndim == 0 else scale.double()[:, None]
        z = float(zero.reshape(-1)[0])
        y = ((steps.round() + z).clamp(low, high) - z) * s
        witness = (torch.fake_quantize_per_tensor_affine(v.detach().float(), float(scale), int(z), low, high)
                   if scale.ndim == 0 else torch.fake_quantize_per_channel_affine(
                       v.detach().float(), scale, zero.int(), 0, low, high))
        assert self.margin < MARGIN or torch.allclose(witness.double(), y, atol=1e-6), name
        return y + (v - v.detach()) * inside

    def train(self):
        p = {n: torch.tensor(w, dtype=torch.float64, requires_grad=True) for n, w in self.initial.items()}
        optimizer = torch.optim.SGD(p.values(), lr=LR, momentum=MOMENTUM)
        self.golden, losses = {}, []
        for step in range(STEPS):
            at = slice(step * BATCH, (step + 1) * BATCH)
            r = self.fake("x", torch.tensor(self.x[at], dtype=torch.float64)) @ self.fake("w1", p["w1"]).T
            r = self.fake("r", torch.relu(r + p["b1"]))
            loss = torch.nn.functional.cross_entropy(r @ self.fake("w2", p["w2"]).T + p["b2"],
                                                     torch.tensor(self.labels[at]))
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if step == 0:
                self.golden.update({"grad/" + n: p[n].grad.numpy().astype(np.float32) for n in p})
            optimizer.step()
        self.golden.update({"param_after/" + n: p[n].detach().numpy() for n in p})
        self.golden["loss"] = np.array(losses)
        return losses

    def model(self):
        nodes, inits = [], [numpy_helper.from_array(w, n) for n, w in self.initial.items()]

        def qdq(name, source, **attrs):
            scale, zero = self.scales[name]
            inits.extend([numpy_helper.from_array(np.asarray(scale), name + "_scale"),
                          numpy_helper.from_array(np.asarray(zero), name + "_zero")])
            rest = [name + "_scale", name + "_zero"]
            nodes.append(h.make_node("QuantizeLinear", [source] + rest, [name + "_q"], name + "_quantize", **attrs))
            nodes.append(h.make_node("DequantizeLinear", [name + "_q"] + rest, [name + "_dq"], name + "_dequantize", **attrs))

        qdq("x", "x")
        qdq("w1", "w1", axis=0)
        nodes.append(h.make_node("Gemm", ["x_dq", "w1_dq", "b1"], ["h"], "fc1", transB=1))
        nodes.append(h.make_node("Relu", ["h"], ["r"], "relu"))
        qdq("r", "r")
        qdq("w2", "w2")
        nodes.append(h.make_node("Gemm", ["r_dq", "w2_dq", "b2"], ["logits"], "fc2", transB=1))
        graph = h.make_graph(nodes, "qat_mlp", [h.make_tensor_value_info("x", T.FLOAT, ["batch", IN])],
                             [h.make_tensor_value_info("logits", T.FLOAT, ["batch", CLASSES])], inits)
        made = h.make_model(graph, opset_imports=[h.make_opsetid("", 19)], ir_version=9)
        onnx.checker.check_model(made)
        return made


def main():
    for seed in range(2000):
        run = Run(seed)
        losses = run.train()
        if run.margin > MARGIN and run.clipped > 50:
            break
    else:
        raise SystemExit("no seed without a value near a tie")
    os.makedirs(FOLDER, exist_ok=True)
    tolerances = {n: {"grad_check": "relative", "grad_rtol": 1e-4, "update_check": True, "update_rtol": 5e-4,
                      "update_norm": float(np.linalg.norm(run.golden["param_after/" + n] - w))}
                  for n, w in run.initial.items()}
    np.savez(os.path.join(FOLDER, "golden.npz"), **run.golden)
    np.savez(os.path.join(FOLDER, "train.npz"), x=run.x, labels=run.labels)
    onnx.save(run.model(), os.path.join(FOLDER, "model.onnx"))
    with open(os.path.join(FOLDER, "case.json"), "w", encoding="utf-8") as f:
        json.dump({
            "case": "qat_mlp",
            "description": "Quantised MLP (QuantizeLinear, DequantizeLinear pairs): straight-through gradients.",
            "golden_from": "model.onnx",
            "flags": ["model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--optimizer", "sgd",
                      "--lr", str(LR), "--momentum", str(MOMENTUM), "--batch-size", str(BATCH),
                      "--steps", str(STEPS), "--shuffle", "none", "--log", "run.jsonl"],
            "files": {"model.onnx": {"golden_applies": True}},
            "tolerances": {"loss_rtol": 1e-5, "per_tensor": tolerances},
            "seed": seed, "nearest_tie_in_steps": run.margin, "clipped_values": run.clipped}, f, indent=1)
    print(seed, run.margin, run.clipped, losses[0], losses[-1])


if __name__ == "__main__":
    main()
