"""For scripts that look at the program from outside: run it, read what it wrote."""
import os
import subprocess
import sys

import onnx
from onnx import numpy_helper


def ortrain(*args, code=0):
    """Standard output and error of $ORTRAIN_BIN; fails on another exit status than `code` (None: any)."""
    done = subprocess.run([os.environ["ORTRAIN_BIN"], *map(str, args)], capture_output=True, text=True, timeout=300)
    if code is not None and done.returncode != code:
        raise AssertionError(f"exit {done.returncode}: {args}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def weights(path):
    """The initializers of a model by name."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def take_program(fallback):
    """The program that --ortrain names (and takes off the command line), else `fallback`; it must exist."""
    if "--ortrain" in sys.argv:
        at = sys.argv.index("--ortrain")
        fallback = os.path.abspath(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    if not fallback or not os.path.exists(fallback):
        sys.exit(f"no ortrain program at '{fallback}' (--ortrain or $ORTRAIN_BIN)")
    return fallback
