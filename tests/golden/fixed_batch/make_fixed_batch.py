#!/usr/bin/env python3
"""Models exported at a fixed batch by both of PyTorch's exporters, with what PyTorch computes at batch 5.

  python make_fixed_batch.py        (torch 2.15, onnx; writes beside itself)

NAME_bB_EXPORTER.onnx is the file. NAME.npz: inputs and labels of 5 samples, `logits` and `loss` in float64.
NAME_bB_EXPORTER.npz: `grad/INITIALIZER`, float64 gradients under the file's names and layouts, for every
parameter that the file holds (found by its contents). `refuse_*` must be refused: their samples meet.
"""
import os

import numpy as np
import onnx
import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES = 5


class Vit(nn.Module):
    """Class token expanded to the batch, positions, attention with views of (B, T, heads, size)."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.5)
        self.position = nn.Parameter(torch.randn(1, 5, 16) * 0.5)
        self.norm = nn.LayerNorm(16)
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        b = x.shape[0]
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(b, -1, -1), h], 1) + self.position
        q, k, v = self.qkv(self.norm(h)).view(b, -1, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
        h = h + self.out(a.transpose(1, 2).reshape(b, -1, 16))
        return self.head(h[:, 0])


class Encoder(nn.Module):
    """nn.MultiheadAttention with (T, B, C): views of (T, B * heads, size)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.attention = nn.MultiheadAttention(16, 4)
        self.feed, self.back, self.head = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 3)

    def forward(self, ids):
        h = self.table(ids) + torch.arange(ids.shape[1], device=ids.device)[None, :, None] * 0.1
        h = h.transpose(0, 1)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = h + self.back(torch.relu(self.feed(h)))
        return self.head(h.mean(0))


class Lstm(nn.Module):
    """Zero states of the batch's size."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Resized(nn.Module):
    """A size that names the batch (Resize), a flattened batch times time (Reshape)."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.row, self.head = nn.Linear(32, 6), nn.Linear(48, 3)

    def forward(self, x):
        h = F.interpolate(torch.relu(self.conv(x)), size=(8, 8), mode="nearest")
        b, c, r, s = h.shape
        h = torch.tanh(self.row(h.permute(0, 2, 1, 3).reshape(b * r, c * s)))
        return self.head(h.view(b, r * 6))


class Centred(nn.Module):
    """The mean over the batch: samples meet, at any batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x - x.mean(0, keepdim=True))


class First(nn.Module):
    """The first sample is taken out: nothing is left of the others."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x[0]).unsqueeze(0)


CASES = {"vit": (Vit, lambda n: torch.randn(n, 1, 8, 8)), "encoder": (Encoder, lambda n: torch.randint(0, 11, (n, 6))),
         "lstm": (Lstm, lambda n: torch.randn(n, 5, 4)), "resized": (Resized, lambda n: torch.randn(n, 2, 4, 4)),
         "refuse_centred": (Centred, lambda n: torch.randn(n, 4)), "refuse_first": (First, lambda n: torch.randn(n, 4))}


def export(model, x, path, exporter):
    if exporter == "dynamo":
        torch.onnx.export(model, (x,), path, dynamo=True, input_names=["x"], output_names=["logits"], external_data=False, verbose=False)
    else:
        torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["logits"])
    m = onnx.load(path)
    m.graph.ClearField("value_info")
    for n in m.graph.node:
        del n.metadata_props[:]
        n.doc_string = ""
    onnx.save(m, path)


def gradients(path, model):
    """Gradients under the names and layouts of the file's initializers."""
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.data_type == 1}
    out = {}
    for name, p in model.named_parameters():
        value, grad = p.detach().numpy(), p.grad.numpy()
        for key, array in held.items():
            if array.size < 2:
                continue
            if array.shape == value.shape and np.array_equal(array, value.astype(np.float32)):
                out["grad/" + key] = grad
            elif value.ndim == 2 and array.shape == value.T.shape and np.array_equal(array, value.T.astype(np.float32)):
                out["grad/" + key] = grad.T
    return out


def main():
    for name, (kind, draw) in CASES.items():
        torch.manual_seed(3)
        model = kind().eval()
        x, labels = draw(SAMPLES), torch.arange(SAMPLES) % 3
        files = []
        for batch in (1, 2):
            for exporter in ("dynamo", "ts"):
                if name.startswith("refuse") and (batch, exporter) not in ((1, "dynamo"), (2, "ts")):
                    continue
                path = os.path.join(HERE, f"{name}_b{batch}_{exporter}.onnx")
                export(model, draw(batch), path, exporter)
                files.append(path)
        if name.startswith("refuse"):
            np.savez(os.path.join(HERE, name + ".npz"), x=x.numpy(), labels=labels.numpy())
            continue
        model.double()
        logits = model(x.double() if x.is_floating_point() else x)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        np.savez(os.path.join(HERE, name + ".npz"), x=x.numpy(), labels=labels.numpy(), logits=logits.detach().numpy(), loss=loss.item())
        for path in files:
            grads = gradients(path, model)
            print(os.path.basename(path), sorted(grads))
            np.savez(path.replace(".onnx", ".npz"), **grads)


if __name__ == "__main__":
    main()
