#!/usr/bin/env python3
# ctest-timeout: 300
"""Trains the models of bugs that other programs had and holds ortrain to the right numbers (README.md).

  python3 bugs_check.py [--ortrain PATH] [H01 ...]

The program is --ortrain or $ORTRAIN_BIN. Each folder's test also compares against the unmoved weights
or the wrong numbers where expect.json gives them, so that a comparison that cannot fail is noticed.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
from program import take_program

ORTRAIN = os.environ.get("ORTRAIN_BIN", "")


def tensors(path):
    """{name: array} of the initializers and Constant nodes of a file."""
    graph = onnx.load(path).graph
    held = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            held[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return held


class Bugs(unittest.TestCase):
    def setUp(self):
        self.id = self._testMethodName[5:8]
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        shutil.copytree(os.path.join(HERE, self.id), self.dir, dirs_exist_ok=True)
        with open(os.path.join(self.dir, "expect.json")) as f:
            self.expect = json.load(f)
        self.tolerance = self.expect["tol"]

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def run_it(self, *args, status=0):
        done = subprocess.run([ORTRAIN, *args], cwd=self.dir, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def flags(self, data="data.npz", batch=None):
        run = self.expect["run"]
        loss = "mse" if run["loss"].startswith("mse") else "cross_entropy"
        return ["--data", data, "--loss", loss, "--shuffle", "none", "--batch-size", str(batch or run["batch"])]

    def train(self, *extra, model="model.onnx", out="run", batch=None, steps=1, data="data.npz"):
        """Losses of the steps; the trained model is OUT/model.onnx."""
        self.run_it(model, *self.flags(data, batch), "--optimizer", "sgd", "--lr", repr(self.expect["run"]["lr"]),
                    "--steps", str(steps), "--out", out, *extra)
        with open(self.path(out, "run.jsonl")) as f:
            return [r["loss"] for r in map(json.loads, f) if "loss" in r]

    def grads(self, *extra, model="model.onnx", batch=None, data="data.npz"):
        self.run_it("grads", model, *self.flags(data, batch), "--out", "g.npz", *extra)
        grads = dict(np.load(self.path("g.npz")))
        grads.pop("loss", None)
        return grads

    def near(self, got, want, what):
        np.testing.assert_allclose(got, np.asarray(want), **self.tolerance, err_msg=what)

    def hold(self, right, model="model.onnx", extra=(), names=None, out="run"):
        """Loss, gradients and trained values of one step; returns the tensors of the trained file."""
        before = tensors(self.path(model))
        losses = self.train(*extra, model=model, out=out)
        self.near(losses[0], right["loss"], "loss")
        grads, after = self.grads(*extra, model=model), tensors(self.path(out, "model.onnx"))
        names = names or right.get("parameters") or sorted(right["grad"])
        self.assertEqual(sorted(grads), sorted(names), "what trains")
        for name in names:
            self.near(grads[name], right["grad"][name], f"gradient of {name}")
            self.near(after[name], right["after"][name], f"{name} after training")
            self.assertFalse(np.allclose(before[name], right["after"][name], **self.tolerance), "a step that moves nothing")
        return after

    def test_H01_weights_in_constant_nodes(self):
        right = self.expect["right"]
        self.assertIn(f"{right['parameter_count']} parameters in 4 tensors", self.run_it("inspect", "model.onnx"))
        self.hold(right)

    def test_H02_tied(self):
        after = self.hold(self.expect["right"]["tied"])
        self.assertEqual([a.shape for a in after.values()], [(5, 3)])

    def test_H02_equal_tensors_stay_two(self):
        self.hold(self.expect["right"]["untied"], model="model_untied.onnx")

    def test_H02_tie_restores_one(self):
        """--tie makes the untied file train like the tied one; both tensors are written."""
        for tie in ("auto", "E=Et"):
            after = self.hold(self.expect["right"]["tied"], model="model_untied.onnx", extra=("--tie", tie), out="run-" + tie)
            np.testing.assert_array_equal(after["E"], after["Et"].T)

    def test_H03_broadcast_factor(self):
        right = self.expect["right"]
        self.hold(right)
        held = {n: a.astype(np.float64) for n, a in tensors(self.path("model.onnx")).items()}
        data = np.load(self.path("data.npz"))
        x, t = (data[k][:1, :1].astype(np.float64) for k in ("x", "target"))
        np.savez(self.path("one.npz"), x=x.astype(np.float32), target=t.astype(np.float32))
        grads = self.grads(data="one.npz", batch=1)
        h = x @ held["A"]
        dy = 2 * (h @ held["v"] - t)  # one element: the mean is over one
        self.near(grads["v"], (h * dy[..., None]).sum((0, 1)), "v at batch 1, length 1")
        self.near(grads["A"], np.einsum("bsi,bs,j->ij", x, dy, held["v"])[None], "A at batch 1, length 1")
        for name, shape in right["grad_shapes"].items():
            self.assertEqual(list(grads[name].shape), shape)

    def test_H04_reciprocal(self):
        self.hold(self.expect["right"], names=["w"])

    def test_H05_outputs_left_out(self):
        self.hold(self.expect["right"])

    def test_H11_labels_out_of_range(self):
        flags = ["--optimizer", "sgd", "--lr", "0.1", "--steps", "1"]
        text = self.run_it("model.onnx", *self.flags(), *flags, "--out", "bad", status=1)
        for part in self.expect["right"]["message_has"]:
            self.assertIn(part, text)
        text = self.run_it("model.onnx", *self.flags("data_negative.npz", 2), *flags, "--out", "bad", status=1)
        for part in ("sample 1", "label -1"):
            self.assertIn(part, text)
        self.assertFalse(os.path.exists(self.path("bad", "model.onnx")))
        self.train(data="data_int32.npz", batch=2, out="good")
        self.assertFalse(np.array_equal(tensors(self.path("good", "model.onnx"))["W"], tensors(self.path("model.onnx"))["W"]))

    def external(self, model):
        """(location, offset, length) of every external tensor, checked to lie inside and apart."""
        places = []
        for t in onnx.load(model, load_external_data=False).graph.initializer:
            e = {p.key: p.value for p in t.external_data}
            if e:
                places.append((e["location"], int(e["offset"]), int(e["length"])))
        ends = {}
        for location, offset, length in sorted(places):
            self.assertGreaterEqual(offset, ends.get(location, 0), "two tensors overlap")
            ends[location] = offset + length
            self.assertLessEqual(ends[location], os.path.getsize(os.path.join(os.path.dirname(model), location)))
        return places

    def sizes(self, folder):
        """Of the model and its data; logs and the report of a run may grow."""
        return {n: os.path.getsize(os.path.join(folder, n)) for n in sorted(os.listdir(folder))
                if os.path.isfile(os.path.join(folder, n))
                and not n.endswith((".jsonl", ".toml", ".json", ".html")) and ".tfevents." not in n}

    def test_H13_external_data_does_not_grow(self):
        """That a kill at any instant leaves one whole model is tests/importers/onnx_export_test.cc."""
        flags = ["--data", "data.npz", "--loss", "cross_entropy", "--batch-size", "8", "--out", "out"]
        self.run_it("model.onnx", *flags, "--steps", "1")
        first, w = self.sizes(self.path("out")), tensors(self.path("out", "model.onnx"))["W"]
        self.run_it("model.onnx", *flags, "--steps", "2", "--resume")
        self.assertEqual(self.sizes(self.path("out")), first)
        self.assertFalse(np.array_equal(tensors(self.path("out", "model.onnx"))["W"], w))
        needed = self.expect["right"]["data_bytes_needed"]
        data = sum(size for name, size in first.items() if not name.endswith(".onnx"))
        self.assertLessEqual(data, needed + 3 * 64)
        self.assertEqual(len(self.external(self.path("out", "model.onnx"))), 2)
        sizes = []
        for _ in range(2):  # over the input files themselves
            self.run_it("export", "model.onnx", "--run", "out", "--out", "model.onnx")
            sizes.append(self.sizes(self.dir))
            self.external(self.path("model.onnx"))
        self.assertEqual(sizes[0], sizes[1])
        self.assertLessEqual(sizes[0]["weights.bin"], needed)
        np.testing.assert_array_equal(tensors(self.path("model.onnx"))["W"], tensors(self.path("out", "model.onnx"))["W"])

    def test_H14_uneven_last_batch(self):
        """Two ranks of one sample are one batch of two; the last one has a sample on one rank only."""
        for steps, want in enumerate(self.expect["right"]["w_after_each_step"], 1):
            self.train(batch=2, steps=steps, out=f"run{steps}")
            got = tensors(self.path(f"run{steps}", "model.onnx"))["w"]
            self.near(got, [want], f"w after step {steps}")
        self.assertGreater(abs(got.item() - self.expect["wrong"]["w_if_halved"]), 0.1)

    def test_H15_fp32_is_fp32(self):
        right = self.expect["right"]["default"]
        self.run_it("predict", "model.onnx", "--data", "data.npz", "--out", "y.npz")
        self.assertEqual(np.load(self.path("y.npz"))["y"].item(), right["y"])
        self.assertEqual(self.grads()["w"].item(), right["grad_w"])
        self.assertEqual(self.train(), [right["loss"]])
        if "tf32" not in self.run_it("--help"):
            return  # there is no such precision to ask for
        losses = self.train("--precision", "tf32", out="tf32")
        self.assertIn(losses[0], (0.0, 1.0), "TF32 that was asked for keeps 10 bits")


if __name__ == "__main__":
    ORTRAIN = take_program(ORTRAIN)
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    unittest.main(argv=[sys.argv[0], *(x for w in wanted for x in ("-k", w))])
