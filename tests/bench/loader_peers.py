#!/usr/bin/env python3
"""Loader speed against PyTorch's DataLoader with torchvision, interleaved in one run.

  PYTHON_WITH_TORCH tests/bench/loader_peers.py --ortrain build/ortrain --model32 M.onnx --batch 32 \
      --model224 M.onnx --batch224 4 [--folder DIR] [--rounds 3] [--only loader|train]

Makes 2,000 JPEGs of 256x256 (1/f noise, the spectrum of natural pictures, quality 90, 10 classes) in --folder where
it is not there. Two cases of the loader alone, with 1 and 2 workers each: to 32x32 (resize, random crop, flip,
normalise) and to 224x224 (random part, flip, normalise). Then training steps of the 32x32 model: this loader, the
same program on an npz, PyTorch with its DataLoader. Needs torch, torchvision, Pillow and onnx; no test."""
import argparse
import json
import os
import statistics
import subprocess
import time

import numpy as np
from PIL import Image

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORM = ",mean=0.485/0.456/0.406,std=0.229/0.224/0.225"
PREPARE = {32: "*:resize=36,random-crop=32,flip" + NORM, 224: "*:random-resized-crop=224,flip" + NORM}


def make_pictures(root):
    rng = np.random.default_rng(0)
    distance = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.rfftfreq(256)[None, :])
    amplitude = 1 / np.maximum(distance, 1 / 256) ** 1.1
    def noise():
        x = np.fft.irfft2(amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape)), s=(256, 256))
        return x / x.std()
    for i in range(2000):
        folder = f"{root}/c{i % 10}"
        os.makedirs(folder, exist_ok=True)
        light = noise()
        colours = [118 + 44 * light + 14 * noise() + 12 * np.cos(i % 10 + 2 * k) for k in range(3)]
        pixels = np.stack(colours, -1).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(f"{folder}/{i:04d}.jpg", quality=90)


def ortrain(a, size, *more):
    model, batch = (a.model32, a.batch) if size == 32 else (a.model224, a.batch224)
    done = subprocess.run([a.ortrain, "bench", model, "--loss", "cross_entropy", "--batch-size", str(batch), "--json",
                           "-", *more], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def torch_loader(a, size, batch, workers):
    import torch
    from torchvision import datasets, transforms as t
    crop = [t.Resize(36), t.RandomCrop(32)] if size == 32 else [t.RandomResizedCrop(224)]
    change = t.Compose([*crop, t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)])
    return torch.utils.data.DataLoader(datasets.ImageFolder(a.folder, change), batch_size=batch, shuffle=True,
                                       num_workers=workers, drop_last=True)


def torch_rate(a, size, workers, samples):
    """Samples per second after the workers have started."""
    loader = iter(torch_loader(a, size, 32, workers))
    for _ in range(4):
        next(loader)
    begin, n = time.perf_counter(), 0
    while n < samples:
        n += len(next(loader)[0])
    return n / (time.perf_counter() - begin)


def loader_alone(a):
    for size in (32, 224):
        for workers in (1, 2):
            ours, theirs = [], []
            for _ in range(a.rounds):
                batch = a.batch if size == 32 else a.batch224
                samples = 4096 if size == 32 else 1600
                ours.append(ortrain(a, size, "--data", a.folder, "--prepare", PREPARE[size], "--loader", "--workers",
                                    str(workers), "--steps", str(samples // batch))["samples_per_second"])
                theirs.append(torch_rate(a, size, workers, 960))
            print(f"| {size}x{size}, {workers} workers | {statistics.median(ours):.0f} | {statistics.median(theirs):.0f} | "
                  f"{statistics.median(ours) / statistics.median(theirs):.1f} |", flush=True)


def torch_net():
    """ResNet-18 with a 3x3 stem for 32x32 pictures, as the model of --model32."""
    import torch
    import torchvision
    net = torchvision.models.resnet18(num_classes=10)
    net.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    net.maxpool = torch.nn.Identity()
    return net


def torch_step(a, steps):
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    net = torch_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader, times = iter(torch_loader(a, 32, a.batch, 2)), []
    for _ in range(steps):
        begin = time.perf_counter()
        x, y = next(loader)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[steps // 5:])


def training(a):
    npz = os.path.join(os.path.dirname(os.path.abspath(a.folder)), "loader_peers.npz")
    rng = np.random.default_rng(1)
    import onnx
    name = onnx.load(a.model32, load_external_data=False).graph.input[0].name
    np.savez(npz, **{name: rng.standard_normal((2000, 3, 32, 32)).astype(np.float32),
                     "labels": rng.integers(0, 10, 2000)})
    rows = {"npz": [], "pictures": [], "torch": []}
    for _ in range(a.rounds):
        rows["npz"].append(ortrain(a, 32, "--data", npz, "--steps", "20"))
        rows["pictures"].append(ortrain(a, 32, "--data", a.folder, "--prepare", PREPARE[32], "--steps", "20"))
        rows["torch"].append(torch_step(a, 15))
    ms = {k: statistics.median([statistics.median(r["ms_per_step"]) for r in rows[k]]) for k in ("npz", "pictures")}
    share = statistics.median([r["wait_share"] for r in rows["pictures"]])
    cores = statistics.median([r["load_cores"] for r in rows["pictures"]])
    print(f"step: npz {ms['npz']:.0f} ms, pictures {ms['pictures']:.0f} ms (ratio {ms['pictures'] / ms['npz']:.3f}, "
          f"waiting {100 * share:.1f} %, loading {cores:.2f} cores); PyTorch {statistics.median(rows['torch']):.0f} ms "
          f"(ratio {ms['pictures'] / statistics.median(rows['torch']):.2f})", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ortrain", required=True)
    p.add_argument("--model32", required=True)
    p.add_argument("--model224", required=True)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--batch224", type=int, default=32)
    p.add_argument("--folder", default="/tmp/loader_peers/pictures")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", choices=["loader", "train"])
    a = p.parse_args()
    if not os.path.isdir(a.folder):
        make_pictures(a.folder)
    import torch
    import torchvision
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, {len(os.sched_getaffinity(0))} cores")
    if a.only != "train":
        loader_alone(a)
    if a.only != "loader":
        training(a)


if __name__ == "__main__":
    main()
