#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 900
"""--pad-dims changes no number: every golden model trained padded = trained as it is.

  python3 padded_check.py [SUBSTRING ...]     only models whose name has one of them

With --kernels ref losses, gradient norms (clipping on), parameters, moments and running statistics must be equal,
number for number (0 and -0 are one number); with the library's kernels, whose blocks change with the extents, the
gradients of fp64 by 1e-12 of a tensor's largest, those of fp32 by 1e-6 of the model's largest (a sum in another
order), for the multiples 8, 16, 64 and 128. What is exported has the file's shapes. A model of which nothing is
padded is listed in UNPADDED with the reason; one that is padded where it is listed there fails too. A run may stop
padded and go on as it is. COMBINED: the same with the flags that change the graph as well, and what metrics and
predictions come to. The program is $ORTRAIN_BIN.
"""
import glob
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from program import ortrain, weights

GOLDEN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MULTIPLES = (8, 16, 64, 128)
UNPADDED = {("autoencoder_conv", 8)}  # every extent of a product is a multiple

# Cases of which classes (or the vocabulary) are no multiple of 64, with other flags that change the graph.
COMBINED = {
    "gpt_tiny": (["--precision", "bf16"], ["--precision", "fp16"], ["--accumulate", 2], ["--lora", "r=3,alpha=6"],
                 ["--recompute", "sqrt"], ["--dropout", 0.1, "--ema", 0.9]),
    "bert_tiny": (["--precision", "fp16", "--accumulate", 2], ["--label-smoothing", 0.1]),
}


class Model:
    """A golden case: a model file and the flags that its run was recorded with."""

    def __init__(self, name, path, flags, steps=3):
        self.name, self.path, self.flags, self.steps = name, path, flags, steps

    def train(self, out, *more, steps=None):
        text = ortrain(self.path, *self.flags, "--clip-norm", 0.5, "--steps", steps or self.steps, "--checkpoint-every",
                       1, "--keep", 9, "--out", out, *more)
        from safetensors.numpy import load_file
        folder = sorted(glob.glob(os.path.join(out, "checkpoints", "step-*")))[-1]
        found = {k: v for f in ("params", "optimizer") for k, v in load_file(os.path.join(folder, f + ".safetensors")).items()}
        with open(os.path.join(out, "run.jsonl")) as f:
            rows = [json.loads(line) for line in f]
        found["losses"] = np.array([r["loss"] for r in rows if "loss" in r], np.float64)
        found["norms"] = np.array([r["grad_norm"] for r in rows if "grad_norm" in r], np.float64)
        assert len(found["norms"]) > 0, "no gradient norms in the log"
        return found, text

    def gradients(self, tmp, *more):
        out = os.path.join(tmp, "g%d.npz" % abs(hash(more)))
        ortrain("grads", self.path, *self.flags, *more, "--out", out)
        with np.load(out) as z:
            return {k: z[k].astype(np.float64) for k in z.files}


def models():
    found = []
    for path in sorted(glob.glob(os.path.join(GOLDEN, "*", "case.json"))):
        folder = os.path.dirname(path)
        with open(path) as f:
            case = json.load(f)
        file, given = case["flags"][0], case["flags"][1:]
        if not os.path.exists(os.path.join(folder, file)):
            continue  # its model lies under models/
        flags = []
        for name, value in zip(given, given[1:] + [""]):
            if not name.startswith("--") or name in ("--steps", "--epochs", "--log", "--clip-norm", "--checkpoint-every",
                                                     "--out", "--keep"):
                continue
            flags.append(name)
            if not value.startswith("--") and value != "":
                flags.append(os.path.join(folder, value) if name in ("--data", "--eval-data") else value)
        found.append(Model(case["case"], os.path.join(folder, file), flags))
    return found


def differ(a, b):
    """Names of arrays that are not equal number for number."""
    if a.keys() != b.keys():
        return [f"other tensors: {sorted(a.keys() ^ b.keys())[:3]}"]
    return [k for k in a if not np.array_equal(a[k], b[k], equal_nan=True)]


def far(got, want, of_all):
    size = max(np.abs(v).max(initial=0) for v in want.values())
    worst = 0.0
    for k, v in want.items():
        own = size if of_all else max(np.abs(v).max(initial=0), 1e-3 * size)
        worst = max(worst, float(np.abs(got[k] - v).max(initial=0) / max(own, 1e-30)))
    return worst


def check(model):
    problems, did = [], ""
    with tempfile.TemporaryDirectory() as tmp:
        try:
            out = lambda name: os.path.join(tmp, name)
            ref = ["--kernels", "ref"]
            plain, _ = model.train(out("plain"), *ref, "--pad-dims", "off")
            shapes = {k: v.shape for k, v in weights(os.path.join(out("plain"), "model.onnx")).items()}
            for multiple in (8, 64):
                padded, text = model.train(out(f"p{multiple}"), *ref, "--pad-dims", multiple)
                said = re.search(rf"--pad-dims {multiple}: (\d+) extents?: (.*)", text)
                if bool(said) == ((model.name, multiple) in UNPADDED):
                    problems.append(f"multiple {multiple}: " + ("padded" if said else "nothing was padded"))
                did = said[2] if said else did
                for name in differ(padded, plain)[:4]:
                    problems.append(f"ref, multiple {multiple}: {name} differs")
                if {k: v.shape for k, v in weights(os.path.join(out(f"p{multiple}"), "model.onnx")).items()} != shapes:
                    problems.append(f"multiple {multiple}: the export has other shapes")
            # Stopped padded, gone on as it is.
            model.train(out("two"), *ref, "--pad-dims", 16, steps=2)
            resumed, _ = model.train(out("two"), *ref, "--pad-dims", "off", "--resume")
            for name in differ(resumed, plain)[:4]:
                problems.append(f"stopped padded, gone on without: {name} differs")
            for precision, limit in (("fp64", 1e-12), ("fp32", 1e-6)):
                bare = model.gradients(tmp, "--precision", precision, "--pad-dims", "off")
                for multiple in MULTIPLES:
                    got = model.gradients(tmp, "--precision", precision, "--pad-dims", multiple)
                    diff = far(got, bare, precision == "fp32")
                    if not diff <= limit:
                        problems.append(f"{precision}, multiple {multiple}: {diff:.3g}, limit {limit:g}")
        except AssertionError as error:
            problems.append(str(error))
    return model, problems, did


def combined(model):
    """Trained with other flags; then metrics and predictions of the run's model."""
    problems = []
    arrays = [model.flags[i + 1] for i, f in enumerate(model.flags) if f in ("--data", "--eval-data")]
    with tempfile.TemporaryDirectory() as tmp:
        try:
            for number, more in enumerate(COMBINED[model.name]):
                results = []
                for pad in ("off", 64):
                    out = os.path.join(tmp, f"{number}-{pad}")
                    found, text = model.train(out, "--kernels", "ref", *more, "--pad-dims", pad)
                    if ("--pad-dims 64:" in text) != (pad == 64):
                        problems.append(f"{more} {pad}: the run says it is otherwise")
                    results.append(found)
                for name in differ(*results)[:4]:
                    problems.append(f"{more}: {name} differs")
            seen = []
            for pad in ("off", 64):
                path, out = os.path.join(tmp, f"{number}-{pad}", "model.onnx"), os.path.join(tmp, f"{pad}.npz")
                flags = [f for f in model.flags]
                for name in ("--data", "--eval-data"):
                    while name in flags:
                        del flags[flags.index(name):flags.index(name) + 2]
                ortrain("predict", path, "--data", arrays[-1], "--kernels", "ref", "--pad-dims", pad, "--out", out)
                with np.load(out) as z:
                    seen.append({k: z[k] for k in z.files})
                text = ortrain("eval", path, *flags, "--data", arrays[-1], "--kernels", "ref", "--pad-dims", pad)
                seen[-1]["metrics"] = np.array([float(x) for x in re.findall(r"\d+\.\d+", text.split("loss", 1)[1])])
            assert seen[0]["metrics"].size > 0
            problems += [f"predictions, metrics: {name} differs" for name in differ(*seen)]
        except AssertionError as error:
            problems.append(str(error))
    return model, problems, "with other flags, metrics, predictions"


def main():
    wanted = sys.argv[1:]
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        chosen = [m for m in models() if not wanted or any(w in m.name for w in wanted)]
        jobs = [pool.submit(check, m) for m in chosen]
        jobs += [pool.submit(combined, m) for m in chosen if m.name in COMBINED]
        for model, problems, did in (job.result() for job in jobs):
            failed += bool(problems)
            print(f"{'FAIL' if problems else 'ok  '} {model.name}: {did}", flush=True)
            for p in problems:
                print("       " + p)
    print(f"{len(chosen)} models, {failed} failed")
    sys.exit(1 if failed or not chosen else 0)


if __name__ == "__main__":
    main()
