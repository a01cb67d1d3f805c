#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 300
"""Settings and data at the edges of what makes sense: each is refused with what is wrong, or does what it says.

Witnesses: torch.cond (the numbers below are those of PyTorch 2.15), arithmetic by hand.
"""
import json
import os
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, os.path.join(os.environ["ORTRAIN_SOURCE"], "tests"))
from program import ortrain, weights

DIGITS = os.path.join(os.environ["ORTRAIN_SOURCE"], "tests", "golden", "mlp_digits")
MODEL, DATA = os.path.join(DIGITS, "model.onnx"), os.path.join(DIGITS, "train.npz")


def rows(out):
    with open(os.path.join(out, "run.jsonl")) as f:
        return [json.loads(line) for line in f]


def save(path, nodes, tensors, outputs, inputs=(("x", ["N", 3]),)):
    value = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "g", [value(*i) for i in inputs], [value(*o) for o in outputs],
                              [numpy_helper.from_array(v, k) for k, v in tensors.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Edges(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(holder.name)
        self.runs = 0

    def train(self, *flags, model=MODEL, data=DATA, code=0, steps=2, loss=("--loss", "cross_entropy")):
        self.runs += 1
        self.out = f"run{self.runs}"
        return ortrain(model, "--data", data, *loss, "--steps", steps, "--out", self.out, *flags, code=code)

    def refused(self, said, *flags, code=2, **more):
        with self.subTest(flags):
            text = self.train(*flags, code=code, **more)
            self.assertIn(said, text)
            self.assertFalse(os.path.exists(os.path.join(self.out, "model.onnx")))

    def test_flags_that_have_no_effect(self):
        self.refused("--momentum 0.5 has no effect: it is not for adamw but for sgd, rmsprop, muon", "--momentum", 0.5)
        self.refused("--nesterov true has no effect", "--nesterov")
        self.refused("--betas 0.9,0.9 has no effect", "--betas", "0.9,0.9", "--optimizer", "sgd")
        self.refused("--min-lr 0.1 has no effect: it is not for constant", "--min-lr", 0.1)
        self.refused("--huber-delta 2 has no effect: it is not for cross_entropy but for huber, smooth_l1", "--huber-delta", 2)
        self.refused("--label-smoothing 0.1 has no effect", "--label-smoothing", 0.1, loss=("--loss", "focal"))
        self.refused("--lora-export both has no effect: there is no --lora", "--lora-export", "both")
        with open("recipe.toml", "w") as f:  # a recipe may serve several
            f.write("momentum = 0.5\nhuber-delta = 2\n")
        self.train("--config", "recipe.toml")

    def test_numbers(self):
        self.refused("--lora r: '1.5': expected a whole number from 1 to 65536", "--lora", "r=1.5")
        self.refused("--lora r: '0x10'", "--lora", "r=0x10")
        self.refused("--lora alpha: '0': expected a number from 1e-09 to 1000000000", "--lora", "r=2,alpha=0")
        self.refused("r is given twice", "--lora", "r=2,r=4")
        self.refused("lr is given twice", "--group", "fc1:lr=1,lr=2")
        self.refused("interval is given twice", "--loss-scale", "dynamic,interval=2,interval=3")
        self.refused("expected lr, lr-factor or weight-decay", "--group", ".*:")
        self.refused("expected a number from 0 to 1e+30", loss=("--loss", "cross_entropy*1e38"))
        self.refused("expected a number from 0 to 1e+30", "--class-weights", ",".join(["1"] * 9 + ["1e300"]))
        self.refused("expected file, off or a ratio in [0, 1)", "--dropout", "0x1p-2")
        self.refused("expected a number from 0 to 0.999999999", "--ema", 1)
        self.refused("init 1e+20 is not from min 1 to max 16777216", "--loss-scale", "dynamic,init=1e20")

    def test_names(self):
        self.refused("--no-decay nothing: no trainable parameter", "--no-decay", "nothing", "--weight-decay", 0.1)
        self.refused("is not a regular expression", "--train", "fc(")
        self.refused("nothing to train", "--freeze", ".*", code=1)
        self.train("--train", "fc1.{1,2}eight,^fc[2,3].bias")  # commas inside brackets are no separators
        moved = {k for k, v in weights(self.out + "/model.onnx").items() if not np.array_equal(v, weights(MODEL)[k])}
        self.assertEqual(moved, {"fc1.weight", "fc2.bias"})
        # A model file brings names and, in its metadata, a recipe: neither may hang or crash the program.
        for name, regex in (("a" * 200000, ".*a$"), ("a" * 50, "(a+)+b|x*a")):
            save("long.onnx", [helper.make_node("MatMul", ["x", name], ["y"])], {name: np.ones((3, 2), np.float32)},
                 [("y", ["N", 2])])
            np.savez("long.npz", x=np.ones((4, 3), np.float32), labels=np.array([0, 1, 0, 1]))
            self.train("--train", regex, model="long.onnx", data="long.npz")

    def test_windows_larger_than_the_data(self):
        """640 samples: a step takes what the epoch still has, and its mean is that of one batch."""
        self.train("--batch-size", 32, "--accumulate", 1000, "--optimizer", "sgd", "--lr", 1, "--precision", "fp64", steps=1)
        many = rows(self.out)[0]["loss"], weights(self.out + "/model.onnx")
        self.train("--batch-size", 100000, "--optimizer", "sgd", "--lr", 1, "--precision", "fp64", steps=1)
        self.assertAlmostEqual(many[0], rows(self.out)[0]["loss"], delta=1e-12)
        for name, value in weights(self.out + "/model.onnx").items():
            np.testing.assert_allclose(many[1][name], value, atol=1e-7)
        self.refused("leaves no full batch", "--last-batch", "drop", "--batch-size", 600, "--accumulate", 2)

    def test_steps_that_move_nothing(self):
        for flags in (["--lr", 0], ["--warmup", 10**9, "--optimizer", "sgd"], ["--clip-norm", 1e-30, "--optimizer", "sgd"]):
            self.train(*flags)
            for name, value in weights(self.out + "/model.onnx").items():
                np.testing.assert_allclose(value, weights(MODEL)[name], atol=1e-8, err_msg=f"{flags} {name}")

    def test_no_target_at_all(self):
        with np.load(DATA) as z:
            x = z["x"]
        np.savez("none.npz", x=x, labels=np.full(len(x), -100))
        for flags in ([], ["--precision", "fp16", "--accumulate", 3], ["--class-weights", "auto"]):
            self.assertIn("last loss n/a: no step had a valid target", self.train(*flags, data="none.npz"))
            for name, value in weights(self.out + "/model.onnx").items():
                np.testing.assert_array_equal(value, weights(MODEL)[name])
        self.assertIn("no label that counts", ortrain("eval", MODEL, "--data", "none.npz", "--loss", "cross_entropy", code=1))
        np.savez("unlabelled.npz", x=x)
        self.assertIn("labels", ortrain("eval", MODEL, "--data", "unlabelled.npz", "--loss", "cross_entropy", code=1))

    def test_infinite_gradient_of_a_finite_loss(self):
        """sqrt(|x w|) at x = 0: the third batch. Stopped with the cause, or left out with nothing else changed."""
        w = np.array([[1, 2], [3, -1], [0.5, 0.25]], np.float32)
        save("root.onnx", [helper.make_node("MatMul", ["x", "w"], ["h"], name="product"), helper.make_node("Abs", ["h"], ["a"]),
                           helper.make_node("Sqrt", ["a"], ["y"], name="root")], {"w": w}, [("y", ["N", 2])])
        x = np.ones((8, 3), np.float32)
        x[5] = 0
        np.savez("root.npz", x=x, target=np.zeros((8, 2), np.float32))
        base = dict(model="root.onnx", data="root.npz", steps=4, loss=("--loss", "mse"))
        flags = ["--batch-size", 2, "--shuffle", "none", "--optimizer", "sgd"]
        for clip in ([], ["--clip-norm", 9]):
            text = self.train(*flags, *clip, code=1, **base)
            self.assertIn("the gradients are not finite, though the loss is, at step 3", text)
            self.assertIn("'root", text)
            self.assertFalse(os.path.exists(self.out + "/model.onnx"))
        self.assertIn("1 steps were skipped", self.train(*flags, "--on-nan", "skip", **base))
        skipped = weights(self.out + "/model.onnx")["w"]
        np.savez("good.npz", x=x[[0, 1, 2, 3, 6, 7]], target=np.zeros((6, 2), np.float32))
        self.train(*flags, **{**base, "data": "good.npz", "steps": 3})
        np.testing.assert_array_equal(skipped, weights(self.out + "/model.onnx")["w"])

    def test_branches_that_are_not_taken(self):
        """As torch.cond has it: a gradient of zero, on which weight decay and moments act."""
        branch = lambda op, name: helper.make_graph([helper.make_node(op, ["x", name], [name + "_y"])], name + "_branch", [],
                                                    [helper.make_tensor_value_info(name + "_y", TensorProto.FLOAT, [1, 3])])
        nodes = [helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0), helper.make_node("Greater", ["s", "zero"], ["c"]),
                 helper.make_node("If", ["c"], ["y"], then_branch=branch("Mul", "a"), else_branch=branch("Sub", "b")),
                 helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)]
        save("if.onnx", nodes, {"a": np.ones(3, np.float32), "b": np.full(3, 2, np.float32), "zero": np.float32(0)},
             [("loss", [])], inputs=(("x", [1, 3]),))
        np.savez("if.npz", x=np.array([[1.0] * 3, [1.0] * 3, [-1.0] * 3], np.float32))
        self.train("--batch-size", 1, "--shuffle", "none", "--lr", 0.1, "--weight-decay", 0.5, "--precision", "fp64",
                   model="if.onnx", data="if.npz", steps=3, loss=("--loss", "graph"))
        after = weights(self.out + "/model.onnx")
        np.testing.assert_allclose(after["a"], [0.5948247129682903] * 3, rtol=1e-7)
        np.testing.assert_allclose(after["b"], [1.7786313588339469] * 3, rtol=1e-7)


if __name__ == "__main__":
    unittest.main(verbosity=2)
