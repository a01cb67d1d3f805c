#!/usr/bin/env python3
# ctest-timeout: 600
"""Picture folders: the same losses, bit by bit, as the same pixels in an npz; augmentation that depends on seed,
epoch and sample alone (any number of workers, resumed in the middle of an epoch); what is left out is told; the
exported model carries its preparation and classes. The witness is numpy: pixels / 255, (x - mean) / std."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

import numpy as np
import onnx

SOURCE = os.environ["ORTRAIN_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tests"))
from program import ortrain, weights

COMMON = ["--batch-size", 32, "--loss", "cross_entropy", "--lr", 0.01, "--optimizer", "sgd"]


def write_png(path, pixels):
    """u8 [H,W] or [H,W,3]."""
    h, w = pixels.shape[:2]
    raw = b"".join(b"\0" + pixels[y].tobytes() for y in range(h))
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    head = struct.pack(">IIBBBBB", w, h, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def losses(folder):
    with open(os.path.join(folder, "run.jsonl")) as f:
        return [r["loss"] for r in map(json.loads, f) if "loss" in r]


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = cls.path("digits")
        cls.model = cls.path("digits.onnx")  # without the recipe beside it
        shutil.copy(os.path.join(SOURCE, "models", "digits", "model.onnx"), cls.model)
        data = np.load(os.path.join(SOURCE, "models", "digits", "train.npz"))
        pixels = np.rint(data["x"][:200, 0] * 255).clip(0, 255).astype(np.uint8)
        named = sorted((f"c{label}/{i % 3}/{i:04d}.png", i) for i, label in enumerate(data["labels"][:200]))
        for name, i in named:  # nested folders: the first one is the class
            path = os.path.join(cls.folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_png(path, pixels[i])
        order = [i for _, i in named]
        cls.pixels = pixels[order][:, None]
        cls.labels = data["labels"][order]

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.scratch.name, name)

    def npz(self, name, x):
        np.savez(self.path(name), x=x, labels=self.labels)
        return self.path(name)

    def train(self, data, out, *more, code=0, model=None):
        text = ortrain(model or self.model, "--data", data, "--out", self.path(out), *COMMON, *more, code=code)
        return text

    def test_equal_to_npz(self):
        plain = self.npz("plain.npz", self.pixels.astype(np.float32) / np.float32(255))
        normed = self.npz("normed.npz", (self.pixels.astype(np.float32) / np.float32(255) - np.float32(0.3)) /
                          np.float32(0.25))
        for name, data, more in (("a", plain, ()), ("b", normed, ("--prepare", "x:mean=0.3,std=0.25"))):
            self.train(data, name + "_npz", "--epochs", 2)
            want = losses(self.path(name + "_npz"))
            self.assertEqual(len(want), 14)
            for workers in (1, 3):
                out = f"{name}_{workers}"
                self.train(self.folder, out, "--epochs", 2, "--workers", workers, *more)
                self.assertEqual(losses(self.path(out)), want)
        # The same pixels as a u8 array, prepared by the same words.
        u8 = self.npz("u8.npz", self.pixels)
        self.train(u8, "c_u8", "--epochs", 2, "--prepare", "x:resize=8x8,mean=0.3,std=0.25")
        self.assertEqual(losses(self.path("c_u8")), losses(self.path("b_npz")))
        self.train(u8, "d_u8", "--epochs", 2, "--prepare", "x:scale=255,mean=0.3,std=0.25")
        self.assertEqual(losses(self.path("d_u8")), losses(self.path("b_npz")))

    def test_resume_in_the_middle_of_an_epoch(self):
        prepare = ("--prepare", "x:random-crop=8,border=2,flip,vflip,jitter=0.3/0.3")
        self.train(self.folder, "straight", "--steps", 16, "--workers", 1, *prepare)
        want = losses(self.path("straight"))
        self.train(self.folder, "plain_16", "--steps", 16)
        self.assertNotEqual(want, losses(self.path("plain_16")))
        # Epochs see different pictures: with a rate of 0 nothing else changes.
        self.train(self.folder, "still", "--epochs", 2, "--lr", 0, "--batch-size", 200, "--batch-norm", "frozen", *prepare)
        still = losses(self.path("still"))
        self.assertNotEqual(still[0], still[1])
        for first, then in ((1, 3), (3, 1)):
            out = f"cut_{first}"
            self.train(self.folder, out, "--steps", 10, "--workers", first, *prepare)  # an epoch has 7 steps
            ortrain(self.model, "--resume", "--out", self.path(out), "--steps", 16, "--workers", then)
            self.assertEqual(losses(self.path(out)), want)
            a, b = (weights(os.path.join(self.path(o), "model.onnx")) for o in ("straight", out))
            for key in a:
                self.assertEqual(a[key].tobytes(), b[key].tobytes(), key)

    def test_resume_notices_other_pictures(self):
        folder, run = self.path("exchanged"), self.path("noticed")
        shutil.copytree(self.folder, folder)
        ortrain(self.model, "--data", folder, "--out", run, *COMMON, "--steps", 2)
        go_on = lambda steps: ortrain(self.model, "--resume", "--out", run, "--steps", steps)
        self.assertNotIn("not the samples", go_on(3))
        first = sorted(os.listdir(folder + "/c0/0"))[0]
        write_png(f"{folder}/c0/0/{first}", 255 - self.pixels[0, 0])
        self.assertIn("not the samples", go_on(4))
        self.assertNotIn("not the samples", go_on(5))
        os.rename(f"{folder}/c0/0/{first}", f"{folder}/c0/0/+{first}")
        self.assertIn("not the samples", go_on(6))

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "needs a CPU that does not compute")
    def test_pinned_workers(self):
        for pin in (True, False):
            run = subprocess.Popen([os.environ["ORTRAIN_BIN"], self.model, "--data", self.folder, "--out",
                                    self.path(f"pin_{pin}"), *map(str, COMMON), "--epochs", "100000", "--threads", "1",
                                    "--workers", "1", *(["--pin-workers"] if pin else [])],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                allowed = {}
                until = time.monotonic() + 60
                while "ortrain-load" not in allowed and time.monotonic() < until:
                    time.sleep(0.1)
                    for task in os.listdir(f"/proc/{run.pid}/task"):
                        with open(f"/proc/{run.pid}/task/{task}/comm") as f:
                            allowed[f.read().strip()] = os.sched_getaffinity(int(task))
                self.assertIn("ortrain", allowed)  # the name that ps and top show
                self.assertEqual(allowed["ortrain"], os.sched_getaffinity(0))
                self.assertEqual(allowed["ortrain-load"] < allowed["ortrain"], pin, allowed)
            finally:
                run.kill()
                run.wait()

    def test_model_carries_its_preparation(self):
        self.train(self.folder, "carry", "--epochs", 3, "--prepare", "x:mean=0.3,std=0.25")
        model = os.path.join(self.path("carry"), "model.onnx")
        meta = {p.key: p.value for p in onnx.load(model).metadata_props}
        self.assertIn("x:channels=1,layout=chw,resize=8x8,scale=255,mean=0.3,std=0.25", meta["ortrain.recipe"])
        self.assertEqual(json.loads(meta["ortrain.vocabulary"])["labels"], [f"c{i}" for i in range(10)])
        text = ortrain("eval", model, "--data", self.folder)
        x = (self.pixels.astype(np.float32) / np.float32(255) - np.float32(0.3)) / np.float32(0.25)
        same = ortrain("eval", model, "--prepare", "", "--data", self.npz("e.npz", x))
        self.assertEqual([l for l in text.splitlines() if l.startswith(("loss", "acc"))],
                         [l for l in same.splitlines() if l.startswith(("loss", "acc"))])
        # A folder with some of the classes keeps their numbers; predict needs no labels.
        part = self.path("part")
        os.makedirs(part + "/c7")
        write_png(part + "/c7/a.png", self.pixels[self.labels == 7][0, 0])
        self.assertIn("1 samples", ortrain("eval", model, "--data", part))
        os.rename(part + "/c7/a.png", part + "/a.png")
        os.rmdir(part + "/c7")
        ortrain("predict", model, "--data", part, "--out", self.path("p.npz"))
        os.makedirs(part + "/other")
        os.rename(part + "/a.png", part + "/other/a.png")
        text = ortrain("eval", model, "--data", part, code=1)
        self.assertIn("'other' is no class of this model", text)

    def test_bad_pictures(self):
        folder = self.path("bad")
        for k in range(3):
            os.makedirs(f"{folder}/c{k}")
            for i in range(8):
                write_png(f"{folder}/c{k}/{i}.png", self.pixels[8 * k + i, 0])
        os.makedirs(folder + "/empty")
        open(folder + "/c0/3.png", "wb").close()
        with open(folder + "/c1/2.png", "r+b") as f:  # a good header, then damage
            f.seek(45)
            f.write(b"\xff" * 8)
        open(folder + "/c1/note.txt", "w").close()
        text = self.train(folder, "bad_run", "--epochs", 2, "--batch-size", 4)
        self.assertIn("2 samples could not be read and were left out", text)
        self.assertIn("holds no picture; the class keeps its number", text)
        self.assertIn("1 files of", text)
        with open(self.path("bad_run") + "/skipped.txt") as f:
            skipped = f.read()
        self.assertIn("c0/3.png': expected a JPEG, PNG or WebP picture, got an empty file", skipped)
        self.assertIn("c1/2.png': damaged PNG", skipped)
        os.rmdir(folder + "/empty")
        self.assertIn("c0/3.png", self.train(folder, "s1", "--strict", code=1))
        os.remove(folder + "/c0/3.png")
        self.assertIn("c1/2.png': damaged PNG", self.train(folder, "s2", "--strict", code=1))
        empty = self.path("nothing")
        os.makedirs(empty + "/a")
        self.assertIn("no picture", self.train(empty, "s3", code=1))

    def change_while_training(self, name, change, *more):
        """Trains on a copy of the folder and changes the copy once steps have been done: (exit code, what was said)."""
        folder, out = self.path(name), self.path(name + "_run")
        shutil.copytree(self.folder, folder)
        args = [self.model, "--data", folder, "--out", out, *COMMON, "--epochs", 300, *more]
        with open(self.path(name + ".txt"), "w+") as said:
            run = subprocess.Popen([os.environ["ORTRAIN_BIN"], *map(str, args)], stdout=said, stderr=subprocess.STDOUT)
            log, deadline = out + "/run.jsonl", time.monotonic() + 60
            while not (os.path.exists(log) and os.path.getsize(log) > 2000) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertIsNone(run.poll(), "the run ended before the folder changed")
            change(folder)
            code = run.wait(timeout=200)
            said.seek(0)
            return code, said.read(), out

    def test_folder_changes_while_training(self):
        def change(folder):
            one, two, three, four = sorted(os.listdir(folder + "/c0/0"))[:4]
            os.remove(f"{folder}/c0/0/{one}")
            with open(f"{folder}/c0/0/{two}", "r+b") as f:
                f.truncate(40)
            write_png(f"{folder}/c0/0/new", self.pixels[0, 0])  # another picture takes the place of one
            os.replace(f"{folder}/c0/0/new", f"{folder}/c0/0/{three}")
            os.rename(f"{folder}/c9", f"{folder}/.gone")  # a whole class
            changed.extend([one, two, three, four])
        changed = []
        code, text, out = self.change_while_training("changing", change)
        self.assertEqual(code, 0, text)
        self.assertEqual(len(losses(out)), 300 * 7)
        with open(out + "/skipped.txt") as f:
            skipped = f.read()
        one, two, three, four = changed
        for name in (one, two, three):
            self.assertIn(f"c0/0/{name}'", skipped)
        self.assertNotIn(four, skipped)
        gone = int((self.labels == 9).sum())
        self.assertEqual(sum("/c9/" in line for line in skipped.splitlines()), gone)
        self.assertIn(f"{gone + 3} samples could not be read and were left out", text)
        self.assertTrue(os.path.exists(out + "/model.onnx"))

    def test_strict_refuses_a_folder_that_changes(self):
        moved = []
        def change(folder):
            name = sorted(os.listdir(folder + "/c3/1"))[0]
            moved.append((f"{folder}/c3/1/{name}", self.path("aside.png")))
            os.rename(*moved[0])
        code, text, out = self.change_while_training("strictly", change, "--strict", "--checkpoint-every", 5)
        self.assertEqual(code, 1, text)
        self.assertIn(moved[0][0], text)
        done = len(losses(out))
        os.rename(*reversed(moved[0]))  # nothing is lost: the run goes on from what it saved
        ortrain(self.model, "--resume", "--out", out, "--steps", done + 20)
        self.assertEqual(len(losses(out)), done + 20)

    def test_bench_tells_of_loading(self):
        common = ["--loss", "cross_entropy", "--batch-size", 32, "--steps", 20]
        found = json.loads(ortrain("bench", self.model, "--data", self.folder, "--loader", "--workers", 3, "--json", "-",
                                   *common).splitlines()[-1])
        self.assertEqual(found["workers"], 3)
        self.assertGreater(found["samples_per_second"], 0)
        self.assertIn("samples/s with 1 worker,", ortrain("bench", self.model, "--data", self.folder, "--loader", "--workers",
                                                          1, *common))
        self.assertRegex(ortrain("bench", self.model, "--data", self.folder, *common),
                         r"(compute|input)-bound: waiting for data is \d+ % of a step, loading takes \d+\.\d\d cores")

    def test_said_before_the_run(self):
        text = self.train(self.folder, "w1", "--prepare", "x:resize=4x4", code=2)
        self.assertIn("makes pictures of f32[?,1,4,4], input 'x' takes f32[?,1,8,8]", text)
        self.assertIn("expected one of", self.train(self.folder, "w2", "--prepare", "x:reszie=8", code=2))
        a = np.zeros((4, 1, 8, 8), np.float32)
        np.savez(self.path("two.npz"), a=a, b=a, labels=np.zeros(4, np.int64))
        text = self.train(self.path("two.npz"), "w3", code=1)
        self.assertIn("a f32[4,1,8,8], b f32[4,1,8,8]", text)
        self.assertIn('--map "x:ARRAY"', text)
        self.train(self.path("two.npz"), "w4", "--map", "x:b", "--label", "labels")
        np.savez(self.path("one.npz"), picture=a, labels=np.zeros(4, np.int64))
        self.assertIn("'picture' is taken for the input 'x'", self.train(self.path("one.npz"), "w5"))


if __name__ == "__main__":
    unittest.main()
