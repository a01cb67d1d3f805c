#!/usr/bin/env python3
# ctest-timeout: 900
"""Class weights, label smoothing with ignored labels, several losses: runs of $ORTRAIN_BIN against what
PyTorch computed in float64 (tests/golden/policies/make_heads.py)."""
import json
import os
import subprocess
import tempfile
import unittest

import numpy as np
import onnx
from onnx import numpy_helper

BIN = os.environ["ORTRAIN_BIN"]
SOURCE = os.environ["ORTRAIN_SOURCE"]
GOLDEN = os.path.join(SOURCE, "tests", "golden", "policies")


def ortrain(*args, code=0):
    done = subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, timeout=300)
    if code is not None and done.returncode != code:
        raise AssertionError(f"exit {done.returncode}: {args}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def rows(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [json.loads(line) for line in f]


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


class Heads(unittest.TestCase):
    MODEL, DATA = os.path.join(GOLDEN, "heads.onnx"), os.path.join(GOLDEN, "heads.npz")

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(GOLDEN, "heads.json")) as f:
            cls.golden = json.load(f)

    def run_case(self, case, out, precision):
        g = self.golden
        return ortrain(self.MODEL, "--data", self.DATA, "--eval-data", self.DATA, "--out", out, "--optimizer", "sgd",
                       "--lr", g["lr"], "--batch-size", g["batch"], "--steps", g["steps"], "--shuffle", "none",
                       "--eval-every", g["steps"], "--precision", precision, *case["flags"])

    def test_trajectories(self):
        for precision, tolerance in (("fp64", 1e-9), ("fp32", 2e-5)):
            for case in self.golden["cases"]:
                with self.subTest(case=case["name"], precision=precision), tempfile.TemporaryDirectory() as out:
                    self.run_case(case, out, precision)
                    steps = [r for r in rows(out) if "loss" in r]
                    np.testing.assert_allclose([r["loss"] for r in steps], case["loss"], rtol=tolerance, atol=1e-12)
                    evaluation = [r["eval"] for r in rows(out) if "eval" in r][-1]
                    total = float(np.dot(case["factors"], case["eval"]))
                    np.testing.assert_allclose(evaluation["loss"], total, rtol=tolerance)
                    if len(case["outputs"]) > 1:
                        for i, name in enumerate(case["outputs"]):
                            np.testing.assert_allclose([r["loss/" + name] for r in steps],
                                                       [p[i] for p in case["losses"]], rtol=tolerance, atol=1e-12)
                            np.testing.assert_allclose(evaluation["loss/" + name], case["eval"][i], rtol=tolerance)
                    before, after = weights(self.MODEL), weights(os.path.join(out, "model.onnx"))
                    for name, norm in case["norms"].items():
                        moved = np.linalg.norm((after[name].astype(np.float64) - before[name]).ravel())
                        self.assertLess(abs(moved - norm), 1e-5 * (1 + norm), name)

    def test_a_loss_without_its_weights_differs(self):
        # The comparison above can fail: the weighted run is held to the unweighted numbers.
        by_name = {c["name"]: c for c in self.golden["cases"]}
        a, b = by_name["weights_ignore_smooth"]["loss"], by_name["ignore_smooth"]["loss"]
        self.assertGreater(max(abs(x - y) for x, y in zip(a, b)), 1e-3)

    def test_metrics_per_head_and_unused_outputs(self):
        case = {c["name"]: c for c in self.golden["cases"]}["two"]
        with tempfile.TemporaryDirectory() as out:
            text = self.run_case(case, out, "fp32")
            evaluation = [r["eval"] for r in rows(out) if "eval" in r][-1]
            ev = ortrain("eval", os.path.join(out, "model.onnx"), "--eval-data", self.DATA, *case["flags"],
                         "--batch-size", 7, "--json", "-")
        self.assertIn("cls/accuracy", evaluation)
        self.assertIn("reg/mae", evaluation)
        self.assertIn("output 'aux' has no loss: 1 parameter that no loss uses stays as it is ('w_aux')", text)
        again = json.loads(ev)
        for key, value in evaluation.items():
            self.assertAlmostEqual(again[key], value, delta=1e-5 * abs(value))

    def test_refusals(self):
        base = [self.MODEL, "--data", self.DATA, "--steps", 1, "--out", "/nonexistent/run"]
        for flags, said in ((["--loss", "cls:cross_entrop"], "did you mean cross_entropy"),
                            (["--loss", "cls:mse,mse"], "each names its output"),
                            (["--loss", "cls:mse,cls:l1"], "twice"),
                            (["--loss", "nope:mse(bits)"], "no output is named 'nope'"),
                            (["--loss", "cls:cross_entropy", "--class-weights", "1,2"], "has 5 classes"),
                            (["--loss", "reg:mse", "--class-weights", "1,2"], "has no classes to weight"),
                            (["--loss", "reg:mse", "--class-weights", "auto"], "no class labels"),
                            (["--loss", "cls:cross_entropy", "--class-weights", "1,x"], "'x' is no number"),
                            (["--loss", "cls:cross_entropy,aux:mse"], "needs an array"),
                            (["--loss", "cls:cross_entropy*"], "is no number")):
            with self.subTest(flags=flags):
                self.assertIn(said, ortrain(*base, *flags, code=None))


if __name__ == "__main__":
    unittest.main(verbosity=2)
