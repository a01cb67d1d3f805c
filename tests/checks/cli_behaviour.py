#!/usr/bin/env python3
# ctest-timeout: 900
"""What the program does with bad input, interruptions and settings, seen from outside.

Each test runs $ORTRAIN_BIN as a user would and looks at exit status, messages and files. Kill tests use
KILLS random instants (default 8; the full count of 50: KILLS=50). Models are built here with onnx.
"""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BIN = os.environ["ORTRAIN_BIN"]
SOURCE = os.environ["ORTRAIN_SOURCE"]
KILLS = int(os.environ.get("KILLS", "8"))
DIGITS = os.path.join(SOURCE, "models", "digits")


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, content):
    with open(path, "wb") as f:
        f.write(content)


def mlp(path, nodes=None, extra=(), inputs=None, metadata=None):
    """x[batch,4] -> Gemm -> Relu -> Gemm -> logits[batch,3], or the given nodes."""
    rng = np.random.default_rng(7)
    tensors = {"w1": rng.standard_normal((8, 4)), "b1": np.zeros(8), "w2": rng.standard_normal((3, 8)), "b2": np.zeros(3)}
    inits = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tensors.items()] + list(extra)
    nodes = nodes or [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "fc1", transB=1),
                      helper.make_node("Relu", ["h"], ["r"], "act"),
                      helper.make_node("Gemm", ["r", "w2", "b2"], ["logits"], "fc2", transB=1)]
    inputs = inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    out = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, out, inits), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    for k, v in (metadata or {}).items():
        model.metadata_props.add(key=k, value=v)
    onnx.save(model, path)
    return model


def data(path, samples=64, **arrays):
    rng = np.random.default_rng(3)
    base = {"x": rng.standard_normal((samples, 4)).astype(np.float32), "labels": rng.integers(0, 3, samples)}
    base.update(arrays)
    np.savez(path, **{k: v for k, v in base.items() if v is not None})


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ortrain-cli-")
        self.model, self.npz = os.path.join(self.dir, "m.onnx"), os.path.join(self.dir, "train.npz")
        mlp(self.model)
        data(self.npz)

    def tearDown(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def run_it(self, *args, **more):
        return subprocess.run([BIN, *args], cwd=self.dir, capture_output=True, text=True, timeout=120, **more)

    def refused(self, status, *words, args=(), **more):
        """The command ends with `status` and one message that holds all words."""
        done = self.run_it(*(args or ("m.onnx", "--data", "train.npz")), **more)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for w in words:
            self.assertIn(w, done.stderr)
        self.assertTrue(done.stderr.startswith("ortrain: "), done.stderr)
        return done.stderr


class BadFiles(Case):
    def test_truncated_model(self):
        whole = read(self.model)
        for n in (0, 1, 7, len(whole) // 2, len(whole) - 1):
            write(self.model, whole[:n])
            self.refused(1, "m.onnx")

    def test_random_bytes(self):
        for seed in range(8):
            write(self.model, random.Random(seed).randbytes(3000))
            self.refused(1, "m.onnx")

    def test_cycle(self):
        mlp(self.model, [helper.make_node("Add", ["x", "b"], ["a"], "one"), helper.make_node("Relu", ["a"], ["b"], "two"),
                         helper.make_node("Gemm", ["b", "w1"], ["logits"], "three", transB=1)])
        self.refused(1, "cycle", "one")

    def test_missing_tensor(self):
        mlp(self.model, [helper.make_node("Gemm", ["x", "nowhere"], ["logits"], "fc", transB=1)])
        self.refused(1, "nowhere", "fc")

    def test_wrong_rank(self):
        mlp(self.model, [helper.make_node("Gemm", ["x", "b1"], ["logits"], "fc", transB=1)])
        self.refused(1, "fc")

    def test_all_unsupported_operators_are_listed(self):
        mlp(self.model, [helper.make_node("Frobnicate", ["x"], ["a"], "n1"), helper.make_node("Quux", ["a"], ["logits"], "n2")])
        self.refused(1, "Frobnicate", "n1", "Quux", "n2")

    def test_refused_operators_say_why(self):
        mlp(self.model, [helper.make_node("StringNormalizer", ["x"], ["a"], "n1"),
                         helper.make_node("TreeEnsemble", ["a"], ["b"], "n2", domain="ai.onnx.ml"),
                         helper.make_node("Frobnicate", ["b"], ["logits"], "n3")])
        said = self.refused(1, "StringNormalizer (domain ai.onnx, opset 17): refused: it computes on strings", "'n1'",
                            "TreeEnsemble (domain ai.onnx.ml, opset 1): refused: ", "'n2'", "Frobnicate", "'n3'")
        self.assertEqual(said.count("refused"), 2, said)

    def test_element_types_that_an_operator_does_not_have(self):
        for op in ("Softmax", "LayerNormalization", "AveragePool", "Conv"):
            more = {"AveragePool": {"kernel_shape": [1]}}.get(op, {})
            inputs = {"LayerNormalization": ["i", "i"], "Conv": ["i", "i"]}.get(op, ["i"])
            mlp(self.model, [helper.make_node("Cast", ["x"], ["c"], "cast", to=TensorProto.INT64),
                             helper.make_node("Unsqueeze", ["c", "one"], ["i"], "axis"),
                             helper.make_node(op, inputs, ["o"], "ints", **more),
                             helper.make_node("Cast", ["o"], ["f"], "back", to=TensorProto.FLOAT),
                             helper.make_node("Squeeze", ["f", "one"], ["g"], "axis2"),
                             helper.make_node("Gemm", ["g", "w1"], ["logits"], "fc", transB=1)],
                extra=[numpy_helper.from_array(np.array([2], np.int64), "one")])
            done = self.run_it("m.onnx", "--data", "train.npz", "--steps", "1")
            self.assertIn(done.returncode, (0, 1), f"{op}: {done.stderr}")      # never an abort
            self.assertNotIn("internal error", done.stderr, op)

    def test_all_missing_gradients_are_listed(self):
        mlp(self.model, [helper.make_node("Gemm", ["x", "w1"], ["h"], "fc1", transB=1),
                         helper.make_node("ArgMax", ["h"], ["i"], "pick1", axis=1, keepdims=1),
                         helper.make_node("Cast", ["i"], ["c"], "cast1", to=1),
                         helper.make_node("Gemm", ["c", "w3"], ["logits"], "fc2", transB=1)],
            extra=[numpy_helper.from_array(np.ones((3, 1), np.float32), "w3")])
        done = self.run_it("m.onnx", "--data", "train.npz", "--steps", "2")
        self.assertEqual(done.returncode, 0, done.stderr)      # w3 trains; nothing flows through ArgMax

    def test_external_data_stays_in_the_folder(self):
        model = mlp(self.model)
        t = model.graph.initializer[0]
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        for location in ("../secret.bin", "/etc/passwd", "a/../../secret.bin"):
            del t.external_data[:]
            t.external_data.add(key="location", value=location)
            onnx.save(model, self.model)
            self.refused(1, location)

    def test_npz_that_does_not_fit(self):
        data(self.npz, x=None, X=np.zeros((64, 4), np.float32), Y=np.zeros((64, 4), np.float32))
        self.refused(1, "'x'", "X", "--map")
        data(self.npz, x=np.zeros((64, 5), np.float32))
        self.refused(1, "5", "4", "x")
        data(self.npz, x=np.zeros((64, 4), np.complex64))
        self.refused(1, "complex")
        data(self.npz, x=np.zeros((63, 4), np.float32))
        self.refused(1, "63", "64")

    def test_truncated_npz(self):
        whole = read(self.npz)
        for n in (0, 10, len(whole) // 2, len(whole) - 5):
            write(self.npz, whole[:n])
            self.refused(1, "train.npz")

    def test_label_out_of_range(self):
        labels = np.random.default_rng(0).integers(0, 3, 64)
        labels[17] = 9
        data(self.npz, labels=labels)
        self.refused(1, "label 9", "sample 17", "0 to 2")

    def test_no_such_model(self):
        self.refused(1, "nothing.onnx", args=("nothing.onnx",))


class OddFiles(Case):
    """What real exporters write: open sizes as -1, 0 or "?", a fixed batch, weights as one number, a state input."""

    def model_of(self, nodes, inputs, out, inits=(), opset=17):
        model = helper.make_model(helper.make_graph(nodes, "g", inputs, [out], list(inits)), opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        onnx.save(model, self.model)

    def floats(self, name, dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    def fine(self, *args):
        done = self.run_it(*args)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_open_sizes(self):
        for size in (-1, 0, "?"):
            mlp(self.model, inputs=[self.floats("x", [size, 4])])
            self.fine("m.onnx", "--data", "train.npz", "--steps", "2", "--out", f"run{size}".replace("?", "q"))

    def test_question_marks_are_not_one_size(self):
        w = numpy_helper.from_array(np.full((3, 1, 3, 3), 0.1, np.float32), "w")
        self.model_of([helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("GlobalAveragePool", ["c"], ["p"]),
                       helper.make_node("Flatten", ["p"], ["logits"])],
                      [self.floats("x", ["?", 1, "?", "?"])], self.floats("logits", ["?", 3]), [w])
        np.savez(self.npz, x=np.ones((8, 1, 5, 7), np.float32), labels=np.arange(8) % 3)
        self.fine("m.onnx", "--data", "train.npz", "--steps", "2")

    def test_fixed_batch_predicts_all_samples(self):
        mlp(self.model, inputs=[self.floats("x", [1, 4])])
        self.fine("predict", "m.onnx", "--data", "train.npz", "--out", "p.npz")
        self.assertEqual(np.load(os.path.join(self.dir, "p.npz"))["logits"].shape, (64, 3))

    def test_weights_as_one_number(self):
        shape = numpy_helper.from_array(np.array([3, 4], np.int64), "shape")
        fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
        self.model_of([helper.make_node("ConstantOfShape", ["shape"], ["w"], value=fill), helper.make_node("Gemm", ["x", "w"], ["logits"], transB=1)],
                      [self.floats("x", ["b", 4])], self.floats("logits", ["b", 3]), [shape])
        out = self.fine("m.onnx", "--data", "train.npz", "--steps", "3", "--lr", "0.1", "--out", "run")
        self.assertIn("12 parameters", out)
        trained = onnx.load(os.path.join(self.dir, "run", "model.onnx"))
        onnx.checker.check_model(trained)
        w = {t.name: numpy_helper.to_array(t) for t in trained.graph.initializer}["w"]
        self.assertEqual(w.shape, (3, 4))
        self.assertFalse((w == 0.5).any())
        self.fine("eval", "run/model.onnx", "--data", "train.npz")

    def test_merged_scales_export(self):
        """TorchScript's exporter keeps one of two equal tensors; trained, both are in the file again."""
        one = numpy_helper.from_array(np.ones(4, np.float32), "s1")
        w = numpy_helper.from_array(np.full((3, 4), 0.1, np.float32), "w")
        self.model_of([helper.make_node("Identity", ["s1"], ["s2"]), helper.make_node("Mul", ["x", "s1"], ["a"]),
                       helper.make_node("Tanh", ["a"], ["t"]), helper.make_node("Mul", ["t", "s2"], ["m"]),
                       helper.make_node("Gemm", ["m", "w"], ["logits"], transB=1)],
                      [self.floats("x", ["b", 4])], self.floats("logits", ["b", 3]), [one, w])
        self.fine("m.onnx", "--data", "train.npz", "--steps", "3", "--lr", "0.1", "--out", "run")
        held = {t.name: numpy_helper.to_array(t) for t in onnx.load(os.path.join(self.dir, "run", "model.onnx")).graph.initializer}
        self.assertFalse(np.array_equal(held["s1"], held["s2"]))

    def test_state_input_is_given_once(self):
        """state [1,4] is the same in every batch, also when the data has one sample per row of x."""
        w = numpy_helper.from_array(np.full((3, 4), 0.1, np.float32), "w")
        self.model_of([helper.make_node("Add", ["x", "state"], ["a"]), helper.make_node("Gemm", ["a", "w"], ["logits"], transB=1)],
                      [self.floats("x", ["b", 4]), self.floats("state", [1, 4])], self.floats("logits", ["b", 3]), [w])
        state = np.array([[1, 2, 3, 4]], np.float64)
        data(self.npz, samples=10, state=state)
        self.fine("predict", "m.onnx", "--data", "train.npz", "--batch-size", "4", "--out", "p.npz")
        x = np.load(self.npz)["x"]
        np.testing.assert_allclose(np.load(os.path.join(self.dir, "p.npz"))["logits"], np.repeat((x + state).sum(1, keepdims=True) * 0.1, 3, 1), rtol=1e-5)
        self.fine("m.onnx", "--data", "train.npz", "--batch-size", "4", "--epochs", "2")
        data(self.npz, samples=10, state=np.ones((2, 4), np.float32))
        self.refused(1, "state", "[1,4]", "[2,4]", "given once")

    def test_gradients_against_differences(self):
        out = self.fine("grads", "m.onnx", "--data", "train.npz", "--precision", "fp64", "--check", "3", "--out", "g.npz")
        self.assertEqual(out.count("relative difference"), 4)
        self.refused(2, "--precision fp64", args=("grads", "m.onnx", "--data", "train.npz", "--check", "3", "--out", "g.npz"))


class Inspect(Case):
    """What would train and what would not; every obstacle in one message, with exit status 1."""

    def obstacles(self):
        mlp(self.model, [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "fc1", transB=1),
                         helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"], "quant1"),
                         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequant1"),
                         helper.make_node("Gemm", ["d", "w2", "b2"], ["logits"], "fc2", transB=1)])

    def test_without_data(self):
        done = self.run_it("inspect", "m.onnx")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("w1", "b1", "w2", "b2"):
            self.assertRegex(done.stdout, rf"train +{name} ")
        self.assertIn("67 parameters in 4 tensors train", done.stdout)
        done = self.run_it("inspect", "m.onnx", "--freeze", "w1")
        self.assertRegex(done.stdout, r"fixed +w1 .*frozen by --freeze")

    def test_train_wins_over_looks_with_and_without_data(self):
        mask = numpy_helper.from_array(np.ones(4, np.float32), "attn_mask")
        mlp(self.model, [helper.make_node("Mul", ["x", "attn_mask"], ["m"], "mask"),
                         helper.make_node("Gemm", ["m", "w2", "b2"], ["logits"], "fc2", transB=1)], extra=[mask])
        w2 = numpy_helper.from_array(np.ones((3, 4), np.float32), "w2")
        model = onnx.load(self.model)
        for t in model.graph.initializer:
            if t.name == "w2":
                t.CopyFrom(w2)
        onnx.save(model, self.model)
        for extra in ((), ("--data", "train.npz")):
            done = self.run_it("inspect", "m.onnx", *extra)
            self.assertRegex(done.stdout, r"attn_mask .*looks like a buffer", done.stderr)
            done = self.run_it("inspect", "m.onnx", "--train", "mask", *extra)
            self.assertRegex(done.stdout, r"train +attn_mask .*named by --train", done.stderr)

    def test_obstacles_without_data(self):
        self.obstacles()
        done = self.run_it("inspect", "m.onnx")
        self.assertEqual(done.returncode, 1, done.stdout)
        for words in ("train +w1", "train +w2", "stops the gradient: DynamicQuantizeLinear 'quant1': input 'x': "):
            self.assertRegex(done.stdout, words)
        self.assertIn("cannot be trained as it is", done.stderr)
        done = self.run_it("inspect", "m.onnx", "--freeze", "1$")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_obstacles_with_data(self):
        self.obstacles()
        done = self.run_it("inspect", "m.onnx", "--data", "train.npz")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"train +w2")        # the list comes before the refusal
        self.assertIn("DynamicQuantizeLinear 'quant1': input 'x': ", done.stderr)

    def test_unsupported_operators(self):
        mlp(self.model, [helper.make_node("StringSplit", ["x"], ["a", "b"], "n1"),
                         helper.make_node("Quux", ["a"], ["logits"], "n2")])
        self.refused(1, "StringSplit", "'n1'", "strings", "Quux", "'n2'", args=("inspect", "m.onnx"))


class Usage(Case):
    def test_no_data_names_the_next_command(self):
        self.refused(2, "x  f32", "ortrain m.onnx --data train.npz", args=("m.onnx",))

    def test_unknown_flag(self):
        self.refused(2, "--optimzer", "--optimizer", args=("m.onnx", "--optimzer", "sgd"))

    def test_bad_value(self):
        self.refused(2, "--lr", "fast", args=("m.onnx", "--lr", "fast"))
        self.refused(2, "sgd, adam, adamw", args=("m.onnx", "--optimizer", "adammw"))

    def test_recipe_order(self):
        mlp(self.model, metadata={"ortrain.recipe": 'lr = 0.5\nmomentum = 0.25\noptimizer = "sgd"\n'})
        write(os.path.join(self.dir, "m.toml"), "lr = 0.125\nbatch_size = 16\n".encode())
        done = self.run_it("m.onnx", "--batch-size", "8", "--print-config")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {l.split(" = ")[0]: l for l in done.stdout.splitlines() if " = " in l}
        self.assertIn("0.25", rows["momentum"])
        self.assertIn("ortrain.recipe", rows["momentum"])
        self.assertIn("0.125", rows["lr"])
        self.assertIn("m.toml", rows["lr"])
        self.assertIn("8", rows["batch-size"])
        self.assertIn("--batch-size", rows["batch-size"])
        self.assertIn("default", rows["dampening"])

    def test_unknown_recipe_key(self):
        write(os.path.join(self.dir, "m.toml"), "learning_rate = 1\n".encode())
        self.refused(2, "learning-rate", "m.toml")

    def test_unwritable_output(self):
        self.refused(1, "/proc/nowhere", args=("m.onnx", "--data", "train.npz", "--out", "/proc/nowhere"))

    def test_run_folder_is_not_overwritten(self):
        args = ("m.onnx", "--data", "train.npz", "--steps", "3", "--out", "run")
        self.assertEqual(self.run_it(*args).returncode, 0)
        self.refused(2, "--resume", args=args)

    def test_full_disk(self):
        # A file-size limit stands for the full disk: writes fail with an error, nothing is killed.
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        done = self.run_it("m.onnx", "--data", "train.npz", "--steps", "3", "--out", "run", preexec_fn=limit)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "run", "model.onnx")))


class Training(Case):
    def test_nan_stops_and_names_the_node(self):
        x = np.random.default_rng(3).standard_normal((64, 4)).astype(np.float32)
        x[40, 2] = np.nan
        data(self.npz, x=x)
        args = ("m.onnx", "--data", "train.npz", "--batch-size", "8", "--shuffle", "none", "--checkpoint-every", "2", "--out", "run")
        text = self.refused(1, "NaN", "step 6", "fc1", args=args)
        self.assertIn("step-000004", text)
        self.assertTrue(os.path.exists(os.path.join(self.dir, "run", "checkpoints", "step-000004", "manifest.json")))

    def test_nan_can_be_skipped(self):
        x = np.random.default_rng(3).standard_normal((64, 4)).astype(np.float32)
        x[40, 2] = np.nan
        data(self.npz, x=x)
        done = self.run_it("m.onnx", "--data", "train.npz", "--batch-size", "8", "--shuffle", "none", "--on-nan", "skip",
                           "--out", "run")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(l) for l in read(os.path.join(self.dir, "run", "run.jsonl")).splitlines()]
        self.assertEqual([r["step"] for r in rows if r.get("skipped")], [6])
        for t in onnx.load(os.path.join(self.dir, "run", "model.onnx")).graph.initializer:
            self.assertTrue(np.isfinite(numpy_helper.to_array(t)).all(), t.name)

    def test_names_and_metadata_come_back(self):
        mlp(self.model, metadata={"author": "somebody"})
        self.assertEqual(self.run_it("m.onnx", "--data", "train.npz", "--steps", "5", "--out", "run").returncode, 0)
        before, after = onnx.load(self.model), onnx.load(os.path.join(self.dir, "run", "model.onnx"))
        onnx.checker.check_model(after)
        self.assertEqual(before.graph.node, after.graph.node)
        self.assertIn("author", [p.key for p in after.metadata_props])
        for a, b in zip(before.graph.initializer, after.graph.initializer):
            self.assertEqual((a.name, list(a.dims), a.data_type), (b.name, list(b.dims), b.data_type))
            self.assertFalse(np.array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b)), a.name + " did not move")

    def test_averages_are_exported(self):
        """--ema: both exports hold the averages of the checkpoint and say so; groups may repeat."""
        from safetensors.numpy import load_file
        done = self.run_it("m.onnx", "--data", "train.npz", "--ema", "0.9", "--out", "run", "--optimizer", "lion",
                           "--group", "^b:lr-factor=2", "--group", "^w:weight-decay=0.1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("note: group ^b: 2 tensors", done.stdout)
        self.assertIn("note: group ^w: 2 tensors", done.stdout)
        again = self.run_it("export", "m.onnx", "--run", "run", "--out", "again.onnx")
        self.assertEqual(again.returncode, 0, again.stderr)
        newest = sorted(os.listdir(os.path.join(self.dir, "run/checkpoints")))[-1]
        states = load_file(os.path.join(self.dir, "run/checkpoints", newest, "optimizer.safetensors"))
        seen = 0
        for path in ("run/model.onnx", "again.onnx"):
            model = onnx.load(os.path.join(self.dir, path))
            said = {p.key: p.value for p in model.metadata_props}
            self.assertIn("averages", said["ortrain.weights"])
            for t in model.graph.initializer:
                if t.name + "/ema" in states:
                    seen += 1
                    self.assertTrue((numpy_helper.to_array(t) == states[t.name + "/ema"]).all(), t.name)
        self.assertEqual(seen, 8)

    def test_safetensors_open_in_python(self):
        from safetensors.numpy import load_file
        self.assertEqual(self.run_it("m.onnx", "--data", "train.npz", "--steps", "5", "--out", "run").returncode, 0)
        done = self.run_it("export", "m.onnx", "--run", "run", "--out", "w.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors = load_file(os.path.join(self.dir, "w.safetensors"))
        for t in onnx.load(os.path.join(self.dir, "run", "model.onnx")).graph.initializer:
            np.testing.assert_array_equal(tensors[t.name], numpy_helper.to_array(t))


class Interruptions(unittest.TestCase):
    """Ctrl-C or kill -9 at any instant, then --resume: bit for bit the run that was never stopped."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ortrain-kill-")
        for f in ("model.onnx", "train.npz", "test.npz"):
            shutil.copy(os.path.join(DIGITS, f), self.dir)
        self.args = [BIN, "model.onnx", "--data", "train.npz", "--eval-data", "test.npz", "--loss", "cross_entropy", "--epochs", "2",
                     "--batch-size", "32", "--clip-norm", "1", "--schedule", "cosine", "--warmup", "10", "--checkpoint-every", "7",
                     "--threads", "1"]
        self.whole = self.finish("straight")

    def tearDown(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def finish(self, out, *more):
        start = time.monotonic()
        done = subprocess.run([*self.args, "--out", out, *more], cwd=self.dir, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.seconds = time.monotonic() - start
        return {t.name: numpy_helper.to_array(t).tobytes() for t in onnx.load(os.path.join(self.dir, out, "model.onnx")).graph.initializer}

    def interrupt(self, out, sig, delay):
        p = subprocess.Popen([*self.args, "--out", out, "--resume"], cwd=self.dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        p.send_signal(sig)
        return p.wait(timeout=60)

    def same(self, out):
        self.assertEqual(self.whole, self.finish(out, "--resume"))
        steps = [r["step"] for r in map(json.loads, read(os.path.join(self.dir, out, "run.jsonl")).splitlines()) if "eval" not in r]
        self.assertEqual(steps, list(range(1, 91)))

    def test_sigint(self):
        status = self.interrupt("run", signal.SIGINT, self.seconds * 0.5)
        self.assertIn(status, (130, 0))
        self.same("run")

    def test_sigkill(self):
        rng = random.Random(2024)
        for k in range(KILLS):
            with self.subTest(kill=k):
                self.interrupt(f"kill{k}", signal.SIGKILL, rng.uniform(0, self.seconds * 1.1))
                self.same(f"kill{k}")
                shutil.rmtree(os.path.join(self.dir, f"kill{k}"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
