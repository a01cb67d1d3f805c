#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 900
"""Class weights, label smoothing with ignored labels, several losses: runs of $ORTRAIN_BIN against what
PyTorch computed in float64 (tests/golden/policies/make_heads.py). Places of --dropout, repeatable runs."""
import json
import os
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import numpy_helper

SOURCE = os.environ["ORTRAIN_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tests"))
from program import ortrain, weights

GOLDEN = os.path.join(SOURCE, "tests", "golden", "policies")


def rows(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [json.loads(line) for line in f]


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
                    # A batch without a target has no loss (null) and no gradient; the recorded number is 0.
                    got = [0 if r["loss"] is None else r["loss"] for r in steps]
                    np.testing.assert_allclose(got, case["loss"], rtol=tolerance, atol=1e-12)
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

    def test_accumulated_weighted_losses_equal_one_batch(self):
        weighted = "0.5,1,2,3,0.25"
        for flags in (["--loss", "cls:cross_entropy(cls_some)", "--class-weights", weighted],
                      ["--loss", "cls:nll(cls_some)", "--class-weights", weighted],
                      ["--loss", "seg:cross_entropy", "--class-weights", "0.2,1,1.5,4", "--label-smoothing", 0.1]):
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
                for out, sizes in ((a, ["--batch-size", 24]), (b, ["--batch-size", 8, "--accumulate", 3])):
                    ortrain(self.MODEL, "--data", self.DATA, "--out", out, "--optimizer", "sgd", "--lr", 0.2,
                            "--steps", 6, "--shuffle", "none", "--precision", "fp64", *flags, *sizes)
                np.testing.assert_allclose([r["loss"] for r in rows(a)], [r["loss"] for r in rows(b)], rtol=1e-12)

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
                            (["--loss", "cls:cross_entropy", "--class-weights", "1,x"], "'x': expected a number from 0"),
                            (["--loss", "cls:cross_entropy,aux:mse"], "needs an array"),
                            (["--loss", "cls:cross_entropy*"], "'': expected a number from 0")):
            with self.subTest(flags=flags):
                self.assertIn(said, ortrain(*base, *flags, code=None))


def case_of(name):
    folder = os.path.join(SOURCE, "tests", "golden", name)
    with open(os.path.join(folder, "case.json")) as f:
        flags = json.load(f)["flags"]
    return folder, os.path.join(folder, "model.onnx"), flags


def train_case(name, out, *extra):
    folder, model, flags = case_of(name)
    flags = [os.path.join(folder, f) if f.endswith(".npz") else f for f in flags[1:]]
    at = flags.index("--log")
    return ortrain(model, *flags[:at], *flags[at + 2:], "--out", out, *extra)


class Dropout(unittest.TestCase):
    # (transformer blocks or 0, embeddings): nanoGPT and BERT have one Dropout behind the embeddings and
    # two in each of the two blocks; the others one in front of the classifier.
    PLACES = {"gpt_tiny": (2, 1), "bert_tiny": (2, 1), "mlp_digits": (0, 0), "cnn_digits": (0, 0), "resnet_tiny": (0, 0)}

    def test_places_and_export(self):
        for name, (blocks, embeddings) in self.PLACES.items():
            with self.subTest(case=name), tempfile.TemporaryDirectory() as out:
                text = train_case(name, out, "--dropout", "0.25")
                note = next(line for line in text.splitlines() if line.startswith("note: --dropout"))
                self.assertIn("dropout 0.25 added", note)
                for what, count in (("attention's output projection", blocks), ("MLP's last GEMM", blocks),
                                    ("behind the embeddings", embeddings), ("the classifier", int(blocks == 0))):
                    self.assertEqual(note.count(what), count, note)
                ops = lambda path: [n.op_type for n in onnx.load(path).graph.node]
                self.assertEqual(ops(os.path.join(out, "model.onnx")), ops(case_of(name)[1]))

    def test_masks_follow_the_seed_and_evaluation_has_none(self):
        data = os.path.join(case_of("mlp_digits")[0], "train.npz")
        losses, evals = [], []
        for seed, ratio in ((1, "0.5"), (1, "0.5"), (2, "0.5"), (1, "off")):
            with tempfile.TemporaryDirectory() as out:
                train_case("mlp_digits", out, "--dropout", ratio, "--seed", seed, "--lr", 0, "--eval-data", data)
                losses.append([r["loss"] for r in rows(out) if "loss" in r])
                evals.append([r["eval"]["loss"] for r in rows(out) if "eval" in r][-1])
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])
        self.assertNotEqual(losses[0], losses[3])
        self.assertEqual(len(set(evals)), 1)

    def test_the_files_own_nodes(self):
        # An exported Dropout of ratio 0.9 and the same model with 0: --dropout decides, file honours.
        _, model, _ = case_of("mlp_digits")
        with tempfile.TemporaryDirectory() as folder:
            m = onnx.load(model)
            gemm = [n for n in m.graph.node if n.op_type in ("Gemm", "MatMul")][-1]
            m.graph.initializer.append(numpy_helper.from_array(np.array(0.9, np.float32), "ratio"))
            at = list(m.graph.node).index(gemm)
            m.graph.node.insert(at, onnx.helper.make_node("Dropout", [gemm.input[0], "ratio"], ["dropped"], "own"))
            m.graph.node[at + 1].input[0] = "dropped"
            path = os.path.join(folder, "m.onnx")
            onnx.save(m, path)
            data = os.path.join(case_of("mlp_digits")[0], "train.npz")
            first = {}
            for key, flags in {"file": [], "off": ["--dropout", "off"], "0.9": ["--dropout", "0.9"],
                               "0.1": ["--dropout", "0.1"]}.items():
                out = os.path.join(folder, key)
                text = ortrain(path, "--data", data, "--steps", 1, "--out", out, *flags)
                first[key] = rows(out)[0]["loss"]
                self.assertNotIn("added", text)
            plain = os.path.join(folder, "plain")
            ortrain(model, "--data", data, "--steps", 1, "--out", plain)
            self.assertEqual(first["off"], rows(plain)[0]["loss"])
            self.assertEqual(first["file"], first["0.9"])
            self.assertNotIn(first["0.1"], (first["off"], first["file"]))
            self.assertIn("expected file, off or a ratio", ortrain(model, "--data", data, "--dropout", "1.5", code=None))


class Deterministic(unittest.TestCase):
    """Every golden case twice, bit for bit: losses and exported weights."""

    def test_runs_repeat(self):
        golden = os.path.join(SOURCE, "tests", "golden")
        names = [n for n in sorted(os.listdir(golden)) if os.path.exists(os.path.join(golden, n, "train.npz"))
                 and os.path.exists(os.path.join(golden, n, "case.json")) and n != "digits_full"]
        self.assertGreater(len(names), 8)
        for name in names:
            for flags in (["--deterministic"], []) + ((["--kernels", "ref"],) if name == "mlp_digits" else ()):
                with self.subTest(case=name, flags=flags), tempfile.TemporaryDirectory() as a, \
                        tempfile.TemporaryDirectory() as b:
                    train_case(name, a, *flags)
                    train_case(name, b, *flags)
                    self.assertEqual([r["loss"] for r in rows(a) if "loss" in r],
                                     [r["loss"] for r in rows(b) if "loss" in r])
                    x, y = weights(os.path.join(a, "model.onnx")), weights(os.path.join(b, "model.onnx"))
                    for key in x:
                        self.assertEqual(x[key].tobytes(), y[key].tobytes(), key)


class Threads(unittest.TestCase):
    def test_a_deterministic_run_keeps_its_threads(self):
        golden = os.path.join(SOURCE, "tests", "golden", "mlp_digits")
        args = [os.path.join(golden, "model.onnx"), "--data", os.path.join(golden, "train.npz"), "--checkpoint-every", 1]
        with tempfile.TemporaryDirectory() as out:
            ortrain(*args, "--out", out, "--steps", 1, "--threads", 1)
            text = ortrain(*args, "--out", out, "--steps", 2, "--threads", 2, "--resume", "--deterministic", code=2)
            self.assertIn("the run had 1 threads, now there are 2", text)
            self.assertIn("--threads 1", text)
            text = ortrain(*args, "--out", out, "--steps", 2, "--threads", 2, "--resume")
            self.assertIn("note: the run had 1 threads", text)
            ortrain(*args, "--out", out, "--steps", 3, "--threads", 2, "--resume", "--deterministic")

    def test_runs_repeat_with_one_thread_and_with_two(self):
        for name in ("mlp_digits", "cnn_digits", "gpt_tiny"):
            for threads in (1, 2):
                with self.subTest(case=name, threads=threads), tempfile.TemporaryDirectory() as a, \
                        tempfile.TemporaryDirectory() as b:
                    for out in (a, b):
                        train_case(name, out, "--deterministic", "--threads", threads)
                    x, y = weights(os.path.join(a, "model.onnx")), weights(os.path.join(b, "model.onnx"))
                    for key in x:
                        self.assertEqual(x[key].tobytes(), y[key].tobytes(), key)


class BadGradient(unittest.TestCase):
    def test_the_first_offender_is_named(self):
        # sqrt(|w x|) at w = 0: the loss is finite, its gradient is 0 * infinity.
        with tempfile.TemporaryDirectory() as folder:
            node = onnx.helper.make_node
            nodes = [node("Mul", ["x", "w"], ["p"], "scale"), node("Abs", ["p"], ["a"], "positive"),
                     node("Sqrt", ["a"], ["y"], "root")]
            f = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4])
            w = numpy_helper.from_array(np.zeros(4, np.float32), "w")
            m = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [f("x")], [f("y")], [w]),
                                       opset_imports=[onnx.helper.make_opsetid("", 17)])
            m.ir_version = 8
            path, data = os.path.join(folder, "m.onnx"), os.path.join(folder, "d.npz")
            onnx.save(m, path)
            np.savez(data, x=np.ones((8, 4), np.float32), target=np.ones((8, 4), np.float32))
            text = ortrain(path, "--data", data, "--steps", 2, "--out", os.path.join(folder, "r"), code=1)
        self.assertIn("the gradients are not finite, though the loss is, at step 1", text)
        # Of the file's own nodes, though they were fused: 0 * infinity, where the infinity came from.
        self.assertRegex(text, r"First bad values: \w+ 'root\|autodiff' \(backward, kernel \w+\) made 0 NaN and 32 infinite")
        self.assertRegex(text, r"is 0 there.*they became NaN in Mul 'positive\|autodiff'")


if __name__ == "__main__":
    unittest.main(verbosity=2)
