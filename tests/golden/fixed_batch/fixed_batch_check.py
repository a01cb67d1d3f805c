#!/usr/bin/env python3
# ctest-timeout: 300
"""--rebatch on files that PyTorch's exporters wrote at a fixed batch (make_fixed_batch.py).

Logits, loss and gradients of five samples at batch sizes that the files do not have are PyTorch's; files whose
samples meet are refused with the node's name. The program is --ortrain PATH or $ORTRAIN_BIN.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
from program import take_program

ORTRAIN = os.environ.get("ORTRAIN_BIN", "")


class FixedBatch(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ortrain-batch-")
        self.addCleanup(shutil.rmtree, self.dir)

    def run_it(self, *args, status=0):
        done = subprocess.run([ORTRAIN, *args], cwd=self.dir, capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def flags(self, path, batch):
        name = os.path.basename(path).split("_b")[0]
        shutil.copy(os.path.join(HERE, name + ".npz"), os.path.join(self.dir, "all.npz"))
        stored = dict(np.load(os.path.join(HERE, name + ".npz")))
        key = onnx.load(path).graph.input[0].name
        np.savez(os.path.join(self.dir, "d.npz"), **{key: stored["x"], "labels": stored["labels"]})
        return stored, ["--data", "d.npz", "--batch-size", str(batch), "--rebatch"]

    def check(self, path):
        grads = dict(np.load(path.replace(".onnx", ".npz")))
        for batch in (5, 3, 1):
            stored, flags = self.flags(path, batch)
            self.run_it("predict", path, *flags, "--out", "p.npz")
            np.testing.assert_allclose(np.load(os.path.join(self.dir, "p.npz"))["logits"], stored["logits"], atol=2e-5)
        stored, flags = self.flags(path, 5)
        self.run_it("grads", path, *flags, "--precision", "fp64", "--out", "g.npz")
        got = dict(np.load(os.path.join(self.dir, "g.npz")))
        self.assertLess(abs(got["loss"] - stored["loss"]), 1e-6)
        self.assertGreaterEqual(len(grads), 1)
        for key, want in grads.items():
            np.testing.assert_allclose(got[key.removeprefix("grad/")], want, atol=1e-6, err_msg=key)

    def test_every_file_computes_what_torch_does(self):
        files = [f for f in sorted(glob.glob(os.path.join(HERE, "*.onnx"))) if "refuse" not in f]
        self.assertEqual(len(files), 16)
        for path in files:
            with self.subTest(os.path.basename(path)):
                self.check(path)

    def test_trains_with_a_short_last_batch_and_exports(self):
        path = os.path.join(HERE, "vit_b1_ts.onnx")
        stored, flags = self.flags(path, 3)
        text = self.run_it(path, *flags, "--epochs", "3", "--out", "run")
        self.assertIn("--rebatch: any batch in place of 1", text)
        # The export keeps the file's batch of one: each sample alone gives what the run computes.
        model = onnx.load(os.path.join(self.dir, "run", "model.onnx"))
        self.assertEqual(model.graph.input[0].type.tensor_type.shape.dim[0].dim_value, 1)
        self.run_it("predict", "run/model.onnx", *flags, "--out", "p.npz")
        got, one = np.load(os.path.join(self.dir, "p.npz"))["logits"], ReferenceEvaluator(model)
        for x, y in zip(stored["x"], got):
            np.testing.assert_allclose(one.run(None, {model.graph.input[0].name: x[None]})[0][0], y, atol=2e-5)

    def test_samples_that_meet_are_refused(self):
        for name, node in (("refuse_centred_b1_dynamo", "ReduceMean"), ("refuse_centred_b2_ts", "ReduceMean"),
                           ("refuse_first_b1_dynamo", ""), ("refuse_first_b2_ts", "Gather")):
            path = os.path.join(HERE, name + ".onnx")
            _, flags = self.flags(path, 5)
            text = self.run_it("predict", path, *flags, "--out", "p.npz", status=1)
            self.assertIn("--rebatch", text)
            self.assertIn(node, text)

    def test_without_the_flag_the_batch_stays(self):
        path = os.path.join(HERE, "vit_b2_ts.onnx")
        _, flags = self.flags(path, 5)
        self.assertIn("--rebatch", self.run_it("predict", path, *flags[:-1], "--out", "p.npz", status=1))


if __name__ == "__main__":
    ORTRAIN = take_program(ORTRAIN)
    unittest.main()
