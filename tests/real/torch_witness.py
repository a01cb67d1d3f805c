#!/usr/bin/env python3
"""Writes expected.json: what PyTorch's autograd gives for the real models, in double precision.

  python torch_witness.py [--models DIR] [--only CASE,CASE]     needs a Python with torch and onnx

Run by hand; real_models.py compares. The evaluator below runs ONNX nodes with torch functions, written
from the ONNX specification: only what these models use, batch norm with batch statistics, LSTM by its
formula. Kept per case: the loss, and per float tensor (rank 1 or more) of the file that a gradient reaches its L2 norm
and two projections on fixed random directions (cases.py). Nothing of ortrain is used here.
"""
import argparse
import json
import os
import re
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

import cases

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {onnx.TensorProto.FLOAT: torch.float64, onnx.TensorProto.DOUBLE: torch.float64,
          onnx.TensorProto.INT64: torch.int64, onnx.TensorProto.INT32: torch.int32,
          onnx.TensorProto.BOOL: torch.bool}


def tensor(a):
    a = np.array(a)
    return torch.from_numpy(a.astype(np.float64) if a.dtype == np.float32 else a)


class Evaluator:
    """Runs a graph; float tensors of the file become leaves that collect gradients."""

    def __init__(self, model, dropout):
        self.model, self.dropout = model, dropout
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.leaves = {}

    def leaf(self, name, value):
        if value.dtype == torch.float64 and value.dim() and name not in self.leaves:  # no plain numbers
            self.leaves[name] = value.requires_grad_()
        return self.leaves.get(name, value)

    def graph(self, graph, values):
        for t in graph.initializer:
            values[t.name] = self.leaf(t.name, tensor(numpy_helper.to_array(t)))
        for node in graph.node:
            x = [values[i] if i else None for i in node.input]
            a = {i.name: helper.get_attribute_value(i) for i in node.attribute}
            a = {k: v.decode() if isinstance(v, bytes) else v for k, v in a.items()}
            if node.op_type == "If":
                inner = dict(values)
                branch = a["then_branch" if bool(x[0]) else "else_branch"]
                self.graph(branch, inner)
                y = [inner[o.name] for o in branch.output]
            else:
                y = getattr(self, node.op_type)(*x, **{k: v for k, v in a.items()})
            if node.op_type in ("Constant", "ConstantOfShape"):
                y = self.leaf(node.output[0], y)
            for name, value in zip(node.output, y if isinstance(y, (list, tuple)) else [y]):
                values[name] = value
        return values

    # -- constants, types, shapes
    def Constant(self, value=None, value_int=None, value_ints=None, value_float=None):
        if value is not None:
            return tensor(numpy_helper.to_array(value))
        if value_float is not None:
            return torch.tensor(np.float64(np.float32(value_float)))
        return torch.tensor(value_int if value_int is not None else value_ints, dtype=torch.int64)

    def ConstantOfShape(self, shape, value=None):
        v = tensor(numpy_helper.to_array(value)) if value is not None else torch.zeros(1).double()
        return v.reshape(()).expand(shape.tolist()).clone()

    def Cast(self, x, to):
        return x.to(DTYPES[to])

    def Identity(self, x): return x
    def Shape(self, x): return torch.tensor(x.shape, dtype=torch.int64)
    def Size(self, x): return torch.tensor(x.numel(), dtype=torch.int64)
    def Transpose(self, x, perm=None): return x.permute(perm or list(range(x.dim()))[::-1])
    def Flatten(self, x, axis=1): return x.reshape(int(np.prod(x.shape[:axis])), -1)
    def Concat(self, *xs, axis): return torch.cat(xs, axis)
    def Expand(self, x, shape): return x * torch.ones(shape.tolist(), dtype=x.dtype)
    def Where(self, c, a, b): return torch.where(c, a, b)

    def Reshape(self, x, shape, allowzero=0):
        return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())])

    def Unsqueeze(self, x, axes_in=None, axes=None):
        axes = axes if axes is not None else axes_in.reshape(-1).tolist()
        rank = x.dim() + len(axes)
        for axis in sorted(a % rank for a in axes):
            x = x.unsqueeze(axis)
        return x

    def Squeeze(self, x, axes_in=None, axes=None):
        axes = axes if axes is not None else None if axes_in is None else axes_in.reshape(-1).tolist()
        return x.squeeze() if axes is None else x.squeeze(tuple(axes))

    def Gather(self, x, index, axis=0):
        picked = torch.index_select(x, axis, index.reshape(-1) % x.shape[axis])
        return picked.reshape(x.shape[:axis] + index.shape + x.shape[axis + 1:])

    def Slice(self, x, starts, ends, axes=None, steps=None):
        axes = axes.tolist() if axes is not None else range(len(starts))
        steps = steps.tolist() if steps is not None else [1] * len(starts)
        for s, e, axis, step in zip(starts.tolist(), ends.tolist(), axes, steps):
            keep = range(x.shape[axis])[slice(s, e if step > 0 or e > -x.shape[axis] - 1 else None, step)]
            x = torch.index_select(x, axis, torch.tensor(list(keep), dtype=torch.int64))
        return x

    def Pad(self, x, pads, value=None, mode="constant"):
        pads, rank = pads.tolist(), x.dim()
        if mode == "constant":
            order = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
            return F.pad(x, order, value=float(value) if value is not None else 0.0)
        assert mode == "reflect"
        for axis in range(rank):
            n, period = x.shape[axis], max(1, 2 * (x.shape[axis] - 1))
            if pads[axis] or pads[axis + rank]:
                at = [abs(i) % period for i in range(-pads[axis], n + pads[axis + rank])]
                at = [period - i if i >= n else i for i in at]
                x = torch.index_select(x, axis, torch.tensor(at))
        return x

    def Resize(self, x, roi, scales, sizes=None, mode="nearest", coordinate_transformation_mode="half_pixel",
               nearest_mode="round_prefer_floor"):
        assert (mode, coordinate_transformation_mode, nearest_mode) == ("nearest", "asymmetric", "floor")
        for axis, scale in enumerate(scales.tolist()):
            if scale != 1:
                at = torch.floor(torch.arange(int(x.shape[axis] * scale)) / scale).long()
                x = torch.index_select(x, axis, at)
        return x

    # -- arithmetic
    def Add(self, a, b): return a + b
    def Sub(self, a, b): return a - b
    def Mul(self, a, b): return a * b
    def Div(self, a, b): return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")
    def Pow(self, a, b): return torch.pow(a, b)
    def Neg(self, x): return -x
    def Exp(self, x): return torch.exp(x)
    def Log(self, x): return torch.log(x)
    def Sqrt(self, x): return torch.sqrt(x)
    def Reciprocal(self, x): return 1 / x
    def Tanh(self, x): return torch.tanh(x)
    def Sigmoid(self, x): return torch.sigmoid(x)
    def Relu(self, x): return torch.relu(x)
    def Equal(self, a, b): return a == b
    def Not(self, x): return ~x
    def MatMul(self, a, b): return a @ b

    def Sum(self, *xs):
        return sum(xs[1:], xs[0])

    def Max(self, *xs):
        y = xs[0]
        for x in xs[1:]:
            y = torch.maximum(y, x)
        return y

    def Clip(self, x, low=None, high=None, min=None, max=None):
        return torch.clamp(x, low if low is not None else min, high if high is not None else max)

    def HardSigmoid(self, x, alpha=0.2, beta=0.5):
        return torch.clamp(alpha * x + beta, 0, 1)

    def Scaler(self, x, offset, scale):
        return (x - torch.tensor(offset, dtype=torch.float64)) * torch.tensor(scale, dtype=torch.float64)

    def Gemm(self, a, b, c=None, alpha=1.0, beta=1.0, transA=0, transB=0):
        y = alpha * ((a.T if transA else a) @ (b.T if transB else b))
        return y if c is None else y + beta * c

    def Dropout(self, x, ratio=0.5):
        assert not self.dropout
        return x

    def Softmax(self, x, axis=None):
        if self.opset >= 13:
            return torch.softmax(x, -1 if axis is None else axis)
        axis = (1 if axis is None else axis) % x.dim()  # before opset 13: over all axes from this one
        return torch.softmax(x.flatten(axis), -1).reshape(x.shape)

    # -- reductions
    def reduced(self, f, x, axes_in, axes, keepdims):
        axes = axes if axes is not None else axes_in.tolist() if axes_in is not None else list(range(x.dim()))
        return f(x, tuple(axes), bool(keepdims))

    def ReduceSum(self, x, axes_in=None, axes=None, keepdims=1, noop_with_empty_axes=0):
        return self.reduced(torch.sum, x, axes_in, axes, keepdims)

    def ReduceMean(self, x, axes_in=None, axes=None, keepdims=1):
        return self.reduced(torch.mean, x, axes_in, axes, keepdims)

    def ReduceMax(self, x, axes_in=None, axes=None, keepdims=1):
        return self.reduced(torch.amax, x, axes_in, axes, keepdims)

    def ReduceMin(self, x, axes_in=None, axes=None, keepdims=1):
        return self.reduced(torch.amin, x, axes_in, axes, keepdims)

    # -- convolution and pooling
    def padded(self, x, pads, value=0.0):
        """x with ONNX pads of its spatial axes."""
        k = x.dim() - 2
        return F.pad(x, [p for i in reversed(range(k)) for p in (pads[i], pads[i + k])], value=value)

    def Conv(self, x, w, b=None, kernel_shape=None, strides=None, pads=None, dilations=None, group=1,
             auto_pad="NOTSET"):
        k = x.dim() - 2
        strides, dilations = strides or [1] * k, dilations or [1] * k
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = [max(0, (-(-n // s) - 1) * s + (m - 1) * d + 1 - n)
                     for n, s, m, d in zip(x.shape[2:], strides, w.shape[2:], dilations)]
            small, large = [t // 2 for t in total], [t - t // 2 for t in total]
            pads = small + large if auto_pad == "SAME_UPPER" else large + small
        x = self.padded(x, pads or [0] * 2 * k)
        return (F.conv1d, F.conv2d)[k - 1](x, w, b, strides, 0, dilations, group)

    def ConvTranspose(self, x, w, b=None, kernel_shape=None, strides=None, pads=None, dilations=None, group=1):
        assert not any(pads or [0])
        return F.conv_transpose2d(x, w, b, strides or 1, 0, 0, group, dilations or 1)

    def MaxPool(self, x, kernel_shape, strides=None, pads=None, ceil_mode=0):
        x = self.padded(x, pads or [0] * 4, -float("inf"))
        return F.max_pool2d(x, kernel_shape, strides or 1, ceil_mode=bool(ceil_mode))

    def AveragePool(self, x, kernel_shape, strides=None, pads=None, ceil_mode=0, count_include_pad=0):
        assert not any(pads or [0])
        return F.avg_pool2d(x, kernel_shape, strides or 1, ceil_mode=bool(ceil_mode))

    def GlobalAveragePool(self, x): return x.mean(tuple(range(2, x.dim())), keepdim=True)

    def GlobalMaxPool(self, x):
        y = x.flatten(2)
        return F.max_pool1d(y, y.shape[2]).reshape(x.shape[:2] + (1,) * (x.dim() - 2))

    def BatchNormalization(self, x, scale, bias, mean, var, epsilon=1e-5, momentum=0.9, spatial=1,
                           training_mode=0):
        return F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)

    def LSTM(self, x, w, r, b=None, lens=None, h0=None, c0=None, hidden_size=0, direction="forward"):
        outputs, hs, cs = [], [], []
        for d in range(w.shape[0]):
            steps = range(x.shape[0])
            if direction == "reverse" or d == 1:
                steps = reversed(steps)
            zero = torch.zeros(x.shape[1], hidden_size, dtype=x.dtype)
            h, c = h0[d] if h0 is not None else zero, c0[d] if c0 is not None else zero
            y = [None] * x.shape[0]
            for t in steps:
                gates = x[t] @ w[d].T + h @ r[d].T
                if b is not None:
                    gates = gates + b[d][:4 * hidden_size] + b[d][4 * hidden_size:]
                i, o, f, g = gates.chunk(4, 1)  # ONNX's order
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                y[t] = h
            outputs.append(torch.stack(y))
            hs.append(h)
            cs.append(c)
        return torch.stack(outputs, 1), torch.stack(hs), torch.stack(cs)


def logits_of(graph, output, values):
    """What the Sigmoid reads that makes the output (directly or under another shape), or None."""
    maker = {o: n for n in graph.node for o in n.output}
    while output in maker and maker[output].op_type in ("Reshape", "Squeeze", "Unsqueeze", "Identity"):
        output = maker[output].input[0]
    return values[maker[output].input[0]] if maker[output].op_type == "Sigmoid" else None


def loss_of(case, y, logits, labels):
    """The case's loss of a model output, which is a probability (for mse: a number)."""
    if case.loss == "mse":
        return F.mse_loss(y, labels)
    if case.loss == "bce" and logits is not None:  # log(1 - y) has no digits where y rounds to 1
        return F.binary_cross_entropy_with_logits(logits.reshape(y.shape), labels.reshape(y.shape))
    if case.loss == "bce":
        return F.binary_cross_entropy(y, labels.reshape(y.shape))
    if case.loss == "cross_entropy":
        rank = y.dim()
        if rank == 3:
            y = y.transpose(1, 2)
        return F.nll_loss(torch.log(y), labels)
    if case.loss == "dice":
        p, t = y.flatten(1), labels.reshape(y.shape).flatten(1)
        return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()
    if case.loss == "ctc":  # y [B,T,C]
        lengths = (labels > 0).sum(1)
        return F.ctc_loss(torch.log(y).transpose(0, 1), labels[labels > 0],
                          torch.full((y.shape[0],), y.shape[1]), lengths, blank=0)
    raise ValueError(case.loss)


def expect(name, folder):
    case = cases.CASES[name]
    model = onnx.load(os.path.join(folder, case.model + ".onnx"))
    data = {k: tensor(v) for k, v in cases.data_of(name).items()}
    labels = data.pop("labels")
    evaluator = Evaluator(model, dropout=not case.no_dropout)
    values = evaluator.graph(model.graph, data)
    output = case.output or model.graph.output[0].name
    loss = loss_of(case, values[output], logits_of(model.graph, output, values), labels)
    loss.backward()
    grads = {k: v for k, v in evaluator.leaves.items()
             if v.grad is not None and not (case.freeze and re.search(case.freeze, k))}
    digits = lambda v: float(f"{v:.12g}")
    return {"loss": digits(loss.item()),
            "gradients": {k: [list(v.shape)] + [digits(s) for s in cases.summary(k, v.grad.numpy())]
                          for k, v in sorted(grads.items())}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/ortrain/real-models"))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    path = os.path.join(HERE, "expected.json")
    expected = {}
    if os.path.exists(path):
        with open(path) as f:
            expected = json.load(f)
    for name in args.only.split(",") if args.only else cases.CASES:
        expected[name] = expect(name, args.models)
        print(f"{name}: loss {expected[name]['loss']}, {len(expected[name]['gradients'])} gradients", flush=True)
    expected = {k: expected[k] for k in cases.CASES if k in expected}
    with open(path, "w") as f:  # one line per tensor
        rows = []
        for name, e in expected.items():
            inner = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in e["gradients"].items())
            rows.append(f' {json.dumps(name)}: {{"loss": {e["loss"]!r}, "gradients": {{\n{inner}}}}}')
        f.write("{\n" + ",\n".join(rows) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
