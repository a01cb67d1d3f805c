#!/usr/bin/env python3
# ctest-label: slow
"""Each header compiles alone: it includes what it uses.

Every header becomes one small source file below $ORTRAIN_BUILD/headers_alone, compiled with the
warnings of the build (through ccache where there is one). `*-inl.h` files, which are meant to be
included several times by one source, are left out.
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys

SOURCE = os.environ.get("ORTRAIN_SOURCE") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ORTRAIN_BUILD") or os.path.join(SOURCE, "build")
PREFIX = os.path.dirname(os.path.dirname(os.environ.get("ORTRAIN_PYTHON", "")))
FLAGS = ["-std=c++20", "-O0", "-fopenmp", "-Wall", "-Wextra", "-Werror",
         "-Wno-missing-field-initializers", "-Wno-unused-function", "-I" + SOURCE,
         "-isystem", os.path.join(BUILD, "generated")]
if os.path.isdir(os.path.join(PREFIX, "include")):
    FLAGS += ["-isystem", os.path.join(PREFIX, "include")]


def headers():
    for folder in ("graph", "ops", "runtime", "importers", "tests"):
        for path, _, names in os.walk(os.path.join(SOURCE, folder)):
            for name in sorted(names):
                if name.endswith(".h") and not name.endswith("-inl.h"):
                    yield os.path.relpath(os.path.join(path, name), SOURCE)


def compile_alone(header):
    """Returns the compiler's complaints, "" if there are none."""
    source = os.path.join(BUILD, "headers_alone", header.replace("/", "__") + ".cc")
    text = f'#include "{header}"\n'
    if not os.path.exists(source) or open(source).read() != text:
        with open(source, "w") as f:
            f.write(text)
    ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
    command = [*ccache, os.environ.get("ORTRAIN_CXX", "c++"), *FLAGS, "-c", source, "-o", source + ".o"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip()[:2000] if done.returncode else ""


def main():
    os.makedirs(os.path.join(BUILD, "headers_alone"), exist_ok=True)
    names, failed = list(headers()), 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, errors in zip(names, pool.map(compile_alone, names)):
            if errors:
                print(f"FAIL {header}\n{errors}\n")
                failed += 1
    print(f"{len(names) - failed} of {len(names)} headers compile alone")
    sys.exit(1 if failed or not names else 0)


if __name__ == "__main__":
    main()
