#!/usr/bin/env python3
"""Why fp16 needs loss scaling, seen from outside: a model whose gradients are below fp16's smallest number.

The targets are about 1e-4 and the batch is large, so the gradient of each output is some 4e-9 (fp16 ends at 6e-8). Without
scaling the 16-bit gradients are exactly zero and no weight in front of a product moves; with the default
(dynamic) scaling the run follows the fp32 one. The fp32 run shows that the task itself can be learnt.
"""
import json
import os
import subprocess
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BIN = os.environ["ORTRAIN_BIN"]
SAMPLES, WIDTH, STEPS = 65536, 8, 30


class Underflow(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        rng = np.random.default_rng(5)
        x = rng.standard_normal((SAMPLES, WIDTH)).astype(np.float32)
        truth = rng.standard_normal((WIDTH, 1)).astype(np.float32) * 5e-5
        np.savez(os.path.join(cls.folder.name, "train.npz"), x=x, target=x @ truth)
        cls.w = (rng.standard_normal((WIDTH, 1)) * 5e-5).astype(np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])], [numpy_helper.from_array(cls.w, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, os.path.join(cls.folder.name, "model.onnx"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def train(self, name, *flags):
        out = os.path.join(self.folder.name, name)
        done = subprocess.run(
            [BIN, "model.onnx", "--data", "train.npz", "--loss", "mse", "--optimizer", "sgd", "--lr", "0.2",
             "--batch-size", str(SAMPLES), "--steps", str(STEPS), "--shuffle", "none", "--out", out, *flags],
            cwd=self.folder.name, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(out, "run.jsonl"), encoding="utf-8") as f:
            steps = [s for s in map(json.loads, f) if "ms" in s]
        model = onnx.load(os.path.join(out, "model.onnx"))
        return [s["loss"] for s in steps], numpy_helper.to_array(model.graph.initializer[0]), steps

    def test_gradients_underflow_without_scaling_and_learn_with_it(self):
        exact, _, _ = self.train("fp32", "--precision", "fp32")
        self.assertLess(exact[-1], 1e-3 * exact[0])
        _, still, _ = self.train("off", "--precision", "fp16", "--loss-scale", "off")
        np.testing.assert_array_equal(still, self.w)  # every gradient was rounded to zero
        scaled, moved, steps = self.train("scaled", "--precision", "fp16")
        self.assertLess(scaled[-1], 0.02 * scaled[0])
        self.assertTrue((moved != self.w).all())
        self.assertGreater(steps[-1]["loss_scale"], 1)

    def grads(self, name, *flags):
        done = subprocess.run(
            [BIN, "grads", "model.onnx", "--data", "train.npz", "--loss", "mse", "--batch-size", str(SAMPLES),
             "--shuffle", "none", "--out", name + ".npz", *flags],
            cwd=self.folder.name, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return np.load(os.path.join(self.folder.name, name + ".npz"))["w"].astype(np.float64), done.stdout

    def test_grads_follow_the_same_scale(self):
        exact, _ = self.grads("exact", "--precision", "fp64")
        self.assertFalse(self.grads("none", "--precision", "fp16", "--loss-scale", "off")[0].any())
        for name, flags, says in (("default", (), "loss scale 65536"), ("static", ("--loss-scale", "16384"), "")):
            scaled, text = self.grads(name, "--precision", "fp16", *flags)
            self.assertLess(np.linalg.norm(scaled - exact), 0.02 * np.linalg.norm(exact), name)
            self.assertIn(says, text)
        # A scale that overflows is halved until it does not: 1e15 times 4e-9 is above fp16's 65504.
        over, text = self.grads("over", "--precision", "fp16", "--loss-scale", "dynamic,init=1e15,max=1e15")
        self.assertLess(np.linalg.norm(over - exact), 0.02 * np.linalg.norm(exact))
        self.assertLess(float(text.split("loss scale ")[1].split(":")[0]), 1e15)


if __name__ == "__main__":
    unittest.main()
