#!/usr/bin/env python3
"""AGENTS.md's reading order names files that exist, and AGENTS.md stays at one page (80 lines)."""
import os
import re
import sys

SOURCE = os.environ.get("ORTRAIN_SOURCE") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    with open(os.path.join(SOURCE, "AGENTS.md"), encoding="utf-8") as f:
        text = f.read()
    section = re.search(r"^## Reading order\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    files = re.findall(r"^\s*\d+\. `([^`]+)`", section.group(1), re.M) if section else []
    missing = [f for f in files if not os.path.exists(os.path.join(SOURCE, f))]
    for file in missing:
        print(f"AGENTS.md: {file} does not exist")
    lines = text.count("\n")
    print(f"{len(files)} files in the reading order, {len(missing)} missing; AGENTS.md has {lines} lines")
    sys.exit(1 if missing or len(files) < 10 or lines > 80 else 0)


if __name__ == "__main__":
    main()
