#!/usr/bin/env python3
"""Who may include whom, and the other rules of the source that a compiler does not check.

Folders:
  graph/       the standard library and graph/ only
  runtime/     not ops/, not importers/; CUDA headers only in runtime/cuda and runtime/comm/nccl*
  ops/         graph/, runtime/kernel.h, library handles (runtime/cpu, runtime/cuda), ops/common/;
               not another op's file; no CUDA headers in a .cc
  importers/   graph/ and importers/
  runtime/cli/ everything
Also: each file opens with a comment; headers have #pragma once and no `using namespace`; no
shared_ptr in graph/ and runtime/. Prints every violation; exit code 1 if there is one.
"""
import os
import re
import sys

SOURCE = os.environ.get("ORTRAIN_SOURCE") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("graph", "ops", "runtime", "importers", "tests", "models")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA = re.compile(r"^(cuda|cublas|cudnn|nccl|nvrtc|nvToolsExt)")
# The standard library: no folder and no suffix, or one of C's own headers.
C_HEADERS = {"math.h", "stdint.h", "stddef.h", "string.h", "stdio.h", "stdlib.h"}


def source_files():
    for folder in FOLDERS:
        for path, folders, names in os.walk(os.path.join(SOURCE, folder)):
            folders[:] = [f for f in folders if f not in ("runs", "__pycache__")]
            for name in sorted(names):
                if name.endswith((".cc", ".h", ".cu", ".cuh", ".py", ".sh")):
                    yield os.path.relpath(os.path.join(path, name), SOURCE)


def include_problem(path, bracket, target):
    """Why this file may not include this target, or None."""
    folder = path.split("/")[0]
    root = target.split("/")[0]
    inside = root in ("graph", "ops", "runtime", "importers", "tests")
    if not inside and bracket == '"' and os.path.exists(
            os.path.join(SOURCE, os.path.dirname(path), target)):
        return "write the path from the top folder"
    if path.startswith("runtime/cli/") or folder == "tests":
        return None
    if root == "tests":
        return "tests/ is for tests"
    if folder == "graph":
        standard = "/" not in target and ("." not in target or target in C_HEADERS)
        return None if standard or root == "graph" else "graph/ uses the standard library only"
    if CUDA.match(target) and not (path.startswith(("runtime/cuda/", "runtime/comm/nccl")) or
                                   (folder == "ops" and path.endswith((".cu", ".cuh")))):
        return "CUDA headers belong into runtime/cuda, runtime/comm/nccl* and .cu files"
    if not inside:
        return None
    if folder == "runtime" and (root in ("ops", "importers") or target.startswith("runtime/cli/")):
        return "runtime/ knows neither ops/ nor importers/ nor the command line"
    if folder == "importers" and root in ("ops", "runtime"):
        return "importers/ knows graph/ only"
    if folder == "ops":
        stem = os.path.basename(path).split(".")[0]
        allowed = (root == "graph" or target.startswith("ops/common/") or
                   target in ("runtime/kernel.h", "ops/all_ops.h") or
                   target.startswith(("runtime/cpu/", "runtime/cuda/")) or
                   target.split("/")[-1].split(".")[0] == stem)
        return None if allowed else "ops/ sees graph/, runtime/kernel.h, library handles, ops/common/"
    return None


def opens_with_comment(path, lines):
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if path.endswith(".py"):
        while lines and lines[0].startswith("# ctest-"):
            lines = lines[1:]
        return bool(lines) and lines[0].startswith(('"""', "# "))
    if path.endswith(".sh"):
        return bool(lines) and lines[0].startswith("# ")
    return bool(lines) and lines[0].startswith(("// ", "/*"))


def problems_of(path, lines):
    folder = path.split("/")[0]
    if not opens_with_comment(path, lines):
        yield 1, "the file does not open with a comment that says what it is for"
    if not path.endswith((".cc", ".h", ".cu", ".cuh")):
        return
    if path.endswith(".h") and not path.endswith("-inl.h") and "#pragma once" not in lines:
        yield 1, "no #pragma once"
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]
        include = INCLUDE.match(line)
        if include:
            problem = include_problem(path, *include.groups())
            if problem:
                yield number, f"includes {include.group(2)}: {problem}"
        if path.endswith(".h") and re.match(r"\s*using\s+namespace\b", code):
            yield number, "`using namespace` in a header"
        if folder in ("graph", "runtime") and "shared_ptr" in code:
            yield number, "shared_ptr: who owns this?"


def main():
    files = count = 0
    for path in source_files():
        files += 1
        with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
            lines = f.read().split("\n")
        for number, problem in problems_of(path, lines):
            print(f"{path}:{number}: {problem}")
            count += 1
    print(f"{files} files, {count} problems")
    sys.exit(1 if count or not files else 0)


if __name__ == "__main__":
    main()
