#!/usr/bin/env python3
# ctest-label: slow
# ctest-timeout: 1800
"""../precision/precision_check.py with products of 16-bit floats multiplied as they are (ORTRAIN_HALF=native), as a CPU with
fast units for them would choose; others compute them where the library can. The bounds are the same."""
import os, sys

os.environ["ORTRAIN_HALF"] = "native"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "precision"))
import precision_check

if __name__ == "__main__":
    precision_check.main()
