#!/usr/bin/env python3
# ctest-timeout: 600
"""LoRA: runs of $ORTRAIN_BIN against PyTorch's (tests/golden/lora/make_lora.py), the merged and the adapter
export, checkpoints, refusals."""
import json
import os
import sys
import tempfile
import unittest

import numpy as np
from safetensors.numpy import load_file

sys.path.insert(0, os.path.join(os.environ["ORTRAIN_SOURCE"], "tests"))
from program import ortrain, weights

GOLDEN = os.path.join(os.environ["ORTRAIN_SOURCE"], "tests", "golden", "lora")


def losses(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [r["loss"] for r in map(json.loads, f) if "loss" in r]


class Lora(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(GOLDEN, "lora.json")) as f:
            cls.golden = json.load(f)
        cls.cases = {c["name"]: c for c in cls.golden["cases"]}
        cls.data = os.path.join(GOLDEN, "train.npz")

    def train(self, case, out, precision="fp64", export=None, steps=None, extra=()):
        g = self.golden
        export = export or ("adapters" if case["name"].startswith("int") else "both")
        return ortrain(os.path.join(GOLDEN, case["model"]), "--data", self.data, "--out", out, "--optimizer", "adamw",
                       "--lr", g["lr"], "--seed", g["seed"], "--batch-size", g["batch"], "--steps", steps or g["steps"],
                       "--shuffle", "none", "--precision", precision, "--lora-export", export, *case["flags"], *extra)

    def test_trajectories(self):
        for case in self.golden["cases"]:
            for precision, tolerance in (("fp64", 1e-8), ("fp32", 1e-4)):
                with self.subTest(case=case["name"], precision=precision), tempfile.TemporaryDirectory() as out:
                    self.train(case, out, precision)
                    np.testing.assert_allclose(losses(out), case["loss"], rtol=tolerance)
                    got = load_file(os.path.join(out, "adapters", "adapter_model.safetensors"))
                    for name in case["A"]:
                        for letter in "AB":
                            t = got[f"base_model.model.{name}.lora_{letter}.weight"]
                            # A [r, in], B [out, r], as PEFT writes them.
                            rank = len(case["B"][name]) // {"fc1": 16, "fc2": 16, "head": 4}[name]
                            self.assertEqual(t.shape["AB".index(letter)], rank)
                            want = np.array(case[letter][name]).reshape(t.shape)
                            self.assertLess(np.abs(t - want).max(), tolerance * (1 + np.abs(want).max()))
                    for name, want in case["trained"].items():
                        t = got["base_model.model." + name]
                        self.assertLess(np.abs(t.ravel() - want).max(), tolerance * (1 + np.abs(want).max()))
                    with open(os.path.join(out, "adapters", "adapter_config.json")) as f:
                        self.assertEqual(json.load(f)["target_modules"], sorted(case["A"]))

    def test_merged_model_equals_base_and_adapters(self):
        for name in ("two_and_head", "all"):
            case = self.cases[name]
            with self.subTest(case=name), tempfile.TemporaryDirectory() as out:
                self.train(case, out, "fp64")
                predictions = os.path.join(out, "p.npz")
                ortrain("predict", os.path.join(out, "model.onnx"), "--data", self.data, "--out", predictions,
                        "--precision", "fp64")
                logits = np.load(predictions)["logits"]
                # The file holds f32.
                np.testing.assert_allclose(logits.ravel(), case["logits"], atol=2e-6)
                before, after = weights(os.path.join(GOLDEN, "lora.onnx")), weights(os.path.join(out, "model.onnx"))
                for weight in before:
                    moved = not np.array_equal(before[weight], after[weight])
                    self.assertEqual(moved, weight.removesuffix(".weight") in case["A"] or weight in case["trained"], weight)

    def test_adapters_leave_the_model(self):
        with tempfile.TemporaryDirectory() as out:
            for name in ("int8", "int4"):
                case = self.cases[name]
                self.train(case, os.path.join(out, name))
                before, after = weights(os.path.join(GOLDEN, case["model"])), weights(os.path.join(out, name, "model.onnx"))
                for weight in before:
                    moved = not np.array_equal(before[weight], after[weight])
                    self.assertEqual(moved, weight in case["trained"], weight)

    def test_resume_and_export(self):
        case = self.cases["all"]
        with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
            self.train(case, a, "fp32", extra=["--lr", 0.02])
            self.train(case, b, "fp32", extra=["--lr", 0.02], steps=9)
            self.train(case, b, "fp32", extra=["--lr", 0.02, "--resume"])
            np.testing.assert_array_equal(losses(a), losses(b))
            x, y = weights(os.path.join(a, "model.onnx")), weights(os.path.join(b, "model.onnx"))
            for name in x:
                np.testing.assert_array_equal(x[name], y[name])
            again = os.path.join(b, "again.onnx")
            ortrain("export", os.path.join(GOLDEN, "lora.onnx"), "--run", b, "--out", again)
            for name, value in weights(again).items():
                np.testing.assert_array_equal(value, y[name])

    def test_the_exported_adapters_are_those_of_the_run(self):
        case = self.cases["int4"]  # head.bias trains beside its adapters
        with tempfile.TemporaryDirectory() as out:
            self.train(case, out, "fp32")
            want = load_file(os.path.join(out, "adapters", "adapter_model.safetensors"))
            ortrain("export", os.path.join(GOLDEN, case["model"]), "--run", out, "--out", os.path.join(out, "again", "m.onnx"))
            got = load_file(os.path.join(out, "again", "adapters", "adapter_model.safetensors"))
            self.assertEqual(got.keys(), want.keys())
            for name in want:
                np.testing.assert_array_equal(got[name], want[name])

    def test_dropout_of_adapters(self):
        case = dict(self.cases["all"], flags=["--lora", "r=2,dropout=0.3"])
        with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
            self.train(case, a)
            self.train(case, b)
            np.testing.assert_array_equal(losses(a), losses(b))
            # B is zero in the first step: dropout cannot show there, but afterwards.
            self.assertAlmostEqual(losses(a)[0], self.cases["all"]["loss"][0], delta=1e-9)
            self.assertGreater(max(abs(np.array(losses(a)) - self.cases["all"]["loss"])), 1e-5)

    def test_refusals(self):
        run = lambda model, *flags: ortrain(os.path.join(GOLDEN, model), "--data", self.data, "--steps", 1,
                                            "--out", "/nonexistent/run", *flags, code=None)
        for model, flags, said in (
                ("lora_int8.onnx", ["--lora", "r=2"], "cannot be merged into them: 'fc2.weight'"),
                ("lora_int4.onnx", ["--lora", "r=2"], "cannot be merged into them: 'fc2.weight'"),
                ("lora.onnx", ["--lora", "r=2,targets=nothing"], "no matching 2-D weight"),
                ("lora.onnx", ["--lora", "alpha=2"], "gives no rank"),
                ("lora.onnx", ["--lora", "r=0"], "expected a whole number from 1"),
                ("lora.onnx", ["--lora", "rank=4"], "expected r=8")):
            with self.subTest(flags=flags):
                self.assertIn(said, run(model, *flags))


if __name__ == "__main__":
    unittest.main(verbosity=2)
