#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 900
"""The golden training runs on one thread and with the instruction sets of lesser x86 CPUs.

ONEDNN_MAX_CPU_ISA limits oneDNN and our own vector kernels (ops/common/isa.h) to AVX2 and to SSE4.1; every case's
model.onnx must still reach PyTorch's numbers within the tolerances of its case.json (golden_check.py compares), and
every operator's examples pass (ops_engine_test, beside the program where it was built). On a machine that is no x86
only the thread count differs. The program is $ORTRAIN_BIN.
"""
import glob
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ENGINE = os.path.join(os.path.dirname(os.path.abspath(os.environ["ORTRAIN_BIN"])), "tests", "ops_engine_test")
GOLDEN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(job):
    isa, folder = job
    if folder == ENGINE:
        done = subprocess.run([ENGINE], capture_output=True, text=True, env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa})
        return isa, "ops_engine_test", done
    done = subprocess.run([sys.executable, os.path.join(GOLDEN, "golden_check.py"), folder, "--file", "model.onnx",
                           "--extra", "--threads 1"], capture_output=True, text=True,
                          env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa})
    return isa, os.path.basename(folder), done


def main():
    x86 = platform.machine() in ("x86_64", "AMD64")
    folders = sorted(os.path.dirname(f) for f in glob.glob(os.path.join(GOLDEN, "*", "case.json")))
    if os.path.exists(ENGINE):
        folders.insert(0, ENGINE)
    jobs = [(isa, folder) for isa in (("AVX2", "SSE41") if x86 else ("ALL",)) for folder in folders]
    assert len(jobs) >= 10, jobs
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for isa, name, done in pool.map(run, jobs):
            print(f"{isa} {name}: {'ok' if done.returncode == 0 else done.stdout + done.stderr}")
            failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
