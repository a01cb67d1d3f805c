#!/usr/bin/env python3
# ctest-timeout: 900
"""What a run writes for people, read back by other means: the log, report.html, TensorBoard events, MLflow files,
the timeline; and what `ortrain runs` and `ortrain compare` say of runs.

Witnesses: numpy on the outputs of `ortrain predict`, the data file, the exported weights; CRC-32C and protobuf's wire
format are read by a strict parser here (its checksum is held to RFC 3720's vectors).
"""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from program import ortrain, take_program, weights  # noqa: E402

BIN = take_program(os.environ.get("ORTRAIN_BIN"))
os.environ["ORTRAIN_BIN"] = BIN
DIGITS = os.path.join(os.environ["ORTRAIN_SOURCE"], "models", "digits")
MODEL = os.path.join(DIGITS, "model.onnx")

TABLE = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    TABLE.append(i)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = TABLE[(c ^ b) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


def masked(data):
    c = crc32c(data)
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def message(data):
    """Fields of a protobuf message: {number: [value]}; raises on anything malformed."""
    at, out = 0, {}

    def varint():
        nonlocal at
        v = shift = 0
        while True:
            b = data[at]
            at += 1
            v |= (b & 127) << shift
            shift += 7
            if b < 128:
                return v

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            v = varint()
        elif kind in (1, 5):
            v = struct.unpack_from("<d" if kind == 1 else "<f", data, at)[0]
            at += 8 if kind == 1 else 4
        elif kind == 2:
            n = varint()
            v, at = data[at:at + n], at + n
            assert len(v) == n, "truncated field"
        else:
            raise AssertionError(f"wire type {kind}")
        out.setdefault(key >> 3, []).append(v)
    return out


def events(path):
    """(step, tag, value message) of an event file, and its other events; checks every checksum."""
    data, at, values, others = read(path, "rb"), 0, [], []
    while at < len(data):
        (n,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at:at + 8]), "checksum of a length"
        body = data[at + 12:at + 12 + n]
        assert struct.unpack_from("<I", data, at + 12 + n)[0] == masked(body), "checksum of a record"
        at += 16 + n
        event = message(body)
        if 5 not in event:
            others.append(event)
        for summary in event.get(5, []):
            for value in message(summary)[1]:
                m = message(value)
                values.append((event.get(2, [0])[0], m[1][0].decode(), m))
    return values, others


def png_pixels(data):
    """Grey pixels of a PNG without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        n, kind = struct.unpack_from(">I4s", data, at)
        assert struct.unpack_from(">I", data, at + 8 + n)[0] == zlib.crc32(data[at + 4:at + 8 + n])
        if kind == b"IHDR":
            w, h, depth, colour = struct.unpack_from(">IIBB", data, at + 8)
            assert (depth, colour) == (8, 0)
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + n]
        at += 12 + n
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(h, w + 1)
    assert not raw[:, 0].any()
    return raw[:, 1:]


def read(path, mode="r"):
    with open(path, mode, **({} if "b" in mode else {"encoding": "utf-8"})) as f:
        return f.read()


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")
    return json.loads(text, parse_constant=refuse)


def embedded(path):
    """The JSON inside a page; also: the page needs nothing from elsewhere."""
    text = read(path)
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert len(found) == 1
    rest = text.replace(found[0], "")
    links = [u for u in re.findall(r"https?://[^\s'\"`)]+", rest) if u != "http://www.w3.org/2000/svg"]
    assert not links, links
    for mark in ("<!--TITLE-->", "/*STYLE*/", "/*CHARTS*/", "/*PAGE*/", "/*DATA*/"):
        assert mark not in rest, mark
    return strict(found[0])


def log(run):
    return [json.loads(line) for line in read(os.path.join(run, "run.jsonl")).splitlines()]


class Watching(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="ortrain-watching-")
        cls.run_dir, cls.ml = os.path.join(cls.dir, "runs", "a"), os.path.join(cls.dir, "ml")
        cls.said = ortrain(MODEL, "--epochs", 2, "--out", cls.run_dir, "--profile", 3, "--clip-norm", 5,
                           "--log-to", f"report,histograms,mlflow={cls.ml}")
        cls.rows = log(cls.run_dir)
        cls.steps = [r for r in cls.rows if "eval" not in r]
        cls.evals = [r for r in cls.rows if "eval" in r]
        cls.report = embedded(os.path.join(cls.run_dir, "report.html"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir, ignore_errors=True)

    def test_log_has_what_is_promised(self):
        for row in self.steps:
            for key in ("loss", "lr", "grad_norm", "samples_per_s", "ms", "wait_ms", "rss_bytes"):
                self.assertGreaterEqual(row[key], 0, key)
            self.assertGreater(row["rss_bytes"], 1 << 20)
        self.assertEqual([r["step"] for r in self.steps], list(range(1, 91)))
        self.assertEqual([r["step"] for r in self.evals], [45, 90])

    def test_report_has_every_row_of_the_log(self):
        history = self.report["history"]
        self.assertEqual((history["stride"], history["step"]), (1, list(range(1, 91))))
        for key in ("loss", "epoch_loss", "lr", "grad_norm", "samples_per_s", "ms", "wait_ms", "rss_bytes"):
            np.testing.assert_allclose(history["columns"][key]["mean"], [r[key] for r in self.steps], rtol=1e-6, err_msg=key)
        self.assertEqual(history["eval"], [{"step": r["step"], **r["eval"]} for r in self.evals])
        run = self.report["run"]
        self.assertEqual((run["state"], run["step"], run["steps"], run["parameters"]), ("done", 90, 90, 53130))
        self.assertIn("epochs = 2", self.report["recipe"])
        self.assertTrue(run["machine"]["cores"] > 0 and run["versions"]["ortrain"])

    def predicted(self):
        out = os.path.join(self.dir, "p.npz")
        ortrain("predict", os.path.join(self.run_dir, "model.onnx"), "--data", os.path.join(DIGITS, "test.npz"), "--out", out)
        x = np.load(out)
        logits = x[x.files[0]].astype(np.float64)
        p = np.exp(logits - logits.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def test_confusion_and_worst_samples(self):
        p, test = self.predicted(), np.load(os.path.join(DIGITS, "test.npz"))
        labels = test["labels"]
        want = np.zeros((10, 10), int)
        np.add.at(want, (labels, p.argmax(1)), 1)
        look = self.report["look"]
        np.testing.assert_array_equal(look["confusion"], want)
        self.assertEqual(look["looked"], len(labels))
        loss = -np.log(p[np.arange(len(labels)), labels])
        order = np.argsort(-loss)[:len(look["worst"])]
        self.assertEqual([w["sample"] for w in look["worst"]], order.tolist())
        np.testing.assert_allclose([w["loss"] for w in look["worst"]], loss[order], rtol=2e-3)
        for w in look["worst"]:
            self.assertEqual((w["label"], w["said"]), (labels[w["sample"]], p[w["sample"]].argmax()))
            self.assertAlmostEqual(w["probability"], p[w["sample"]].max(), places=3)

    def test_memory_map(self):
        memory = self.report["memory"]
        self.assertEqual(memory["bytes"], self.report["run"]["memory"]["arena"])
        self.assertLessEqual(memory["needed"], memory["bytes"])
        ends = [offset + size for _, offset, size, *_ in memory["blocks"]]
        self.assertTrue(memory["bytes"] - 64 < max(ends) <= memory["bytes"])
        for name, _, size, first, last, kind in memory["blocks"]:
            self.assertTrue(name and size > 0 and 0 <= first <= last < len(memory["steps"]) and kind in (0, 1, 2, 3))
        # Blocks at one address at one time only where one takes over from the other.
        for i, (_, o1, s1, f1, l1, _) in enumerate(memory["blocks"]):
            for _, o2, s2, f2, l2, _ in memory["blocks"][i + 1:]:
                if o1 < o2 + s2 and o2 < o1 + s1 and o1 != o2:
                    self.assertFalse(f1 <= l2 and f2 <= l1)

    def test_checksum(self):
        self.assertEqual(crc32c(bytes(32)), 0x8A9136AA)  # RFC 3720, B.4
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)

    def test_tensorboard_events(self):
        (path,) = glob.glob(os.path.join(self.run_dir, "events.out.tfevents.*"))
        values, others = events(path)
        self.assertEqual(others[0][3], [b"brain.Event:2"])
        for key in ("loss", "lr", "grad_norm", "samples_per_s"):
            got = [(s, m[2][0]) for s, tag, m in values if tag == "train/" + key]
            self.assertEqual([s for s, _ in got], list(range(1, 91)))
            np.testing.assert_array_equal([v for _, v in got], np.float32([r[key] for r in self.steps]))
        got = [(s, m[2][0]) for s, tag, m in values if tag == "eval/accuracy"]
        np.testing.assert_array_equal(got, np.float32([(r["step"], r["eval"]["accuracy"]) for r in self.evals]))
        trained = weights(os.path.join(self.run_dir, "model.onnx"))
        seen = 0
        for step, tag, m in values:
            if step != 90 or not tag.startswith("parameters/") or tag[11:] not in trained:
                continue
            w, h = trained[tag[11:]].astype(np.float64).ravel(), message(m[5][0])
            limits, counts = (np.frombuffer(h[k][0], "<f8") for k in (6, 7))
            self.assertEqual((h[1][0], h[2][0], h[3][0]), (w.min(), w.max(), w.size), tag)
            np.testing.assert_allclose((h[4][0], h[5][0]), (w.sum(), (w * w).sum()), rtol=1e-9)
            want = np.histogram(w, np.concatenate([[-np.inf], np.nextafter(limits, -np.inf)]))[0]
            np.testing.assert_array_equal(counts, want, tag)
            seen += 1
        self.assertGreater(seen, 5)
        pictures = {tag: message(m[4][0]) for step, tag, m in values if step == 90 and tag.startswith("pictures/") and 4 in m}
        self.assertEqual(len(pictures), 8)
        test = np.load(os.path.join(DIGITS, "test.npz"))
        x = test[[k for k in test.files if k != "labels"][0]]
        for i in range(8):
            image = pictures[f"pictures/{i}"]
            self.assertEqual((image[1], image[2], image[3]), ([8], [8], [1]))
            v = x[i, 0].astype(np.float64)
            want = (v - x[i].min()) / (x[i].max() - x[i].min()) * 255
            self.assertLessEqual(np.abs(png_pixels(image[4][0]) - want).max(), 0.51)

    def test_timeline(self):
        trace = strict(read(os.path.join(self.run_dir, "timeline.json")))["traceEvents"]
        slices = [e for e in trace if e["ph"] == "X"]
        steps = sorted((e for e in slices if e["cat"] == "step"), key=lambda e: e["ts"])
        self.assertEqual([s["name"] for s in steps], ["step 4", "step 5", "step 6"])
        ops = [e for e in slices if e["cat"] == "op"]
        self.assertEqual(len(ops), 3 * len(self.report["memory"]["steps"]))
        self.assertEqual([o["args"]["node"] for o in ops[:len(ops) // 3]], self.report["memory"]["steps"])
        inside = [o for o in ops if any(s["ts"] <= o["ts"] and o["ts"] + o["dur"] <= s["ts"] + s["dur"] + 1e-3 for s in steps)]
        self.assertEqual(len(inside), len(ops))
        for tid in {e["tid"] for e in slices}:  # slices of a thread nest or follow one another
            open_ends = []
            for e in sorted((e for e in slices if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
                while open_ends and open_ends[-1] <= e["ts"] + 1e-3:
                    open_ends.pop()
                self.assertTrue(not open_ends or e["ts"] + e["dur"] <= open_ends[-1] + 1e-3, e)
                open_ends.append(e["ts"] + e["dur"])
        live = [e["args"]["bytes live"] for e in trace if e["ph"] == "C"]
        self.assertEqual(len(live), len(ops))
        needed = self.report["memory"]["needed"]  # every block rounded up to 64 bytes
        self.assertTrue(needed - 64 * 20 <= max(live) <= needed, (max(live), needed))
        self.assertGreater(min(live), 0)
        self.assertEqual(sum(o["calls"] for o in self.report["operators"]), len(ops) // 3)

    def test_mlflow_files(self):
        (run,) = [p for p in glob.glob(os.path.join(self.ml, "0", "*")) if os.path.isdir(p)]
        meta = dict(line.split(": ", 1) for line in read(os.path.join(run, "meta.yaml")).splitlines())
        self.assertEqual((meta["status"], meta["run_name"]), ("3", "'a'"))
        self.assertEqual(meta["run_id"].strip("'"), os.path.basename(run))
        lines = [line.split() for line in read(os.path.join(run, "metrics", "train", "loss")).splitlines()]
        self.assertEqual([(int(s), float(v)) for _, v, s in lines], [(r["step"], r["loss"]) for r in self.steps])
        self.assertEqual(read(os.path.join(run, "params", "optimizer")), "adamw")
        self.assertTrue(os.path.exists(os.path.join(run, "artifacts", "model.onnx")))

    def test_summary_names_the_files(self):
        for name in ("timeline.json", "report.html"):
            self.assertIn(os.path.join(self.run_dir, name), self.said)

    def test_nothing_on_request(self):
        out = os.path.join(self.dir, "bare")
        ortrain(MODEL, "--steps", 3, "--out", out, "--log-to", "none")
        self.assertEqual(sorted(os.listdir(out)), ["checkpoints", "model.onnx", "recipe.toml", "run.json", "run.jsonl"])
        self.assertIn("--log-to curves", ortrain(MODEL, "--steps", 3, "--out", out + "2", "--log-to", "curves", code=2))
        self.assertFalse(os.path.exists(out + "2"))

    def test_long_runs_are_merged(self):
        out = os.path.join(self.dir, "long")
        ortrain(MODEL, "--steps", 2101, "--batch-size", 2, "--out", out, "--eval-every", 2101, "--checkpoint-every", 3000)
        rows, history = [r for r in log(out) if "eval" not in r], embedded(os.path.join(out, "report.html"))["history"]
        self.assertEqual((history["stride"], len(history["step"])), (2, 1051))
        loss, column = np.array([r["loss"] for r in rows]), history["columns"]["loss"]
        pairs = loss[:2100].reshape(-1, 2)
        np.testing.assert_allclose(column["mean"][:1050], pairs.mean(1), rtol=1e-6)
        np.testing.assert_allclose(column["low"][:1050], pairs.min(1), rtol=1e-6)
        np.testing.assert_allclose(column["high"][:1050], pairs.max(1), rtol=1e-6)
        self.assertEqual(history["step"][-1], 2101)

    def test_resume_goes_on(self):
        out = os.path.join(self.dir, "again")
        ortrain(MODEL, "--steps", 20, "--out", out)
        ortrain(MODEL, "--steps", 30, "--out", out, "--resume")
        report = embedded(os.path.join(out, "report.html"))
        self.assertEqual(report["history"]["step"], list(range(1, 31)))
        np.testing.assert_allclose(report["history"]["columns"]["loss"]["mean"], [r["loss"] for r in log(out) if "eval" not in r], rtol=1e-6)
        starts = [e for path in glob.glob(os.path.join(out, "events*")) for e in events(path)[1] if 7 in e]
        self.assertEqual([(e[2], message(e[7][0])) for e in starts], [([21], {1: [1]})])

    def test_runs_and_compare(self):
        folder = os.path.dirname(self.run_dir)
        other = os.path.join(folder, "b")
        ortrain(MODEL, "--epochs", 1, "--out", other, "--lr", "0.003")
        bad = os.path.join(folder, "c")
        ortrain(MODEL, "--epochs", 1, "--out", bad, "--lr", "1e6", "--optimizer", "sgd", code=1)
        killed = os.path.join(folder, "d")
        shutil.copytree(other, killed)
        run = json.loads(read(os.path.join(killed, "run.json")))
        with open(os.path.join(killed, "run.json"), "w") as f:
            json.dump({**run, "state": "running"}, f)
        lines = ortrain("runs", folder).splitlines()
        self.assertEqual(lines[0].split()[:4], ["run", "state", "steps", "time"])
        states = {line.split()[0]: line.split()[1:3] for line in lines[1:]}
        self.assertEqual(states["a"], ["done", "90/90"])
        self.assertEqual(states["b"], ["done", "45/45"])
        self.assertEqual(states["c"][0], "failed")
        self.assertEqual(states["d"][0], "killed")
        best = self.report["run"]["best"]["accuracy"]
        self.assertIn(f"accuracy {best['value']:.4g} (step {best['step']})", [line for line in lines if line.startswith("a ")][0])
        listed = {os.path.basename(r["folder"]): r for r in json.loads(ortrain("runs", folder, "--json", "-"))}
        self.assertEqual(listed["a"]["best"]["accuracy"], best)
        page = os.path.join(self.dir, "compare.html")
        said = ortrain("compare", self.run_dir, other, "--out", page)
        self.assertRegex(said, r"(?m)^lr +0.001 +0.003$")
        self.assertIn("training loss (smoothed) by step", said)
        data = embedded(page)
        self.assertEqual([r["name"] for r in data["runs"]], ["a", "b"])
        curve = {c["run"]: c["points"] for c in data["plots"][0]["curves"]}
        np.testing.assert_allclose(curve[0], [(r["step"], r["loss"]) for r in self.steps], rtol=1e-6)
        self.assertEqual(len(curve[1]), 45)
        self.assertIn("holds no run", ortrain("compare", self.dir, code=2))

    def test_live_line_on_a_terminal(self):
        def on_a_terminal(columns, **env):
            import fcntl
            import pty
            import termios
            main, side = pty.openpty()
            fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            out = os.path.join(self.dir, f"tty{columns}{len(env)}")
            child = subprocess.Popen([BIN, MODEL, "--steps", "400", "--eval-every", "400", "--out", out, "--log-to", "none"], stdout=side,
                                     env={**os.environ, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm", **env})
            os.close(side)
            text = b""
            while True:
                try:
                    part = os.read(main, 65536)
                except OSError:
                    break
                if not part:
                    break
                text += part
            self.assertEqual(child.wait(), 0)
            os.close(main)
            return text.decode()
        wide = on_a_terminal(160)
        self.assertRegex(wide, "[▁▂▃▄▅▆▇█]{4}")
        self.assertIn("\x1b[36m", wide)
        plain = on_a_terminal(160, NO_COLOR="1")
        self.assertNotIn("\x1b[36m", plain)
        self.assertRegex(plain, "[▁▂▃▄▅▆▇█]{4}")
        lines = re.findall(r"\r\x1b\[K(step \d+/[^\r\n]*)", on_a_terminal(40, NO_COLOR="1"))
        self.assertGreater(len(lines), 2)
        self.assertLess(max(map(len, lines)), 40)
        self.assertNotRegex(self.said, "[▁▂▃▄▅▆▇█\x1b]")


if __name__ == "__main__":
    unittest.main()
