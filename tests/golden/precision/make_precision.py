#!/usr/bin/env python3
"""Writes NAME.npz for some golden cases: loss and gradients of the first batch under PyTorch's autocast.

  python make_precision.py [CASE...]          needs torch 2.15, no GPU

Arrays: "bf16/loss", "bf16/grad/P", "fp16/...", and "fp32/..." without autocast; P is PyTorch's name, which is
the initializer's of model.onnx in these cases. The batch is the first of train.npz; fp16 is not scaled.
Rows of an embedding whose gradient is zero in all of them are stored as they are: npz compresses them.
"""
import copy, os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import numpy as np
import torch

import golden_train
import make_golden

CASES = ("mlp_digits", "resnet_tiny", "gpt_tiny")
HERE = os.path.dirname(os.path.abspath(__file__))


def gradients(case, model, data, dtype):
    model = copy.deepcopy(model).float().train()
    batch = golden_train.batch_at(case, data, 0)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        out = model(*[batch[n] for n in case.inputs])
    loss = golden_train.loss_of(case, out.float(), batch)
    loss.backward()
    return float(loss.detach()), {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def main():
    for case in make_golden.CASES:
        if case.name not in (sys.argv[1:] or CASES):
            continue
        model, arrays = case.build(), {}
        data = dict(np.load(os.path.join(os.path.dirname(HERE), case.name, "train.npz")))
        if case.jiggle:
            golden_train.jiggle(model)
        for name, dtype in (("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
            loss, grads = gradients(case, model, data, dtype)
            arrays[name + "/loss"] = np.float32(loss)
            arrays.update({f"{name}/grad/{k}": v.astype(np.float32) for k, v in grads.items()})
            print(case.name, name, loss)
        np.savez_compressed(os.path.join(HERE, case.name + ".npz"), **arrays)


if __name__ == "__main__":
    main()
