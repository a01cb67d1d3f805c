#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 900
"""For every golden model: k micro-batches make the step of one batch, and a resumed run its bits.

  python3 accumulate_check.py [CASE ...]

One SGD step of rate 1 moves each parameter by its gradient, so the moved weights in the checkpoint are
compared: fp64 to 1e-12, fp32 to 1e-6 of the largest gradient of the model (its own rounding is what
one batch in another order shows). With BatchNormalization micro-batches have their own statistics: there
the equality is held with --batch-norm frozen, and with batch statistics the accumulated gradient is the
mean of the micro-batches' own gradients, each from a run of its own. Likewise where an If depends on
the batch (BRANCH_ON_BATCH).
Each comparison must fail against a batch of half the size. The program is $ORTRAIN_BIN.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

GOLDEN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ORTRAIN = os.environ.get("ORTRAIN_BIN", "")
# An If of theirs is taken on a mean over the whole batch: as with batch statistics, only the mean of the
# micro-batches' gradients can be had.
BRANCH_ON_BATCH = ("control_flow", "control_flow_torch")
DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64}


def run(*args, cwd):
    done = subprocess.run([ORTRAIN, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {args}\n{(done.stdout + done.stderr)[-800:]}")


def safetensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            first, end = t["data_offsets"]
            data = raw[8 + size + first:8 + size + end]
            out[name] = np.frombuffer(data, DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def checkpoint(out, step):
    folder = os.path.join(out, "checkpoints", f"step-{step:06d}")
    return {**safetensors(os.path.join(folder, "params.safetensors")),
            **safetensors(os.path.join(folder, "optimizer.safetensors"))}


def losses(out):
    with open(os.path.join(out, "run.jsonl")) as f:
        return [json.loads(line)["loss"] for line in f]


class Case:
    def __init__(self, name):
        self.folder = os.path.join(GOLDEN, name)
        with open(os.path.join(self.folder, "case.json")) as f:
            case = json.load(f)
        flags = case["flags"]
        self.loss = flags[flags.index("--loss") + 1]
        self.batch = int(flags[flags.index("--batch-size") + 1])
        self.branches = name in BRANCH_ON_BATCH
        self.norm = "BN uses running statistics" in case.get("wrong_variants", {})
        self.failures = []

    def data(self):
        with np.load(os.path.join(self.folder, "train.npz")) as z:
            return dict(z)

    def step(self, out, batch, *extra, data="train.npz", steps=1):
        """The step's change of every parameter, and its loss."""
        run("model.onnx", "--data", data, "--loss", self.loss, "--optimizer", "sgd", "--lr", 1, "--shuffle",
            "none", "--steps", steps, "--batch-size", batch, "--out", out, *extra, cwd=self.folder)
        return checkpoint(out, steps), losses(out)

    def expect(self, what, ok):
        if not ok:
            self.failures.append(what)

    def compare(self, what, got, want, limit, half):
        """Weights after the step, against the largest change that the step makes."""
        start = self.start[what.split()[0]]
        names = [n for n in want[0] if n in start and not n.startswith("ortrain/")]
        size = max(np.abs(want[0][n] - start[n]).max() for n in names)
        far = max(np.abs(got[0][n] - want[0][n]).max() for n in names) / size
        wrong = max(np.abs(half[0][n] - want[0][n]).max() for n in names) / size
        loss = abs(got[1][0] - want[1][0]) / abs(want[1][0])
        self.expect(f"{what}: gradient off by {far:.2g}, loss by {loss:.2g}", far <= limit and loss <= limit)
        self.expect(f"{what}: half a batch is only {wrong:.2g} away", wrong > 100 * limit)

    def equal(self, tmp):
        frozen = ["--batch-norm", "frozen"] if self.norm else []
        self.start = {}
        for precision, limit in (("fp64", 1e-12), ("fp32", 1e-6)):
            flags = ["--precision", precision, *frozen]
            out = lambda name: os.path.join(tmp, f"{precision}-{name}")
            run("model.onnx", "--data", "train.npz", "--loss", self.loss, "--optimizer", "sgd", "--lr", 0,
                "--steps", 1, "--batch-size", self.batch, "--out", out("start"), *flags, cwd=self.folder)
            self.start[precision] = checkpoint(out("start"), 1)
            if self.branches:
                continue
            one = self.step(out("one"), self.batch, *flags)
            half = self.step(out("half"), self.batch // 2, *flags)
            for k in (2, 4):
                got = self.step(out(f"k{k}"), self.batch // k, "--accumulate", k, *flags)
                self.compare(f"{precision} k={k}", got, one, limit, half)

    def batch_statistics(self, tmp):
        """Mean of the gradients of two halves, each trained on alone."""
        half, arrays = self.batch // 2, self.data()
        start = self.start["fp64"]
        parts = []
        for i in range(2):
            path = os.path.join(tmp, f"half{i}.npz")
            np.savez(path, **{n: a[i * half:(i + 1) * half] for n, a in arrays.items()})
            parts.append(self.step(os.path.join(tmp, f"bn{i}"), half, "--precision", "fp64", data=path)[0])
        got = self.step(os.path.join(tmp, "bn"), half, "--accumulate", 2, "--precision", "fp64")[0]
        moving = [n for n in start if not n.startswith("ortrain/") and "running" not in n]
        size = max(np.abs(got[n] - start[n]).max() for n in moving)
        far = max(np.abs((parts[0][n] + parts[1][n]) / 2 - got[n]).max() for n in moving) / size
        one = max(np.abs(parts[0][n] - got[n]).max() for n in moving) / size
        self.expect(f"batch statistics: off by {far:.2g} from the mean of two halves", far <= 1e-12)
        self.expect(f"batch statistics: one half is only {one:.2g} away", one > 1e-6)

    def resume(self, tmp):
        flags = ["--data", "train.npz", "--loss", self.loss, "--optimizer", "adamw", "--lr", "0.001",
                 "--batch-size", self.batch // 4, "--accumulate", 3, "--checkpoint-every", 2, "--keep", 9,
                 "--loss-scale", "dynamic,init=64,interval=2", "--schedule", "cosine", "--seed", 3]
        straight, parts = os.path.join(tmp, "straight"), os.path.join(tmp, "parts")
        run("model.onnx", *flags, "--steps", 6, "--out", straight, cwd=self.folder)
        os.makedirs(os.path.join(parts, "checkpoints"))
        os.rename(os.path.join(straight, "checkpoints", "step-000002"),
                  os.path.join(parts, "checkpoints", "step-000002"))
        run("model.onnx", *flags, "--steps", 6, "--out", parts, "--resume", cwd=self.folder)
        a, b = checkpoint(straight, 6), checkpoint(parts, 6)
        differ = [n for n in a if a[n].tobytes() != b[n].tobytes()]
        self.expect(f"resume: other bits in {differ[:4]}", a.keys() == b.keys() and not differ)
        self.expect(f"resume: losses {losses(parts)} after {losses(straight)}",
                    losses(straight)[2:] == losses(parts))
        self.expect("resume: the loss scale never moved", a["ortrain/loss_scale"] == 64 * 8)


def main():
    if not os.path.exists(ORTRAIN):
        sys.exit(f"no ortrain program at '{ORTRAIN}' ($ORTRAIN_BIN)")
    names = sys.argv[1:] or sorted(
        n for n in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, n, "golden.npz")))
    failed = 0
    for name in names:
        case = Case(name)
        with tempfile.TemporaryDirectory() as tmp:
            case.equal(tmp)
            if case.norm or case.branches:
                case.batch_statistics(tmp)
            case.resume(tmp)
        failed += bool(case.failures)
        print(f"{'FAIL' if case.failures else 'ok  '} {name}{' (batch statistics too)' if case.norm else ''}"
              f"{' (branches on the batch)' if case.branches else ''}",
              flush=True)
        for f in case.failures:
            print("       " + f)
    sys.exit(1 if failed or not names else 0)


if __name__ == "__main__":
    main()
