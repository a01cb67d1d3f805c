#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 600
"""ortrain init: for each kind of data the recipe it writes trains at once, to the same losses, bit by bit, as the
flags that a person would have given; what it must refuse leaves every file as it was. The witness of a proposal is
the flag list in each test."""
import json
import os
import re
import shutil
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SOURCE = os.environ["ORTRAIN_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tests"))
sys.path.insert(0, os.path.join(SOURCE, "models", "digits"))
from make_pictures import write_png
from program import ortrain

ADAMW = ["--optimizer", "adamw", "--lr", 0.001, "--weight-decay", 0.01, "--no-decay", "norm_bias"]
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def losses(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [r["loss"] for r in map(json.loads, f) if "loss" in r]


class Init(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = scratch.name
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.root)  # as a newcomer: relative paths
        self.rng = np.random.default_rng(1)

    def write(self, name, data):
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return name

    def model(self, name, inputs, outputs, nodes, tensors):
        value = lambda n, t, s: helper.make_tensor_value_info(n, t, s)
        graph = helper.make_graph([helper.make_node(op, i, [o], **a) for op, i, o, a in nodes], "g",
                                  [value(*i) for i in inputs], [value(*o) for o in outputs],
                                  [numpy_helper.from_array(v.astype(v.dtype), k) for k, v in tensors.items()])
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), name)
        return name

    def normal(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def linear(self, name, k, classes, batch="B", end=None):
        nodes = [("Gemm", ["x", "w", "b"], "y" if end else "logits", {})] + ([(end, ["y"], "logits", {})] if end else [])
        return self.model(name, [("x", FLOAT, [batch, k])], [("logits", FLOAT, [batch, classes])], nodes,
                          {"w": self.normal(k, classes), "b": np.zeros(classes, np.float32)})

    def language(self, name, symbols, window=8):
        return self.model(name, [("ids", INT, ["B", window])], [("logits", FLOAT, ["B", window, symbols])],
                          [("Gather", ["e", "ids"], "h", {}), ("MatMul", ["h", "w"], "logits", {})],
                          {"e": self.normal(symbols, 6), "w": self.normal(6, symbols)})

    def recipe(self, model="m.onnx"):
        with open(model.replace(".onnx", ".toml")) as f:
            return f.read()

    def same(self, data, flags, *more, model="m.onnx"):
        """init, then two epochs from the recipe alone, and two with `flags` on a model without a recipe."""
        said = ortrain("init", model, "--data", data, "--epochs", 2, *more)
        self.assertIn(f"next: ortrain {model}", said)
        text = ortrain(model, "--out", "of_recipe")
        os.makedirs("plain", exist_ok=True)
        shutil.copy(model, "plain/m.onnx")
        ortrain("plain/m.onnx", "--epochs", 2, "--out", "of_flags", *ADAMW, *flags)
        self.assertEqual(losses("of_recipe"), losses("of_flags"))
        self.assertGreater(len(losses("of_recipe")), 2)
        self.switched_off(model)
        return said, text

    def switched_off(self, model):
        """Every line of the recipe is used; every setting that is switched off is accepted."""
        text = self.recipe(model)
        path = model.replace(".onnx", ".toml")
        settings = text.split("[[prepare]]")[0].removesuffix("#")
        shown = ortrain(model, "--print-config")
        for key in re.findall(r"^([a-z-]+) = ", settings, re.M):
            self.assertRegex(shown, rf"(?m)^{key} = .*# {re.escape(path)}$")
        for line in re.findall(r"^#([a-z-]+ = .*)$", settings, re.M):
            self.write(path, line + "\n" + re.sub(rf"(?m)^{line.split(' = ')[0]} = .*$", "", text))
            self.assertIn(line.split(" = ")[0] + " = ", ortrain(model, "--print-config"))
        if "[[prepare]]" in text:
            self.write(path, settings + "[[prepare]]".join([""] + text.split("[[prepare]]")[1:]).replace("\n#", "\n")
                       .replace("\n ", "\n# "))
            self.assertIn("done: 1 steps", ortrain(model, "--steps", 1, "--out", "prepared"))
            shutil.rmtree("prepared")
        self.write(path, text)

    def pictures(self, folder="photos", n=120, classes=10, sizes=((8, 8),)):
        digits = np.load(os.path.join(SOURCE, "models", "digits", "train.npz"))
        done = 0
        for x, y in zip(digits["x"][:, 0], digits["labels"]):
            if y >= classes or done == n:
                continue
            h, w = sizes[done % len(sizes)]
            pixels = np.kron(np.rint(x * 255).astype(np.uint8), np.ones((2, 2), np.uint8))[:h, :w]
            os.makedirs(f"{folder}/class {y}", exist_ok=True)
            write_png(f"{folder}/class {y}/{done:03}.png", np.ascontiguousarray(pixels))
            done += 1

    def digits(self, name="m.onnx"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        return shutil.copy(os.path.join(SOURCE, "models", "digits", "model.onnx"), name)

    def test_pictures(self):
        self.pictures(sizes=((16, 16), (12, 16)))
        said, text = self.same("photos", ["--data", "photos", "--split", 0.1, "--loss", "cross_entropy", "--batch-size", 16,
                                          "--prepare", "x:resize=8x8"], model=self.digits())
        self.assertIn("120 pictures in 10 classes", said)
        self.assertIn("evaluation", text)
        recipe = self.recipe()
        for line in ('data = "photos"', 'split = "0.1"', 'loss = "cross_entropy"', 'resize = "8x8"', "#flip = true"):
            self.assertIn("\n" + line, recipe)
        # From another working folder: paths are the recipe's, the recipe is the model's.
        os.makedirs("elsewhere")
        os.chdir("elsewhere")
        self.assertIn("done:", ortrain("../m.onnx", "--steps", 2, "--out", "run"))

    def test_pictures_of_three_classes(self):
        self.pictures(n=60, classes=3)
        said, _ = self.same("photos", ["--data", "photos", "--split", 0.1, "--loss", "cross_entropy", "--batch-size", 8,
                                       "--prepare", "x:resize=8x8", "--reset-head", "logits=3"],
                            model=self.digits("models/m.onnx"))
        self.assertIn("3 classes, output 'logits' 10: the last layer starts anew", said)
        self.assertIn('data = "../photos"', self.recipe("models/m.onnx"))
        out = onnx.load("of_recipe/model.onnx").graph.output[0]
        self.assertEqual(out.type.tensor_type.shape.dim[1].dim_value, 3)

    def test_train_and_val_folders(self):
        self.pictures("photos/train", n=40)
        self.pictures("photos/val", n=20)
        self.same("photos", ["--data", "photos/train", "--eval-data", "photos/val", "--loss", "cross_entropy",
                             "--batch-size", 8], model=self.digits())
        self.assertIn('eval-data = "photos/val"', self.recipe())

    def table(self, n=40, missing=(), more=""):
        city = ["Rome", "Oslo, N", "Bern"]
        rows = [f'{i},{self.rng.normal():.3f},"{city[i % 3]}",{"" if i in missing else i % 7},{more}{"yes" if i % 2 else "no"}'
                for i in range(n)]
        return "id,width,city,depth," + ("note," if more else "") + "bought\n" + "\n".join(rows) + "\n"

    def test_table(self):
        self.write("t.csv", self.table(missing=(3, 5)))
        said, _ = self.same("t.csv", ["--data", "t.csv", "--label", "bought", "--map", "x:width,city,depth", "--loss",
                                      "cross_entropy", "--batch-size", 8, "--prepare", "depth:fill=mean"],
                            model=self.linear("m.onnx", 3, 2))
        self.assertIn("depth  whole numbers, 7 different, 2 missing", said)
        self.assertIn("a guess: the last column", self.recipe())
        self.assertIn("left out: id (a number per row)", self.recipe())
        # A column that is mostly missing and that no input takes costs no rows.
        self.write("u.csv", self.table(more=","))
        said = ortrain("init", self.linear("u.onnx", 3, 2), "--data", "u.csv", "--epochs", 1)
        self.assertIn("40 samples", ortrain("u.onnx", "--out", "u"))

    def test_table_of_numbers(self):
        self.write("t.tsv", "a\tb\ttarget\n" + "".join(f"{i % 5}.5\t{i % 3}\t{i * 0.25 + 0.1}\n" for i in range(30)))
        self.same("t.tsv", ["--data", "t.tsv", "--loss", "mse", "--batch-size", 4, "--map", "x:a,b"],
                  model=self.linear("m.onnx", 2, 1))
        self.assertIn('\nloss = "mse"', self.recipe())

    def test_tokens(self):
        tokens = self.rng.integers(0, 64, 500)
        want = ["--split", 0.1, "--loss", "cross_entropy", "--batch-size", 8, "--clip-norm", 1]
        for kind in ("uint16", "uint32"):
            self.write("t.bin", tokens.astype(kind[-2:] == "32" and "<u4" or "<u2").tobytes())
            self.same("t.bin", ["--data", "t.bin", "--tokens", kind, *want], "--force", model=self.language("m.onnx", 64))
            shutil.rmtree("of_recipe"), shutil.rmtree("of_flags")

    def test_text(self):
        text = "the cat sat on the mat. " * 40
        want = ["--data", "t.txt", "--split", 0.1, "--loss", "cross_entropy", "--clip-norm", 1, "--batch-size", 16]
        self.write("t.txt", text)
        self.same("t.txt", ["--text", "chars", *want], model=self.language("m.onnx", 20))
        shutil.rmtree("of_recipe"), shutil.rmtree("of_flags")
        self.same("t.txt", ["--text", "bytes", *want], model=self.language("b.onnx", 256))

    def test_arrays(self):
        x, y = self.normal(60, 3), self.rng.integers(0, 2, 60)
        np.savez("train.npz", features=x, labels=y)
        np.savez("test.npz", features=x[:9], labels=y[:9])
        self.same("train.npz", ["--data", "train.npz", "--eval-data", "test.npz", "--map", "x:features", "--loss",
                                "cross_entropy", "--batch-size", 8], model=self.linear("m.onnx", 3, 2))
        self.assertIn('\nmap = "x:features"', self.recipe())

    def test_scores_and_label_map(self):
        x = self.normal(30, 3)
        np.savez("s.npz", x=x, labels=self.rng.integers(0, 2, 30))
        self.same("s.npz", ["--data", "s.npz", "--loss", "bce_with_logits", "--batch-size", 4], model=self.linear("m.onnx", 3, 1))
        shutil.rmtree("of_recipe"), shutil.rmtree("of_flags")
        self.same("s.npz", ["--data", "s.npz", "--loss", "bce", "--batch-size", 4],
                  model=self.linear("p.onnx", 3, 1, end="Sigmoid"))
        shutil.rmtree("of_recipe"), shutil.rmtree("of_flags")
        np.savez("one.npz", x=x, labels=np.arange(30) % 2 + 1)
        self.same("one.npz", ["--data", "one.npz", "--loss", "cross_entropy", "--batch-size", 4, "--prepare",
                              "labels:map=1>0/2>1"], model=self.linear("l.onnx", 3, 2))

    def test_u8_pictures_in_an_array(self):
        digits = np.load(os.path.join(SOURCE, "models", "digits", "train.npz"))
        np.savez("p.npz", images=np.rint(digits["x"][:60, 0] * 255).astype(np.uint8), labels=digits["labels"][:60])
        self.same("p.npz", ["--data", "p.npz", "--split", 0.1, "--map", "x:images", "--prepare", "x:resize=8x8,scale=255",
                            "--loss", "cross_entropy", "--batch-size", 8], model=self.digits())

    def test_one_hot_and_lengths(self):
        self.model("m.onnx", [("x", FLOAT, ["B", 3]), ("kind", FLOAT, ["B", 4])], [("logits", FLOAT, ["B", 2])],
                   [("Concat", ["x", "kind"], "h", {"axis": 1}), ("MatMul", ["h", "w"], "logits", {})], {"w": self.normal(7, 2)})
        x, kind, y = self.normal(30, 3), self.rng.integers(0, 4, 30), self.rng.integers(0, 2, 30)
        np.savez("d.npz", x=x, kind=kind, labels=y)
        np.savez("e.npz", x=x, kind=np.eye(4, dtype=np.float32)[kind], labels=y)
        self.same("d.npz", ["--data", "e.npz", "--loss", "cross_entropy", "--batch-size", 4])
        shutil.rmtree("of_recipe"), shutil.rmtree("of_flags")
        self.model("s.onnx", [("ids", INT, ["B", 6]), ("attention_mask", INT, ["B", 6])], [("logits", FLOAT, ["B", 2])],
                   [("Gather", ["e", "ids"], "g", {}), ("Cast", ["attention_mask"], "f", {"to": FLOAT}),
                    ("Unsqueeze", ["f", "last"], "u", {}), ("Mul", ["g", "u"], "h", {}),
                    ("ReduceMean", ["h"], "p", {"axes": [1], "keepdims": 0}), ("MatMul", ["p", "w"], "logits", {})],
                   {"e": self.normal(9, 5), "w": self.normal(5, 2), "last": np.array([2])})
        ids = self.rng.integers(0, 9, (30, 4))
        np.savez("short.npz", ids=ids, labels=y)
        np.savez("padded.npz", ids=np.pad(ids, ((0, 0), (0, 2))), attention_mask=np.pad(np.ones_like(ids), ((0, 0), (0, 2))),
                 labels=y)
        self.same("short.npz", ["--data", "padded.npz", "--loss", "cross_entropy", "--batch-size", 4], model="s.onnx")

    def test_open_sizes(self):
        self.model("p.onnx", [("x", FLOAT, ["B", 1, "H", "W"])], [("logits", FLOAT, ["B", 2])],
                   [("GlobalAveragePool", ["x"], "g", {}), ("Flatten", ["g"], "f", {}), ("MatMul", ["f", "w"], "logits", {})],
                   {"w": self.normal(1, 2)})
        self.pictures(n=40, classes=2, sizes=((16, 16), (12, 16)))
        self.same("photos", ["--data", "photos", "--loss", "cross_entropy", "--batch-size", 8, "--prepare", "x:resize=32x32"],
                  model="p.onnx")
        shutil.rmtree("of_recipe"), shutil.rmtree("of_flags")
        self.write("t.txt", "the cat sat on the mat. " * 40)
        self.same("t.txt", ["--data", "t.txt", "--text", "bytes", "--window", 119, "--loss", "cross_entropy", "--batch-size", 2,
                            "--clip-norm", 1], model=self.language("t.onnx", 256, "T"))

    def test_onnx_test_data(self):
        for k in range(2):
            for name, a in (("input_0", self.normal(6, 3)), ("output_0", self.rng.integers(0, 2, 6))):
                self.write(f"set/test_data_set_{k}/{name}.pb", numpy_helper.from_array(a, name).SerializeToString())
        self.same("set", ["--data", "set", "--loss", "cross_entropy", "--batch-size", 2], model=self.linear("m.onnx", 3, 2))

    def test_built_in_batch(self):
        np.savez("d.npz", x=self.normal(30, 3), labels=self.rng.integers(0, 2, 30))
        self.same("d.npz", ["--data", "d.npz", "--loss", "cross_entropy", "--batch-size", 4, "--rebatch"],
                  model=self.linear("m.onnx", 3, 2, batch=1))
        # A large one stays.
        self.linear("l.onnx", 3, 2, batch=8)
        said = ortrain("init", "l.onnx", "--data", "d.npz", "--epochs", 1)
        self.assertIn("the batch size 8 is built into the model", said)
        self.assertIn("#rebatch = true", self.recipe("l.onnx"))
        self.assertIn("done: 3 steps", ortrain("l.onnx", "--out", "l"))
        self.switched_off("l.onnx")
        # One that cannot be had with another batch: its size stays, the short last batch is dropped.
        self.model("f.onnx", [("x", FLOAT, [4, 3])], [("logits", FLOAT, [4, 2])],
                   [("MatMul", ["x", "w"], "h", {}), ("ReduceMean", ["h"], "m", {"axes": [0], "keepdims": 1}),
                    ("Sub", ["h", "m"], "logits", {})], {"w": self.normal(3, 2)})
        said = ortrain("init", "f.onnx", "--data", "d.npz", "--epochs", 2)
        self.assertIn("the batch size 4 is built into the model", said)
        self.assertIn('last-batch = "drop"', self.recipe("f.onnx"))
        self.assertIn("done: 14 steps", ortrain("f.onnx", "--out", "f"))

    def test_own_loss(self):
        self.model("m.onnx", [("x", FLOAT, ["B", 3])], [("loss", FLOAT, [])],
                   [("MatMul", ["x", "w"], "h", {}), ("ReduceMean", ["h"], "loss", {"keepdims": 0})], {"w": self.normal(3, 2)})
        np.savez("d.npz", x=self.normal(30, 3))
        self.same("d.npz", ["--data", "d.npz", "--loss", "graph", "--batch-size", 4])

    def test_flags_become_part_of_it(self):
        np.savez("d.npz", x=self.normal(30, 3), labels=self.rng.integers(0, 2, 30))
        self.linear("m.onnx", 3, 2)
        ortrain("init", "m.onnx", "--data", "d.npz", "--optimizer", "sgd", "--lr", 0.5, "--momentum", 0.9, "--steps", 5,
                "--out", "other/r.toml", code=1)  # no such folder
        os.makedirs("other")
        said = ortrain("init", "m.onnx", "--data", "d.npz", "--optimizer", "sgd", "--lr", 0.5, "--momentum", 0.9, "--steps", 5,
                       "--out", "other/r.toml")
        self.assertIn("next: ortrain m.onnx --config other/r.toml", said)
        self.assertFalse(os.path.exists("m.toml"))
        ortrain("m.onnx", "--config", "other/r.toml", "--out", "a")
        ortrain("m.onnx", "--data", "d.npz", "--optimizer", "sgd", "--lr", 0.5, "--momentum", 0.9, "--steps", 5, "--batch-size",
                4, "--out", "b")
        self.assertEqual(losses("a"), losses("b"))

    def refused(self, *args, code=1, says=()):
        before = sorted(os.listdir("."))
        text = ortrain("init", *args, code=code)
        self.assertEqual(sorted(os.listdir(".")), before)
        for word in says:
            self.assertIn(word, text)

    def test_refusals(self):
        np.savez("d.npz", x=self.normal(30, 3), labels=np.arange(30) % 3)
        self.linear("m.onnx", 3, 3)
        self.refused("m.onnx", code=2, says=["no data", "--data PATH"])
        self.refused("m.onnx", "--data", "gone", says=["'gone' does not exist"])
        self.refused("m.onnx", "--data", "-", code=2, says=["read again"])
        os.makedirs("empty")
        self.refused("m.onnx", "--data", "empty", says=["'empty' holds nothing to train on", "a folder per class"])
        self.write("broken.onnx", "no model")
        self.refused("broken.onnx", "--data", "d.npz", says=["broken.onnx"])
        self.refused("gone.onnx", "--data", "d.npz", says=["no such file: gone.onnx"])
        # More classes than a head that cannot start anew (its weight is used twice).
        self.model("tied.onnx", [("x", FLOAT, ["B", 3])], [("logits", FLOAT, ["B", 3])],
                   [("MatMul", ["x", "w"], "h", {}), ("MatMul", ["h", "w"], "logits", {})], {"w": self.normal(3, 3)})
        np.savez("four.npz", x=self.normal(30, 3), labels=np.arange(30) % 4)
        self.refused("tied.onnx", "--data", "four.npz",
                     says=["4 classes, output 'logits' only 3", "used 2 times", "with at most 3"])
        # Nothing that fits the input; both sides are shown.
        np.savez("wide.npz", x=self.normal(30, 7), labels=np.arange(30) % 3)
        self.refused("m.onnx", "--data", "wide.npz", says=["expected f32[?,3], got f32[30,7]"])
        np.savez("bare.npz", x=self.normal(30, 3))
        self.refused("m.onnx", "--data", "bare.npz", says=["no labels for output 'logits'"])
        self.write("t.csv", "a,b,label\n" + "1,2,0\n2,3,1\n" * 20)
        self.refused("m.onnx", "--data", "t.csv", says=["takes 3 columns", "2 for it: a, b", "--map \"x:COLUMN"])
        self.write("m.toml", "# mine\n")
        self.refused("m.onnx", "--data", "d.npz", code=2, says=["m.toml is there already", "--force"])
        self.assertEqual(self.recipe(), "# mine\n")
        self.refused("m.onnx", "--data", "bare.npz", "--force", says=["no labels"])
        self.assertEqual(self.recipe(), "# mine\n")
        ortrain("init", "m.onnx", "--data", "d.npz", "--force")
        self.assertIn('data = "d.npz"', self.recipe())

    def test_names_of_files_are_text(self):
        """Classes and files with quotes, line ends and control characters: the recipe stays TOML."""
        for i in range(24):
            folder = ('a "b"\\', "c\nlr = 5", "\x1b[31m")[i % 3]
            os.makedirs(f"my \"own\" photos/{folder}", exist_ok=True)
            write_png(f"my \"own\" photos/{folder}/{i}.png", self.rng.integers(0, 255, (8, 8)).astype(np.uint8))
        self.digits()
        ortrain("init", "m.onnx", "--data", 'my "own" photos', "--epochs", 1)
        self.assertNotIn("\nlr = 5", self.recipe())
        self.assertIn("done:", ortrain("m.onnx", "--out", "run"))


if __name__ == "__main__":
    unittest.main()
