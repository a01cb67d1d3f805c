#!/usr/bin/env python3
"""Writes models/gpt_char/{model.onnx, train.npz, test.npz}: a character GPT with PyTorch's own
initial values, and the text of gpt_char/make_text.py cut into windows of 64 characters.

  python3 models/export_gpt_char.py [OUT_DIR] [--train]     needs torch, onnx, onnxscript
  --train also trains it in PyTorch with the settings of model.toml and prints the test loss

Arrays: `idx` [windows, 64] token numbers, `labels` [windows, 64] the same shifted by one. The last
tenth of the text is test.npz. The characters, in the order of their numbers, stand in the model's
metadata under `characters`.
"""
import math
import os
import subprocess
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, HEADS, WIDTH, BLOCK = 3, 4, 128, 64


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):  # [B, T, C]
        b, t, c = x.shape
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in self.qkv(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GptChar(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, idx):  # [batch, 64] -> logits [batch, 64, characters]
        x = self.token(idx) + self.position(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def windows(numbers):
    count = (len(numbers) - 1) // BLOCK
    return {"idx": numbers[:count * BLOCK].reshape(count, BLOCK),
            "labels": numbers[1:count * BLOCK + 1].reshape(count, BLOCK)}


def train(model, data, test):
    """The settings of model.toml: AdamW, warm-up, cosine to zero, clipping."""
    lr, epochs, batch, warmup = 3e-3, 6, 16, 50
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.1)
    idx, labels = torch.from_numpy(data["idx"]), torch.from_numpy(data["labels"])
    per_epoch = math.ceil(len(idx) / batch)
    steps, step = epochs * per_epoch, 0
    for epoch in range(epochs):
        for rows in torch.randperm(len(idx)).split(batch):
            rate = (step + 1) / warmup if step < warmup else (
                0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))
            for group in optimizer.param_groups:
                group["lr"] = lr * rate
            optimizer.zero_grad()
            loss = F.cross_entropy(model(idx[rows]).flatten(0, 1), labels[rows].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
        with torch.no_grad():
            logits = model(torch.from_numpy(test["idx"])).flatten(0, 1)
            held_out = F.cross_entropy(logits, torch.from_numpy(test["labels"]).flatten())
        print(f"epoch {epoch + 1}: training loss {loss.item():.3f}, test loss {held_out:.3f}", flush=True)


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    out = names[0] if names else os.path.join(HERE, "gpt_char")
    os.makedirs(out, exist_ok=True)
    text = subprocess.run([sys.executable, os.path.join(HERE, "gpt_char", "make_text.py")],
                          check=True, capture_output=True, text=True).stdout
    characters = sorted(set(text))
    numbers = np.array([characters.index(c) for c in text], dtype=np.int64)
    cut = len(numbers) * 9 // 10
    data, test = windows(numbers[:cut]), windows(numbers[cut:])
    np.savez(os.path.join(out, "train.npz"), **data)
    np.savez(os.path.join(out, "test.npz"), **test)

    torch.manual_seed(0)
    model = GptChar(len(characters))
    path = os.path.join(out, "model.onnx")
    torch.onnx.export(model.eval(), (torch.from_numpy(data["idx"][:4]),), path, dynamo=True,
                      optimize=False, external_data=False, input_names=["idx"],
                      output_names=["logits"],
                      dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    exported = onnx.load(path)
    for node in exported.graph.node:  # stack traces: paths of the exporting machine
        del node.metadata_props[:]
    exported.metadata_props.add(key="characters", value="".join(characters))
    onnx.save(exported, path)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(characters)} characters, "
          f"{len(data['idx'])} + {len(test['idx'])} windows")
    if "--train" in sys.argv:
        train(model.train(), data, test)


if __name__ == "__main__":
    main()
