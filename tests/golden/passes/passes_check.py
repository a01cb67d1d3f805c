#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 900
"""Passes that may be off change no number: loss and gradients of every golden model file, all passes on =
each off = all off; a trained window (micro-batches, clipping, momentum, averages) likewise.

  python3 passes_check.py [SUBSTRING ...]     only models whose name has one of them

fp64: 1e-12 of the largest gradient of the tensor, or of a thousandth of the model's where that is more (a key
bias has a true gradient of zero). fp32: 2e-6; the sums of a fused or a channels-last kernel have another order.
Where fp64 has less than 1e-12 of the model's largest, fp32 has nothing but the rounding of addends that cancel, and
the measure is that largest: conv1.bias of cnn_digits, before a BatchNormalization, is 1e-16; in f32 512 addends of 2.0
in all (0.22: the largest gradient) leave 4e-8 in one kernel's order and 1e-7 in another's, within 2^-24 of their sum.
Two passes carry out what a flag asks for; off, they must give the run without the flag: dropout, cast_precision
and round_tf32 (to the bit). recompute changes no bit. With 16-bit compute the passes that fuse leave out
roundings, so on and off are compared as two roundings of one fp32 run.
Before that, a pass that changes the numbers (dropout) must be noticed. The program is $ORTRAIN_BIN.
"""
import glob
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from program import ortrain

GOLDEN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPTIONAL = ("check_trainable", "fuse_forward", "sparse_head", "layout", "simplify", "fuse_late")
# Their last layer is no product with a weight, or reads a quantised one.
NOWHERE_TO_DROP = ("autoencoder_conv/model.onnx", "qat_mlp/model.onnx")
LIMIT = {"fp64": 1e-12, "fp32": 2e-6}


class Model:
    """A model file with the flags that its data wants."""

    def __init__(self, name, path, data, batch, *flags):
        self.name, self.path, self.batch = name, path, batch
        self.flags = ["--data", data, "--batch-size", batch, "--shuffle", "none", *flags]

    def gradients(self, tmp, *more):
        out = os.path.join(tmp, "g%d.npz" % abs(hash((self.name, more))))
        text = ortrain("grads", self.path, *self.flags, *more, "--threads", 1, "--out", out)
        with np.load(out) as z:
            arrays = {k: z[k].astype(np.float64) for k in z.files}
        os.unlink(out)
        arrays["loss"] = arrays.get("loss", np.array(float(text.split("loss ")[1].split(",")[0])))
        return arrays

    def trained(self, tmp, *more):
        out = os.path.join(tmp, "t%d" % abs(hash((self.name, more))))
        ortrain(self.path, *self.flags, "--optimizer", "sgd", "--lr", 0.1, "--momentum", 0.9, "--clip-norm", 0.5,
                "--ema", 0.9, "--weight-decay", 0.01, "--steps", 3, "--threads", 1, "--out", out, *more)
        from safetensors.numpy import load_file
        folder = os.path.join(out, "checkpoints", "step-000003")
        return {k: v.astype(np.float64) for f in ("params", "optimizer")
                for k, v in load_file(os.path.join(folder, f + ".safetensors")).items()}


def largest(gradients):
    return max(np.abs(v).max(initial=0) for k, v in gradients.items() if k != "loss")


def far(got, want, zeros=()):
    """The largest difference of a tensor, by the size that its numbers have; `zeros`: by the model's largest."""
    if got.keys() != want.keys():
        return np.inf, f"other tensors: {sorted(got.keys() ^ want.keys())[:3]}"
    size = largest(want)
    worst = (0.0, "")
    for k, v in want.items():
        own = max(np.abs(v).max(initial=0), (1 if k in zeros else 1e-3) * size if k != "loss" else 0, 1e-30)
        diff = np.abs(got[k] - v).max(initial=0) / own
        worst = max(worst, (np.inf if np.isnan(diff) else float(diff), k))
    return worst


def models(tmp):
    found = []
    for path in sorted(glob.glob(os.path.join(GOLDEN, "*", "case.json"))):
        folder = os.path.dirname(path)
        with open(path) as f:
            case = json.load(f)
        if "files" not in case:
            continue
        flags = case["flags"]
        pick = lambda name: flags[flags.index(name) + 1]
        for file in sorted(glob.glob(os.path.join(folder, "*.onnx"))):
            name = os.path.basename(file)
            repair = case["files"].get(name, {}).get("flags", [])
            found.append(Model(f"{case['case']}/{name}", file, os.path.join(folder, pick("--data")),
                               min(int(pick("--batch-size")), 8), "--loss", pick("--loss"), *repair))
    lora = lambda name, *flags: found.append(
        Model("lora/" + name, os.path.join(GOLDEN, "lora", name), os.path.join(GOLDEN, "lora", "train.npz"), 8, *flags))
    lora("lora.onnx", "--lora", "r=2,alpha=4,dropout=0.3", "--lora-export", "both")
    for name in ("lora_int8.onnx", "lora_int4.onnx"):
        lora(name, "--lora", "r=2,alpha=4", "--lora-export", "adapters")
    for file in sorted(glob.glob(os.path.join(GOLDEN, "fixed_batch", "[!r]*_b1_*.onnx"))):
        with np.load(os.path.join(GOLDEN, "fixed_batch", os.path.basename(file).split("_b1")[0] + ".npz")) as z:
            data = os.path.join(tmp, os.path.basename(file)[:-5] + ".npz")
            np.savez(data, x=z["x"], labels=z["labels"])
        found.append(Model("fixed_batch/" + os.path.basename(file), file, data, 4, "--rebatch"))
    heads = os.path.join(GOLDEN, "policies", "heads")
    with open(heads + ".json") as f:
        for case in json.load(f)["cases"]:
            found.append(Model("heads/case_" + case["name"], heads + ".onnx", heads + ".npz", 4, *case["flags"]))
    return found


def pairs(model):
    """(what, how far it may be, flags of one run, flags of the other, whether they train)."""
    every = ",".join(OPTIONAL)
    for precision, limit in LIMIT.items():
        p = ["--precision", precision]
        for passes in [*OPTIONAL, every]:
            yield f"{precision} without {passes}", limit, p, [*p, "--disable-pass", passes], False
    window = ["--precision", "fp64", "--accumulate", 2]
    yield "window without all", 1e-11, window, [*window, "--disable-pass", every], True
    drop = ["--precision", "fp64", "--dropout", "0.25", "--seed", 7]
    yield "dropout without all", 1e-12, drop, [*drop, "--disable-pass", every], False
    if not model.name.endswith("/model.onnx"):
        return
    bare = ["--precision", "fp64"]
    yield "dropout off", 0, bare, [*drop, "--disable-pass", "dropout"], False
    for precision, name in (("bf16", "cast_precision"), ("fp16", "cast_precision"), ("tf32", "round_tf32")):
        yield f"{precision} off", 0, [], ["--precision", precision, "--disable-pass", name], False
    again = ["--recompute", "sqrt"]
    yield "recompute off", 0, again, [*again, "--disable-pass", "recompute"], False


def check(model):
    problems, worst = [], {}
    done = {}

    def run(flags, trains):
        key = (*map(str, flags), trains)
        if key not in done:
            done[key] = (model.trained if trains else model.gradients)(tmp, *flags)
        return done[key]

    with tempfile.TemporaryDirectory() as tmp:
        for what, limit, one, other, trains in pairs(model):
            try:
                zeros = ()
                if what.startswith("fp32"):
                    exact = run(["--precision", "fp64"], False)
                    zeros = [k for k, v in exact.items() if np.abs(v).max(initial=0) < 1e-12 * largest(exact)]
                diff, at = far(run(other, trains), run(one, trains), zeros)
            except AssertionError as error:
                problems.append(f"{what}: {error}")
                continue
            kind = what.split()[0]
            worst[kind] = max(worst.get(kind, 0), diff)
            if not diff <= limit:
                problems.append(f"{what}: {diff:.3g} at {at}, limit {limit:g}")
        if not problems and model.name.endswith("/model.onnx"):
            bare = run(["--precision", "fp64"], False)
            dropped = far(run(["--precision", "fp64", "--dropout", "0.25", "--seed", 7], False), bare)[0]
            # Passes that fuse leave out roundings to 16 bits; both runs are that rounding away from fp64.
            narrow = far(run(["--precision", "bf16"], False), bare)[0]
            wide = far(run(["--precision", "bf16", "--disable-pass", ",".join(OPTIONAL)], False), bare)[0]
            worst["16-bit"] = narrow
            if model.name not in NOWHERE_TO_DROP and dropped < 1e-6:
                problems.append("dropout moves nothing: this comparison cannot fail")
            if not wide <= 4 * narrow or not narrow <= 4 * wide or narrow < 1e-4:
                problems.append(f"bf16 is {narrow:.3g} from fp64, without passes {wide:.3g}")
    return model, problems, worst


def main():
    wanted = sys.argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory() as tmp, ThreadPoolExecutor(2) as pool:
        list_ = [m for m in models(tmp) if not wanted or any(w in m.name for w in wanted)]
        for model, problems, worst in pool.map(check, list_):
            failed += bool(problems)
            figures = "  ".join(f"{k} {v:.1e}" for k, v in worst.items())
            print(f"{'FAIL' if problems else 'ok  '} {model.name}: {figures}", flush=True)
            for p in problems:
                print("       " + p)
    print(f"{len(list_)} models, {failed} failed")
    sys.exit(1 if failed or not list_ else 0)


if __name__ == "__main__":
    main()
