#!/usr/bin/env python3
# ctest-timeout: 300
"""--reset-head on the digits model and on small graphs, seen from outside: what trains, what the export holds.

Witnesses: onnx's checker and reference evaluator for the exported files, PyTorch's formula of the initial
values (uniform in +-1/sqrt(fan_in)).
"""
import os
import shutil
import subprocess
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

BIN = os.environ["ORTRAIN_BIN"]
CASES = os.path.join(os.environ["ORTRAIN_SOURCE"], "tests", "golden", "cnn_digits")


def held(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


class ResetHead(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ortrain-head-")
        self.addCleanup(shutil.rmtree, self.dir)
        digits = np.load(os.path.join(CASES, "train.npz"))
        low = digits["labels"] < 3
        np.savez(self.path("three.npz"), x=digits["x"][low], labels=digits["labels"][low])

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def run_it(self, *args, status=0):
        done = subprocess.run([BIN, *args], cwd=self.dir, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def digits(self, out, *extra, file="model.onnx", flag="logits=3"):
        return self.run_it(os.path.join(CASES, file), "--data", "three.npz", "--reset-head", flag, "--out", out, *extra)

    def save(self, name, nodes, tensors, output, opset=17, data_file=None):
        """A model of input x [b, 4]; tensors are random of the given shapes, or arrays."""
        rng = np.random.default_rng(5)
        arrays = {k: v if isinstance(v, np.ndarray) else rng.standard_normal(v).astype(np.float32) for k, v in tensors.items()}
        graph = helper.make_graph([helper.make_node(op, i, [o], **a) for op, i, o, a in nodes], "g",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
                                  [numpy_helper.from_array(v, k) for k, v in arrays.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        external = {"save_as_external_data": True, "location": data_file, "size_threshold": 0} if data_file else {}
        onnx.save(model, self.path(name), **external)
        x = np.random.default_rng(6).standard_normal((9, 4)).astype(np.float32)
        np.savez(self.path("x.npz"), x=x, labels=np.arange(9) % 2)

    def train_small(self, flag, status=0, loss="cross_entropy"):
        return self.run_it("m.onnx", "--data", "x.npz", "--loss", loss, "--steps", "2", "--reset-head", flag, "--out", "run",
                           status=status)

    def test_digits_to_three_classes(self):
        for file in ("model.onnx", "model_ts.onnx"):
            out = "run-" + file
            self.digits(out, "--epochs", "12", "--lr", "0.01", file=file)
            model = onnx.load(self.path(out, "model.onnx"))
            onnx.checker.check_model(model, full_check=True)
            self.assertEqual(model.graph.output[0].type.tensor_type.shape.dim[1].dim_value, 3)
            self.assertIn("3 classes, was 10", {p.key: p.value for p in model.metadata_props}["ortrain.head"])
            tensors = held(self.path(out, "model.onnx"))
            self.assertEqual((tensors["fc2.weight"].shape, tensors["fc2.bias"].shape), ((3, 32), (3,)))
            data = np.load(self.path("three.npz"))
            logits = ReferenceEvaluator(model).run(None, {"x": data["x"]})[0]
            self.assertEqual(logits.shape, (len(data["x"]), 3))
            self.assertGreater(np.mean(logits.argmax(1) == data["labels"]), 0.95)
            self.run_it("predict", out + "/model.onnx", "--data", "three.npz", "--out", "p.npz")
            np.testing.assert_allclose(np.load(self.path("p.npz"))["logits"], logits, atol=2e-5)
            self.run_it(out + "/model.onnx", "--data", "three.npz", "--steps", "2")  # trains on, without the flag

    def test_initial_values_are_torchs_and_seeded(self):
        for seed in ("1", "1", "2"):
            out = f"run{len(os.listdir(self.dir))}"
            self.digits(out, "--steps", "1", "--lr", "0", "--seed", seed, "--optimizer", "sgd", flag="logits=400")
        a, b, c = (held(self.path(d, "model.onnx")) for d in sorted(os.listdir(self.dir)) if d.startswith("run"))
        bound = 1 / np.sqrt(32)
        for name in ("fc2.weight", "fc2.bias"):
            w = a[name]
            np.testing.assert_array_equal(w, b[name])
            self.assertFalse(np.array_equal(w, c[name]))
            self.assertLessEqual(np.abs(w).max(), bound)
            self.assertLess(abs(w.std() / (bound / np.sqrt(3)) - 1), 0.05)
            self.assertLess(abs(w.mean()), 0.02)
        initial = held(os.path.join(CASES, "model.onnx"))
        np.testing.assert_array_equal(a["fc1.weight"], initial["fc1.weight"])

    def test_resume_is_the_same_run(self):
        self.digits("whole", "--steps", "8")
        self.digits("split", "--steps", "4", "--schedule", "constant")
        self.digits("split", "--steps", "8", "--resume")
        a, b = (held(self.path(d, "model.onnx")) for d in ("whole", "split"))
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
        self.run_it("export", os.path.join(CASES, "model.onnx"), "--run", "split", "--out", "e.onnx")
        np.testing.assert_array_equal(held(self.path("e.onnx"))["fc2.weight"], a["fc2.weight"])

    def test_through_softmax_and_transposed_weight(self):
        self.save("m.onnx", [("Transpose", ["w"], "wt", {}), ("MatMul", ["x", "wt"], "m", {}), ("Add", ["bias", "m"], "s", {}),
                             ("Unsqueeze", ["s", "one"], "u", {}), ("Squeeze", ["u", "one"], "q", {}), ("Softmax", ["q"], "y", {})],
                  {"w": (6, 4), "bias": (6,), "one": np.array([1])}, ["b", 6])
        self.train_small("y=2")
        tensors = held(self.path("run", "model.onnx"))
        self.assertEqual((tensors["w"].shape, tensors["bias"].shape), ((2, 4), (2,)))
        y = ReferenceEvaluator(self.path("run", "model.onnx")).run(None, {"x": np.load(self.path("x.npz"))["x"]})[0]
        np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
        self.assertEqual(y.shape, (9, 2))

    def test_external_data(self):
        self.save("m.onnx", [("Gemm", ["x", "w1"], "h", {}), ("Tanh", ["h"], "t", {}), ("Gemm", ["t", "w2"], "y", {})],
                  {"w1": (4, 5), "w2": (5, 6)}, ["b", 6], data_file="m.bin")
        self.train_small("y=2")
        model = onnx.load(self.path("run", "model.onnx"))
        onnx.checker.check_model(self.path("run", "model.onnx"))
        self.assertEqual({t.name: list(t.dims) for t in model.graph.initializer}, {"w1": [4, 5], "w2": [5, 2]})
        self.run_it("predict", "run/model.onnx", "--data", "x.npz", "--out", "p.npz")
        self.assertEqual(np.load(self.path("p.npz"))["y"].shape, (9, 2))

    def test_refusals(self):
        for flag, parts in (("logit=3", ("did you mean 'logits'",)), ("logits", ("OUTPUT=CLASSES",)), ("logits=0", ("OUTPUT=CLASSES",))):
            text = self.run_it("inspect", os.path.join(CASES, "model.onnx"), "--reset-head", flag, status=2)
            for part in parts:
                self.assertIn(part, text)
        tied = [("Gemm", ["x", "w"], "h", {}), ("Gemm", ["h", "w"], "y", {})]
        built_in = [("Gemm", ["x", "w"], "h", {}), ("Reshape", ["h", "shape"], "y", {})]
        for nodes, why in ((tied, "used 2 times"), (built_in, "built in"),
                           ([("Gemm", ["x", "w"], "h", {}), ("Relu", ["h"], "y", {})], "computed by Relu"),
                           ([("MatMul", ["x", "x2"], "y", {})], "no weight")):
            nodes = [("Gemm", ["x", "w"], "x2", {})] * ("x2" in nodes[0][1]) + nodes
            self.save("m.onnx", nodes, {"w": (4, 4), "shape": np.array([-1, 4])}, None)
            self.assertIn(why, self.train_small("y=2", status=1))


if __name__ == "__main__":
    unittest.main()
