#!/usr/bin/env python3
"""Writes models/digits/{model.onnx, train.npz, test.npz}; shows how a model comes from PyTorch.

  python3 models/export_digits.py [OUT_DIR]     needs torch, onnx, onnxscript, scikit-learn

The images are scikit-learn's 1797 real 8x8 digits, scaled to 0..1, with a fixed stratified split.
Arrays are named like the graph's inputs, plus `labels`. The network has PyTorch's own initial values
(seed 0); optimize=False keeps every parameter an initializer under its own name (the exporter's
optimizer would fold BatchNorm into the convolutions). The files here were written by the same code,
as part of tests/golden/make_golden.py, with PyTorch 2.15.
"""
import os
import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.pool, self.drop = nn.MaxPool2d(2), nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, x):  # [batch, 1, 8, 8] -> logits [batch, 10]
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        x = self.pool(torch.relu(self.bn2(self.conv2(x))))
        return self.fc2(self.drop(torch.relu(self.fc1(torch.flatten(x, 1)))))


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "digits")
    os.makedirs(out, exist_ok=True)
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.images[order] / 16.0).astype(np.float32)[:, None]
    labels = digits.target[order].astype(np.int64)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, random_state=0,
                                   stratify=labels)
    np.savez(os.path.join(out, "train.npz"), x=images[train], labels=labels[train])
    np.savez(os.path.join(out, "test.npz"), x=images[test], labels=labels[test])

    torch.manual_seed(0)
    torch.onnx.export(DigitsNet().eval(), (torch.from_numpy(images[:4]),),
                      os.path.join(out, "model.onnx"), dynamo=True, optimize=False,
                      external_data=False, input_names=["x"], output_names=["logits"],
                      dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))


if __name__ == "__main__":
    main()
