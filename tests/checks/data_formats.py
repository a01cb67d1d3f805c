#!/usr/bin/env python3
# ctest-timeout: 900
"""Tables, token streams, text, ONNX test data, several files, mixtures, standard input, held-out parts: each trains a
small model to the same losses, bit by bit, as the same numbers in an npz that numpy wrote."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, os.path.join(os.environ["ORTRAIN_SOURCE"], "tests"))
from program import ortrain


def save(path, inputs, output, nodes, tensors):
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(v, k) for k, v in tensors.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def losses(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [r["loss"] for r in map(json.loads, f) if "loss" in r]


class Formats(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = scratch.name
        rng = np.random.default_rng(1)
        f = np.float32
        # x[B,3] -> 2 classes;  ids[B,T] -> 64 classes per position
        self.table = self.path("table.onnx")
        save(self.table, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3])],
             helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", 2]),
             [helper.make_node("Gemm", ["x", "w", "b"], ["logits"])],
             {"w": rng.normal(size=(3, 2)).astype(f), "b": np.zeros(2, f)})
        self.lm = self.path("lm.onnx")
        save(self.lm, [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", 8])],
             helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", 8, 64]),
             [helper.make_node("Gather", ["e", "ids"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["logits"])],
             {"e": rng.normal(size=(64, 6)).astype(f), "w": rng.normal(size=(6, 64)).astype(f)})

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def npz(self, name, **arrays):
        np.savez(self.path(name), **arrays)
        return self.path(name)

    def train(self, model, data, out, *more, code=0, stdin=None):
        args = [model, "--data", data, "--out", self.path(out), "--batch-size", 4, "--epochs", 3, "--lr", 0.1, *more]
        if stdin is None:
            return ortrain(*args, code=code)
        done = subprocess.run([os.environ["ORTRAIN_BIN"], *map(str, args)], input=stdin, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return (done.stdout + done.stderr).decode()

    def same(self, model, want, data, *more, stdin=None):
        self.train(model, want, "want", "--shuffle", "epoch")
        text = self.train(model, data, "got", *more, stdin=stdin)
        self.assertEqual(losses(self.path("got")), losses(self.path("want")))
        for run in ("want", "got"):
            subprocess.run(["rm", "-r", self.path(run)], check=True)
        return text

    def rows(self, n=30):
        rng = np.random.default_rng(2)
        x = np.round(rng.normal(size=(n, 3)), 3)
        city = [["Rom, IT", 'the "big" one', "a\nb"][i] for i in rng.integers(0, 3, n)]
        order = sorted(set(city))
        x[:, 1] = [order.index(c) for c in city]
        return x, city, rng.integers(0, 2, n)

    def csv(self, x, city, y, names=("no", "yes")):
        quoted = ['"' + c.replace('"', '""') + '"' for c in city]
        lines = [f"{a!r},{c},{b!r},{names[k]}" for (a, _, b), c, k in zip(x.tolist(), quoted, y)]
        return "width,city,depth,label\r\n" + "\r\n".join(lines) + "\r\n"

    def test_table(self):
        x, city, y = self.rows()
        want = self.npz("want.npz", x=x.astype(np.float32), labels=y)
        text = self.csv(x, city, y)
        said = self.same(self.table, want, self.write("t.csv", text))
        self.assertIn("columns 'width' to 'depth' together are the input 'x'", said)
        self.same(self.table, want, self.write("bom.csv", "\ufeff" + text), "--map", "x:width,city,depth")
        tabs = "label\tdepth\tcity\twidth\n" + "".join(
            f"{k}\t{b!r}\t{c:.0f}\t{a!r}\n" for (a, c, b), k in zip(x.tolist(), y))
        self.same(self.table, want, self.write("t.tsv", tabs), "--map", "x:width,city,depth")
        self.same(self.table, want, "-", stdin=text.encode())
        half = text.split("\r\n")
        self.write("s0.csv", self.csv(x[:11], city[:11], y[:11]))
        self.write("s1.csv", self.csv(x[11:], city[11:], y[11:]))
        self.same(self.table, want, self.path("s*.csv"))
        self.assertGreater(len(half), 30)
        # Normalised as numpy does it.
        m, s = np.float32([0.5, 1, -0.25]), np.float32([2, 1, 0.5])
        normed = self.npz("n.npz", x=(x.astype(np.float32) - m) / s, labels=y)
        self.same(self.table, normed, self.path("t.csv"), "--prepare", "x:mean=0.5/1/-0.25,std=2/1/0.5")

    def test_table_vocabulary_and_bad_rows(self):
        x, city, y = self.rows()
        good = self.csv(x, city, y)
        self.train(self.table, self.write("t.csv", good), "run")
        with open(self.path("run") + "/vocabulary.json") as f:
            words = json.load(f)
        self.assertEqual(words, {"city": sorted(set(city)), "label": ["no", "yes"]})
        model = self.path("run") + "/model.onnx"
        # Only one class in the file to evaluate: its number stays.
        some = y == 1
        text = ortrain("eval", model, "--data", self.write("e.csv", self.csv(x[some], np.array(city)[some], y[some])))
        one = ortrain("eval", model, "--data", self.npz("e.npz", x=x[some].astype(np.float32), labels=y[some]))
        pick = lambda t: [l for l in t.splitlines() if l.startswith(("loss", "accuracy"))]
        self.assertEqual(pick(text), pick(one))
        bad = good + "1,Oslo,2,yes\r\n"
        text = ortrain("eval", model, "--strict", "--data", self.write("b.csv", bad), code=1)
        self.assertIn("column 'city': 'Oslo' is not among the 3 words of this model", text)
        for row, said in ((b"1,2\r\n", "expected 4 fields, got 2"), (b"1,\"Rom, IT\",,yes\r\n", "'depth': the value is missing")):
            path = self.write("m.csv", good.encode() + row)
            self.assertIn("1 samples could not be read", self.train(self.table, path, "m" + str(len(row))))
            text = self.train(self.table, path, "ms", "--strict", code=1)
            self.assertIn(said, text)
            self.assertIn("line ", text)
        text = self.train(self.table, self.write("u.csv", good.encode() + b"1,\xff,2,yes\r\n"), "u", code=1)
        self.assertIn("field 2: expected UTF-8, got the byte 255", text)
        self.assertIn("not closed", self.train(self.table, self.write("q.csv", good + '1,"open'), "q", code=1))
        self.assertIn("rows cannot be used", self.train(self.table, self.write("w.csv", good + "1,2\n" * 9), "w", code=1))
        filled = self.write("f.csv", good + "1.5,\"Rom, IT\",,yes\r\n")
        mean = np.float32(x[:, 2].mean())
        want = self.npz("f.npz", x=np.vstack([x, [1.5, sorted(set(city)).index("Rom, IT"), 0]]).astype(np.float32),
                        labels=np.append(y, 1))
        data = dict(np.load(want))
        data["x"][-1, 2] = np.float32(float(f"{x[:, 2].mean():.6f}"))
        self.assertAlmostEqual(data["x"][-1, 2], mean, 5)
        self.same(self.table, self.npz("f2.npz", **data), filled, "--prepare", "depth:fill=mean")

    def windows(self, tokens, stride):
        at = range(0, len(tokens) - 8, stride)
        cut = lambda k: np.stack([tokens[i + k:i + k + 8] for i in at]).astype(np.int64)
        return self.npz(f"w{stride}.npz", ids=cut(0), labels=cut(1))

    def test_tokens_and_text(self):
        tokens = np.random.default_rng(3).integers(0, 64, 200)
        for stride, more in ((8, ()), (3, ("--stride", 3))):
            want = self.windows(tokens, stride)
            self.same(self.lm, want, self.write("t.bin", tokens.astype("<u2").tobytes()), *more)
            self.same(self.lm, want, self.write("t.bin", tokens.astype("<u4").tobytes()), "--tokens", "uint32", *more)
        text = "Größe und Maß: 1 ≠ 2, nur zum Üben. " * 6
        symbols = sorted(set(text))
        want = self.windows(np.array([symbols.index(c) for c in text]), 8)
        self.same(self.lm, want, self.write("t.txt", text), "--text", "chars")
        self.train(self.lm, self.path("t.txt"), "run", "--text", "chars")
        text = ortrain("eval", self.path("run") + "/model.onnx", "--data", self.write("x.txt", "Maß x Maß Maß"), code=1)
        self.assertIn("line 1, byte 6: 'x' is not among", text)
        self.assertIn("label 7", self.train(self.lm, self.write("o.bin", np.full(40, 7000, "<u2").tobytes()), "o", code=1))
        self.assertIn("token number 0", self.train(self.lm, self.path("o.bin"), "o", code=1))
        low = "".join(map(chr, tokens % 63))
        self.same(self.lm, self.windows(np.frombuffer(low.encode(), np.uint8), 8), self.write("b.txt", low), "--text", "bytes")

    def test_several_files_and_mixtures(self):
        x, _, y = self.rows(30)
        x = x.astype(np.float32)
        want = self.npz("want.npz", x=x, labels=y)
        for k, part in enumerate((slice(0, 7), slice(7, 19), slice(19, 30))):
            self.npz(f"p{k}.npz", x=x[part], labels=y[part])
        self.same(self.table, want, self.path("p*.npz"))
        self.same(self.table, want, ",".join(self.path(f"p{k}.npz") for k in range(3)))
        # 12 of the first (7, so it goes round), 7 of the second (12) in an epoch of 19.
        mixed = [np.r_[np.arange(e * 12, e * 12 + 12) % 7, 7 + np.arange(e * 7, e * 7 + 7) % 12] for e in range(2)]
        self.train(self.table, f"{self.path('p0.npz')}:0.63,{self.path('p1.npz')}:0.37", "mix", "--shuffle", "none",
                   "--last-batch", "wrap", "--epochs", 2, "--steps", 9)
        order = np.concatenate(mixed)
        self.train(self.table, self.npz("order.npz", x=x[order], labels=y[order]), "mixed", "--shuffle", "none", "--steps", 9)
        self.assertEqual(losses(self.path("mix")), losses(self.path("mixed")))
        text = self.train(self.table, f"{self.path('p0.npz')}:0.5,{self.path('p1.npz')}", "e", code=2)
        self.assertIn("some of the paths have a weight", text)
        self.assertIn("matches no file", self.train(self.table, self.path("q*.npz"), "e", code=1))
        with open(want, "rb") as f:
            self.same(self.table, want, "-", stdin=f.read())

    def test_onnx_test_data(self):
        x, _, y = self.rows(12)
        want = self.npz("want.npz", x=x.astype(np.float32), labels=y)
        for k in range(2):
            folder = self.path(f"set/test_data_set_{k}")
            os.makedirs(folder)
            for name, a in (("input_0", x.astype(np.float32)), ("output_0", y)):
                with open(f"{folder}/{name}.pb", "wb") as f:
                    f.write(numpy_helper.from_array(a[6 * k:6 * k + 6], name).SerializeToString())
        self.same(self.table, want, self.path("set"))

    def test_held_out(self):
        x, _, y = self.rows(200)
        data = self.npz("all.npz", x=x.astype(np.float32), labels=y)
        text = self.train(self.table, data, "run", "--split", 0.2)
        trained = int(text.split(" samples, batch")[0].split("\n")[-1])
        self.assertTrue(145 <= trained <= 175, trained)
        self.assertIn("evaluation", text)
        ids = self.write("ids.txt", "3\n5\n199\n")
        self.train(self.table, data, "list", "--split", ids)
        keep = np.setdiff1d(np.arange(200), [3, 5, 199])
        self.train(self.table, self.npz("kept.npz", x=x[keep].astype(np.float32), labels=y[keep]), "kept")
        self.assertEqual(losses(self.path("list")), losses(self.path("kept")))
        self.assertIn("'900' is no sample", self.train(self.table, data, "e", "--split", self.write("b.txt", "900\n"), code=1))


if __name__ == "__main__":
    unittest.main()
