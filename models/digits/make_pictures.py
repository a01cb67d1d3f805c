#!/usr/bin/env python3
"""Writes the digits of train.npz and test.npz as a folder of PNG pictures, a folder per digit:
  python make_pictures.py FOLDER
Needs numpy only."""
import os
import struct
import sys
import zlib

import numpy as np


def write_png(path, pixels):
    """u8 [H,W] (grey) or [H,W,3]."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + pixels[y].tobytes() for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def main():
    folder = sys.argv[1]
    here = os.path.dirname(os.path.abspath(__file__))
    for part in ("train", "test"):
        data = np.load(os.path.join(here, part + ".npz"))
        for i, (x, label) in enumerate(zip(data["x"], data["labels"])):
            os.makedirs(os.path.join(folder, str(label)), exist_ok=True)
            write_png(os.path.join(folder, str(label), f"{part}{i:04}.png"), np.rint(x[0] * 255).astype(np.uint8))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
