"""Writes the pictures of this folder and expected.npz: what Pillow (and torchvision for colours) makes of them.
Needs pillow, torchvision, numpy; run where those are installed: python make_pictures.py"""
import glob
import io
import os

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import functional as F

os.chdir(os.path.dirname(os.path.abspath(__file__)))
for old in glob.glob("*.*"):
    if not old.endswith(".py"):
        os.remove(old)
rng = np.random.default_rng(3)
H, W = 14, 22
y, x = np.mgrid[0:H, 0:W]
smooth = np.stack([127 + 120 * np.sin(x / 5 + k) * np.cos(y / 4 - k) for k in range(3)], -1)
rgb = Image.fromarray((smooth + rng.normal(0, 6, (H, W, 3))).clip(0, 255).astype(np.uint8))
alpha = Image.fromarray((255 * x / (W - 1)).astype(np.uint8))
rgba = rgb.copy()
rgba.putalpha(alpha)
la = rgb.convert("L")
la.putalpha(alpha)

rgb.save("rgb.jpg", quality=90)
rgb.save("full.jpg", quality=95, subsampling=0)
rgb.save("progressive.jpg", quality=90, progressive=True)
rgb.convert("L").save("grey.jpg", quality=90)
rgb.convert("CMYK").save("cmyk.jpg", quality=95)
for k in range(2, 9):
    exif = Image.Exif()
    exif[0x112] = k
    rgb.save(f"turned{k}.jpg", quality=95, exif=exif)
exif = Image.Exif()
exif[0x112] = 6
rgb.save("turned6.png", exif=exif)
rgb.save("turned6.webp", lossless=True, exif=exif)
rgb.save("rgb.png")
rgb.convert("L").save("grey.png")
rgb.convert("L").point(lambda v: 255 * (v > 127)).convert("1").save("bits.png")
rgba.save("rgba.png")
la.save("la.png")
rgb.quantize(16).save("palette.png")
rgb.save("lossy.webp", quality=80)
rgb.save("lossless.webp", lossless=True)
rgba.save("alpha.webp", lossless=True, exact=True)

out = {}
for name in sorted(glob.glob("*.jpg") + glob.glob("*.png") + glob.glob("*.webp")):
    im = ImageOps.exif_transpose(Image.open(name))
    if im.mode in ("RGBA", "LA"):
        out[name + "/4"] = np.asarray(im.convert("RGBA"))
        a = np.asarray(im.convert("RGBA")).astype(int)
        over = (a[..., :3] * a[..., 3:] + 255 * (255 - a[..., 3:]) + 127) // 255  # over white, rounded
        im = Image.fromarray(over.astype(np.uint8))
    out[name + "/3"] = np.asarray(im.convert("RGB"))
    out[name + "/1"] = np.asarray(im.convert("RGB").convert("L"))
for h, w in ((7, 11), (5, 30), (28, 44), (14, 9), (3, 22), (1, 1), (64, 3), (2, 20), (16, 100), (13, 23)):
    out[f"resize/{h}x{w}"] = np.asarray(rgb.resize((w, h), Image.BILINEAR))
for name, adjust, values in (("brightness", F.adjust_brightness, (0.4, 1.7)), ("contrast", F.adjust_contrast, (0.3, 1.6)),
                             ("saturation", F.adjust_saturation, (0.0, 0.5, 1.8)), ("hue", F.adjust_hue, (-0.3, 0.2))):
    for v in values:
        out[f"{name}/{v}"] = np.asarray(adjust(rgb, v))
np.savez_compressed("expected.npz", **out)
