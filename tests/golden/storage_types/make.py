# Writes values.txt: what ml_dtypes (the storage types of ONNX's own reference) makes of every code
# and of a list of numbers. Line: "decode TYPE code value" or "encode TYPE hex-of-double code".
# Not saturated casts are ml_dtypes' own; small integers wrap after truncation, as it does.
import ml_dtypes
import numpy as np

FLOATS = {
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f4e2m1": ml_dtypes.float4_e2m1fn,
}
INTS = {"i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "i2": ml_dtypes.int2, "u2": ml_dtypes.uint2}

rng = np.random.default_rng(1)
with open("values.txt", "w") as out:
    for name, t in {**FLOATS, "f8e8m0": ml_dtypes.float8_e8m0fnu}.items():
        codes = np.arange(16 if name == "f4e2m1" else 256, dtype=np.uint8)
        for code, value in zip(codes, codes.view(t).astype(np.float64)):
            print("decode", name, code, value, file=out)
    for name, t in FLOATS.items():
        codes = np.arange(16 if name == "f4e2m1" else 256, dtype=np.uint8)
        exact = codes.view(t).astype(np.float64)
        exact = np.unique(exact[np.isfinite(exact)])
        middle = (exact[1:] + exact[:-1]) / 2  # ties
        some = rng.choice(middle, min(40, len(middle)), replace=False)
        x = np.concatenate([
            some, np.nextafter(some, np.inf), np.nextafter(some, -np.inf),
            rng.standard_normal(20) * 10.0 ** rng.integers(-6, 6, 20),
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324, 1e-30]])
        for v, code in zip(x, x.astype(t).view(np.uint8)):
            print("encode", name, float(v).hex(), code, file=out)
    for name, t in INTS.items():
        for v in range(-9, 17):
            print("encode", name, float(v).hex(), np.int64(v).astype(t).astype(np.int8).view(np.uint8), file=out)
        for v in (-1.75, -0.5, 0.5, 1.99):
            print("encode", name, float(v).hex(), np.int64(v).astype(t).astype(np.int8).view(np.uint8), file=out)
