#!/usr/bin/env python3
"""Writes NAME.npz for some golden cases: loss and gradients of the first batch under PyTorch's autocast; and
autocast.json for all of CHECKED: where 200 steps of PyTorch's own training end.

  python make_precision.py [--losses | --distances] [CASE...]     needs torch 2.15, no GPU; --losses: autocast.json
only, --distances: distances.json only (gradients of BATCHES batches against float64)

Arrays: "bf16/loss", "bf16/grad/P", "fp16/...", and "fp32/..." without autocast; P is PyTorch's name, which is
the initializer's of model.onnx in these cases. The batch is the first of train.npz; fp16 is not scaled.
Rows of an embedding whose gradient is zero in all of them are stored as they are: npz compresses them.

autocast.json, per case: the mean loss of the last 20 of 200 steps (the data repeats) in fp32, under bf16 and under
fp16 autocast (GradScaler), and in fp32 again from STARTS starting points in which every weight is moved by at most
one unit in the last place: what the end of such a run is worth. "moved_bf16": under bf16 autocast from BF16_STARTS such
starting points, for the SCATTERED cases, where the roundings alone decide more than the 2 % a run may be off.
"""
import copy, json, os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import numpy as np
import torch

import golden_train
import make_golden

CASES = ("mlp_digits", "resnet_tiny", "gpt_tiny")
CHECKED = ("mlp_digits", "regression_multi", "cnn_digits", "autoencoder_conv", "resnet_tiny", "lstm_tags", "bert_tiny",
           "gpt_tiny")
HERE = os.path.dirname(os.path.abspath(__file__))
NO_FP16 = ("lstm_tags",)  # oneDNN has no fp16 LSTM for the CPU: PyTorch raises
LONG, LAST, STARTS = 200, 20, 3
SCATTERED, BF16_STARTS = ("lstm_tags",), 8
DISTANT, BATCHES, SCALE = ("mlp_digits", "resnet_tiny", "bert_tiny", "gpt_tiny"), 6, 1024


def gradients(case, model, data, dtype):
    model = copy.deepcopy(model).float().train()
    batch = golden_train.batch_at(case, data, 0)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        out = model(*[batch[n] for n in case.inputs])
    loss = golden_train.loss_of(case, out.float(), batch)
    loss.backward()
    return float(loss.detach()), {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def end_of_run(case, model, data, dtype=None, moved=None):
    model = copy.deepcopy(model).float().train()
    if moved is not None:
        g = torch.Generator().manual_seed(moved)
        with torch.no_grad():
            for p in model.parameters():
                side = torch.randint(-1, 2, p.shape, generator=g).float()
                p.copy_(torch.where(side == 0, p, torch.nextafter(p, 1e9 * side)))
    optimizer = golden_train.make_optimizer(model.parameters(), case.optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    losses = []
    for step in range(LONG):
        batch = golden_train.batch_at(case, data, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            out = model(*[batch[n] for n in case.inputs])
        out = out[0] if isinstance(out, (tuple, list)) else out
        loss = golden_train.loss_of(case, out.float(), batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-LAST:]))


def write_ends(names):
    path, ends = os.path.join(HERE, "autocast.json"), {}
    if os.path.exists(path):
        with open(path) as f: ends = json.load(f)
    for case in make_golden.CASES:
        if case.name not in names:
            continue
        model, data = start_of(case)
        ends[case.name] = {"fp32": end_of_run(case, model, data),
                           "bf16": end_of_run(case, model, data, torch.bfloat16),
                           "fp16": None if case.name in NO_FP16 else end_of_run(case, model, data, torch.float16),
                           "moved": [end_of_run(case, model, data, moved=i) for i in range(STARTS)]}
        if case.name in SCATTERED:
            ends[case.name]["moved_bf16"] = [end_of_run(case, model, data, torch.bfloat16, moved=i) for i in range(BF16_STARTS)]
        print(case.name, ends[case.name], flush=True)
        with open(path, "w") as f: f.write(json.dumps(ends, indent=1) + "\n")


def write_distances(names):
    """How far autocast's gradient (fp16: of the loss times SCALE) is from the float64 one, for each of BATCHES batches."""
    path, found = os.path.join(HERE, "distances.json"), {}
    if os.path.exists(path):
        with open(path) as f: found = json.load(f)
    for case in make_golden.CASES:
        if case.name not in names:
            continue
        model, data = start_of(case)
        found[case.name] = {"bf16": [], "fp16": []}
        for step in range(BATCHES):
            batch = golden_train.batch_at(case, data, step)

            def gradient(dtype, scale):
                m = copy.deepcopy(model).train()
                exact = dtype == torch.float64
                m = m.double() if exact else m.float()
                b = golden_train.cast(batch, dtype) if exact else batch
                with golden_train.precision(dtype), torch.autocast("cpu", dtype=torch.bfloat16 if exact else dtype, enabled=not exact):
                    out = m(*[b[n] for n in case.inputs])
                out = out[0] if isinstance(out, (tuple, list)) else out
                (golden_train.loss_of(case, out if exact else out.float(), b) * scale).backward()
                return torch.cat([p.grad.double().flatten() / scale for p in m.parameters() if p.grad is not None])

            exact = gradient(torch.float64, 1)
            for name, dtype, scale in (("bf16", torch.bfloat16, 1), ("fp16", torch.float16, SCALE)):
                found[case.name][name].append(float((gradient(dtype, scale) - exact).norm() / exact.norm()))
        print(case.name, found[case.name], flush=True)
        with open(path, "w") as f: f.write(json.dumps(found, indent=1) + "\n")


def start_of(case):
    model = case.build()
    data = dict(np.load(os.path.join(os.path.dirname(HERE), case.name, "train.npz")))
    if case.jiggle:
        golden_train.jiggle(model)
    return model, data


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    if "--losses" in sys.argv:
        return write_ends(names or CHECKED)
    if "--distances" in sys.argv:
        return write_distances(names or DISTANT)
    for case in make_golden.CASES:
        if case.name not in (names or CASES):
            continue
        (model, data), arrays = start_of(case), {}
        for name, dtype in (("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
            loss, grads = gradients(case, model, data, dtype)
            arrays[name + "/loss"] = np.float32(loss)
            arrays.update({f"{name}/grad/{k}": v.astype(np.float32) for k, v in grads.items()})
            print(case.name, name, loss)
        np.savez_compressed(os.path.join(HERE, case.name + ".npz"), **arrays)


if __name__ == "__main__":
    main()
