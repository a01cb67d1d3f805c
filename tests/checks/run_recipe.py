#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 600
"""A run folder remembers its settings: --resume and export need none of them again, and refuse others.

Each case trains some steps at once, and in two parts of which the second is told nothing but the step count,
from another working folder. Both must end with the same bytes; `export --run` must give the same weights.
Witness that the flags matter: without them the first loss, or the set of tensors, is another.
"""
import json
import os
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.environ["ORTRAIN_SOURCE"], "tests"))
from program import ortrain, weights

GOLDEN = os.path.join(os.environ["ORTRAIN_SOURCE"], "tests", "golden")


def losses(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [r["loss"] for r in map(json.loads, f) if "loss" in r]


class RunRecipe(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.dir = holder.name
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.dir)
        with np.load(os.path.join(GOLDEN, "cnn_digits", "train.npz")) as z:
            low = z["labels"] < 3
            np.savez("three.npz", x=z["x"][low], labels=z["labels"][low])
        with np.load(os.path.join(GOLDEN, "fixed_batch", "encoder.npz")) as z:
            np.savez("encoder.npz", x=z["x"], labels=z["labels"])

    def cases(self):
        model = lambda *parts: os.path.join(GOLDEN, *parts)
        yield "reset_head", model("cnn_digits", "model.onnx"), "three.npz", ["--reset-head", "logits=3", "--seed", 4]
        yield "rebatch", model("fixed_batch", "encoder_b1_dynamo.onnx"), "encoder.npz", ["--rebatch", "--batch-size", 5]
        yield "tie", model("gpt_tiny", "model_opt.onnx"), model("gpt_tiny", "train.npz"), ["--tie", "auto"]
        yield "untie", model("gpt_tiny_defaultinit", "model.onnx"), model("gpt_tiny", "train.npz"), ["--untie", "off"]
        yield "lora", model("lora", "lora.onnx"), model("lora", "train.npz"), ["--lora", "r=2,dropout=0.1",
                                                                              "--lora-export", "both"]
        yield "training", model("mlp_digits", "model.onnx"), model("mlp_digits", "train.npz"), [
            "--dropout", 0.3, "--optimizer", "muon", "--nesterov=false", "--group", "fc1:lr=0.02;bias:weight-decay=0.5",
            "--class-weights", "1,2,1,1,1,1,3,1,1,1", "--loss", "logits:cross_entropy*0.5", "--ema", 0.9,
            "--accumulate", 2, "--clip-norm", 1, "--precision", "fp16", "--no-decay", "norm_bias"]

    def test_nothing_is_said_again(self):
        for name, model, data, flags in self.cases():
            with self.subTest(name):
                whole, split = name + "-whole", name + "-split"
                base = [model, "--data", data, "--lr", 0.01]
                ortrain(*base, *flags, "--steps", 6, "--out", whole)
                ortrain(*base, *flags, "--steps", 3, "--out", split)
                elsewhere = os.path.join(self.dir, "elsewhere")
                os.makedirs(elsewhere, exist_ok=True)
                os.chdir(elsewhere)
                said = ortrain(model, "--resume", "--steps", 6, "--out", os.path.join("..", split))
                self.assertIn("note: --steps was 3, is 6", said)
                os.chdir(self.dir)
                self.assertEqual(losses(whole), losses(split))
                a, b = weights(whole + "/model.onnx"), weights(split + "/model.onnx")
                self.assertEqual(a.keys(), b.keys())
                for key in a:
                    np.testing.assert_array_equal(a[key], b[key], err_msg=key)
                ortrain("export", model, "--run", split, "--out", name + ".onnx")
                for key, value in weights(name + ".onnx").items():
                    np.testing.assert_array_equal(value, a[key], err_msg=key)
                # A third part changes nothing: the run is complete.
                ortrain(model, "--resume", "--out", split)
                self.assertEqual(losses(whole), losses(split))
                plain = ortrain(*base, "--steps", 1, "--out", name + "-plain", code=None)
                if os.path.exists(name + "-plain/model.onnx"):
                    other = weights(name + "-plain/model.onnx")
                    differ = {k: v.shape for k, v in other.items()} != {k: v.shape for k, v in a.items()}
                    self.assertTrue(differ or losses(name + "-plain")[0] != losses(whole)[0] or name in ("tie", "untie",
                                    "lora"), "the flags change nothing")
                else:
                    self.assertIn(name, ("rebatch",), plain)

    def test_the_newest_run_is_found(self):
        model, data = os.path.join(GOLDEN, "mlp_digits", "model.onnx"), os.path.join(GOLDEN, "mlp_digits", "train.npz")
        self.assertIn("--run", ortrain("export", model, "--out", "none.onnx", code=2))
        self.assertIn("--out", ortrain(model, "--resume", code=2))
        for steps in (2, 3):
            ortrain(model, "--data", data, "--loss", "cross_entropy", "--steps", steps)
        said = ortrain("export", model, "--out", "e.onnx")  # --out is the file, not the run
        self.assertIn("step-000003", said)

    def test_contradictions(self):
        model, data = os.path.join(GOLDEN, "mlp_digits", "model.onnx"), os.path.join(GOLDEN, "mlp_digits", "train.npz")
        ortrain(model, "--data", data, "--loss", "cross_entropy", "--steps", 3, "--lr", 0.01, "--out", "run")
        go_on = lambda *flags, code=0: ortrain(model, "--resume", "--out", "run", *flags, code=code)
        for flags, told in ((["--seed", 1], "--seed was 0, is 1"),
                            (["--lora", "r=2"], "--lora was not set, is r=2"),
                            (["--reset-head", "logits=10"], "--reset-head was not set"),
                            (["--tie", "auto"], "--tie was off, is auto"),
                            (["--optimizer", "sgd", "--precision", "fp16"], "--precision was fp32, is fp16"),
                            (["--loss", "nll"], "--loss was cross_entropy, is nll"),
                            (["--ema", 0.5], "--ema was 0, is 0.5"),
                            (["--batch-size", 8, "--accumulate", 4], "--accumulate was 1, is 4")):
            with self.subTest(flags):
                text = go_on(*flags, code=2)
                self.assertIn(told, text)
                self.assertIn("cannot go on with other settings", text)
        before = losses("run")
        self.assertIn("--lr was 0.01, is 0.02", go_on("--lr", 0.02, "--batch-size", 32, "--steps", 4))
        self.assertEqual(losses("run")[:3], before)
        self.assertIn("--lr was 0.02, is 0.01", go_on("--lr", 0.01, "--steps", 5))  # the file follows the run
        said = go_on("--epochs", 1)  # a step count that the recipe holds does not win over it
        self.assertIn("--steps was 5, is not set", said)
        with np.load(data) as z:
            self.assertEqual(len(losses("run")), -(-len(z["labels"]) // 32))
        self.assertIn("--tie was off", ortrain("export", model, "--run", "run", "--tie", "auto", "--out", "x.onnx", code=2))

    def test_a_run_folder_holds_no_head_to_reset(self):
        """The exported model trains on without being reset, though the run's recipe says how it began."""
        model = os.path.join(GOLDEN, "cnn_digits", "model.onnx")
        ortrain(model, "--data", "three.npz", "--reset-head", "logits=3", "--steps", 2, "--out", "run")
        with open("run/recipe.toml") as f:
            self.assertIn('reset-head = "logits=3"', f.read())
        ortrain("run/model.onnx", "--data", "three.npz", "--steps", 1, "--lr", 0, "--out", "on")
        np.testing.assert_array_equal(weights("on/model.onnx")["fc2.weight"], weights("run/model.onnx")["fc2.weight"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
