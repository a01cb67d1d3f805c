"""Resampling, grids, regions, folding, Fourier transforms."""
import math

import numpy as np
import torch
import torch.nn.functional as F
import torchvision

from make_ops import case, const, data, fixed, v, x

# ---- Resize: torch where it has the mode -----------------------------------------------------------------
TORCH_MODE = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}


def resize_case(form, shape, size, mode, align=False, antialias=False, **attrs):
    r = len(size)
    coord = "align_corners" if align else "half_pixel"
    case("Resize", form, [x(*shape), None, None, const(list(shape[:2]) + size)],
         lambda t, *_: F.interpolate(t, size=size, mode=TORCH_MODE[mode, r], align_corners=align, antialias=antialias),
         mode=mode, coordinate_transformation_mode=coord, **({"antialias": 1, "exclude_outside": 1} if antialias else {}), **attrs)


resize_case("linear_up", (1, 2, 3, 2), [5, 4], "linear")
resize_case("linear_down", (1, 1, 5, 6), [3, 2], "linear")
resize_case("linear_align", (1, 1, 3, 3), [5, 2], "linear", align=True)
resize_case("linear_1d", (2, 1, 4), [7], "linear")
resize_case("linear_3d", (1, 1, 2, 2, 3), [3, 3, 2], "linear")
resize_case("cubic_up", (1, 1, 4, 4), [7, 6], "cubic", cubic_coeff_a=-0.75)
resize_case("cubic_align", (1, 1, 4, 4), [5, 7], "cubic", align=True, cubic_coeff_a=-0.75)
resize_case("linear_antialias", (1, 1, 6, 8), [3, 3], "linear", antialias=True)
resize_case("cubic_antialias", (1, 1, 7, 7), [3, 4], "cubic", antialias=True, cubic_coeff_a=-0.5)


# The other coordinate rules, one axis at a time as a matrix [out, in] (formulas of onnx's operator text).
def matrix(n, out, mode, coord="half_pixel", scale=None, a=-0.75, exclude=False, nearest="round_prefer_floor", roi=(0, 1),
           extrapolate=None):
    s = scale or out / n
    m = np.zeros((out, n))
    outside = np.zeros(out, bool)
    for o in range(out):
        p = {"half_pixel": (o + 0.5) / s - 0.5,
             "half_pixel_symmetric": None,
             "pytorch_half_pixel": (o + 0.5) / s - 0.5 if out > 1 else 0.0,
             "align_corners": 0.0 if out == 1 else o * (n - 1) / (out - 1),
             "asymmetric": o / s,
             "tf_crop_and_resize": (roi[0] * (n - 1) + o * (roi[1] - roi[0]) * (n - 1) / (out - 1)) if out > 1
             else 0.5 * (roi[0] + roi[1]) * (n - 1)}[coord]
        if coord == "half_pixel_symmetric":
            adjustment = out / (s * n)
            centre = n / 2
            p = centre * (1 - adjustment) + (o + 0.5) / s - 0.5
        if coord == "tf_crop_and_resize" and (p < 0 or p > n - 1):
            outside[o] = True
            continue
        if mode == "nearest":
            q = {"round_prefer_floor": math.ceil(p - 0.5), "round_prefer_ceil": math.floor(p + 0.5),
                 "floor": math.floor(p), "ceil": math.ceil(p)}[nearest]
            m[o, min(max(q, 0), n - 1)] = 1
            continue
        low = math.floor(p)
        f = p - low
        if mode == "linear":
            taps = {low: 1 - f, low + 1: f}
        else:
            d = [1 + f, f, 1 - f, 2 - f]
            w = [((a * d[0] - 5 * a) * d[0] + 8 * a) * d[0] - 4 * a, ((a + 2) * d[1] - (a + 3)) * d[1] * d[1] + 1,
                 ((a + 2) * d[2] - (a + 3)) * d[2] * d[2] + 1, ((a * d[3] - 5 * a) * d[3] + 8 * a) * d[3] - 4 * a]
            taps = {low - 1 + i: w[i] for i in range(4)}
        if exclude:
            taps = {q: w for q, w in taps.items() if 0 <= q < n}
            total = sum(taps.values())
            taps = {q: w / total for q, w in taps.items()}
        for q, w in taps.items():
            m[o, min(max(q, 0), n - 1)] += w
    return torch.from_numpy(m), torch.from_numpy(outside)


def apply(t, first, second):
    return torch.einsum("ai,bj,ncij->ncab", first, second, t)


def resample(t, sizes, extrapolate=None, rois=((0, 1), (0, 1)), **kw):
    (m0, o0), (m1, o1) = (matrix(t.shape[2 + k], sizes[k], roi=rois[k], **kw) for k in range(2))
    y = apply(t, m0, m1)
    if extrapolate is not None:
        y = torch.where((o0[:, None] | o1[None, :])[None, None], torch.full_like(y, extrapolate), y)
    return y


for coord in ("asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"):
    for mode in ("linear", "cubic"):
        case("Resize", f"{mode}_{coord}", [x(1, 1, 4, 3), None, None, const([1, 1, 6, 5])],
             lambda t, *_, c=coord, m=mode: resample(t, [6, 5], mode=m, coord=c), mode=mode,
             coordinate_transformation_mode=coord)
for near in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    case("Resize", f"nearest_{near}", [x(1, 1, 3, 4), None, None, const([1, 1, 5, 2])],
         lambda t, *_, n=near: resample(t, [5, 2], mode="nearest", coord="asymmetric", nearest=n), mode="nearest",
         coordinate_transformation_mode="asymmetric", nearest_mode=near)
case("Resize", "cubic_exclude_outside", [x(1, 1, 4, 4), None, None, const([1, 1, 6, 7])],
     lambda t, *_: resample(t, [6, 7], mode="cubic", a=-0.5, exclude=True), mode="cubic", cubic_coeff_a=-0.5,
     exclude_outside=1)
case("Resize", "scales", [x(1, 1, 4, 4), None, const([1, 1, 1.5, 0.75], np.float32)],
     lambda t, *_: F.interpolate(t, scale_factor=(1.5, 0.75), mode="bilinear", align_corners=False,
                                 recompute_scale_factor=False), mode="linear")
case("Resize", "axes", [x(1, 2, 4, 3), None, None, const([6, 2])], lambda t, *_: resample(t, [6, 2], mode="linear"),
     mode="linear", axes=[2, 3])
case("Resize", "crop", [x(1, 1, 4, 4), const([0, 0, 0.25, -0.25, 1, 1, 0.75, 0.75], np.float32), None,
                        const([1, 1, 3, 4])],
     lambda t, *_: resample(t, [3, 4], mode="linear", coord="tf_crop_and_resize", rois=((0.25, 0.75), (-0.25, 0.75)),
                            extrapolate=10.0), mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
     extrapolation_value=10.0)
case("Resize", "opset11_pytorch", [x(1, 1, 3, 3), const([], np.float32), const([1, 1, 2, 2], np.float32)],
     lambda t, *_: F.interpolate(t, scale_factor=2, mode="bilinear", align_corners=False), opset=11, mode="linear",
     coordinate_transformation_mode="pytorch_half_pixel")
case("Resize", "opset10_nearest", [x(1, 1, 2, 3), const([1, 1, 2, 3], np.float32)],
     lambda t, s: t.repeat_interleave(2, 2).repeat_interleave(3, 3), opset=10, mode="nearest",
     ref="computes the form of opset 11")
case("Upsample", "nearest", [x(1, 2, 2, 3), const([1, 1, 2, 3], np.float32)],
     lambda t, s: t.repeat_interleave(2, 2).repeat_interleave(3, 3), opset=9, mode="nearest", ref="does not have it")
case("Upsample", "linear", [x(1, 1, 3, 2), const([1, 1, 2, 2], np.float32)],
     lambda t, s: resample(t, [6, 4], mode="linear", coord="asymmetric"), opset=9, mode="linear",
     ref="does not have it")
case("Upsample", "opset7", [x(1, 1, 2, 2)], lambda t: t.repeat_interleave(2, 2).repeat_interleave(2, 3), opset=7,
     mode="nearest", scales=[1.0, 1.0, 2.0, 2.0], ref="does not have it")

# ---- grids ---------------------------------------------------------------------------------------------------
GRID = np.random.RandomState(3).uniform(-1.2, 1.2, (1, 2, 3, 2)).round(3)
for mode, torch_mode in (("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")):
    for padding in ("zeros", "border", "reflection"):
        for align in (0, 1):
            if align and padding != "zeros":
                continue
            if (mode, padding) == ("cubic", "border"):
                continue
            case("GridSample", f"{mode}_{padding}{'_align' if align else ''}", [x(1, 2, 3, 4), v(GRID)],
                 lambda t, g, m=torch_mode, p=padding, a=align: F.grid_sample(t, g, m, p, bool(a)), mode=mode,
                 padding_mode=padding, align_corners=align)


def cubic_border(t, g):
    """ONNX (and its evaluator) moves positions outside of the image to the border before it samples; torch clips
    every tap of the sixteen instead."""
    size = torch.tensor([t.shape[3], t.shape[2]], dtype=torch.float64)
    p = ((g + 1) * size - 1) / 2
    p = torch.where((p < -0.5) | (p > size - 0.5), torch.minimum(torch.clamp(p.detach(), min=0), size - 1), p)
    return F.grid_sample(t, (2 * p + 1) / size - 1, "bicubic", "border", False)


case("GridSample", "cubic_border", [x(1, 2, 3, 4), v(GRID)], cubic_border, mode="cubic", padding_mode="border")
GRID3 = np.random.RandomState(4).uniform(-1.1, 1.1, (1, 2, 1, 2, 3)).round(3)
case("GridSample", "volume", [x(1, 1, 2, 3, 2), v(GRID3)], lambda t, g: F.grid_sample(t, g, align_corners=False))
case("GridSample", "volume_border", [x(1, 1, 2, 3, 2), v(GRID3)],
     lambda t, g: F.grid_sample(t, g, padding_mode="border", align_corners=True), padding_mode="border",
     align_corners=1)
case("GridSample", "opset16", [x(1, 1, 3, 3), v(GRID)], lambda t, g: F.grid_sample(t, g, align_corners=False), opset=16,
     mode="bilinear", ref="knows the mode names of opset 20 only")
for align in (0, 1):
    case("AffineGrid", f"2d_align{align}", [x(2, 2, 3), const([2, 1, 3, 4])],
         lambda t, s, a=align: F.affine_grid(t, [2, 1, 3, 4], bool(a)), align_corners=align)
case("AffineGrid", "3d", [x(1, 3, 4), const([1, 1, 2, 3, 2])], lambda t, s: F.affine_grid(t, [1, 1, 2, 3, 2], False))

# ---- regions ----------------------------------------------------------------------------------------------------
BOXES = [[0.5, 0.25, 3.5, 3.0], [1.0, 0.5, 4.25, 2.75], [0.0, 1.5, 2.0, 4.0]]
BATCH = [0, 1, 0]


def roi_align(t, boxes, size, scale=1.0, ratio=0, aligned=True):
    rois = torch.cat([torch.tensor(BATCH, dtype=torch.float64)[:, None], boxes.detach()], 1)
    return torchvision.ops.roi_align(t, rois, size, scale, ratio, aligned)


for form, kw, attrs in (("half_pixel", dict(ratio=2), dict(sampling_ratio=2)),
                        ("legacy", dict(ratio=1, aligned=False),
                         dict(sampling_ratio=1, coordinate_transformation_mode="output_half_pixel")),
                        ("adaptive", dict(ratio=0), dict()), ("scale", dict(ratio=2, scale=0.5),
                                                              dict(sampling_ratio=2, spatial_scale=0.5))):
    case("RoiAlign", form, [x(2, 2, 5, 5), fixed(BOXES), data(BATCH)],
         lambda t, b, i, kw=kw: roi_align(t, b, (2, 3), **kw), output_height=2, output_width=3, **attrs)
case("RoiAlign", "opset10", [x(2, 1, 5, 5), fixed(BOXES), data(BATCH)],
     lambda t, b, i: roi_align(t, b, (2, 2), ratio=2, aligned=False), opset=10, output_height=2, output_width=2,
     sampling_ratio=2, ref="computes the form of opset 16")

# ---- folding ---------------------------------------------------------------------------------------------------
case("Col2Im", "plain", [x(1, 8, 4), const([3, 3]), const([2, 2])], lambda t, *_: F.fold(t, (3, 3), (2, 2)))
case("Col2Im", "dilations", [x(1, 4, 2), const([3, 3]), const([2, 2])],
     lambda t, *_: F.fold(t, (3, 3), (2, 2), dilation=(2, 1)), dilations=[2, 1])
case("Col2Im", "strides_pads", [x(2, 4, 9), const([4, 4]), const([2, 2])],
     lambda t, *_: F.fold(t, (4, 4), (2, 2), padding=(1, 1), stride=(2, 2)), pads=[1, 1, 1, 1], strides=[2, 2])


# ---- Fourier -------------------------------------------------------------------------------------------------------
pair = lambda c: torch.view_as_real(c).contiguous()
cplx = lambda t: t[..., 0] + 1j * t[..., 1] if t.shape[-1] == 2 else t[..., 0].to(torch.complex128)
case("DFT", "real", [x(1, 5, 1), None, const(1)], lambda t, *_: pair(torch.fft.fft(t[..., 0], dim=1)))
case("DFT", "complex_axis", [x(1, 4, 3, 2), None, const(-3)], lambda t, *_: pair(torch.fft.fft(cplx(t), dim=1)))
case("DFT", "length_pad", [x(1, 4, 1), const(6), const(1)], lambda t, *_: pair(torch.fft.fft(t[..., 0], n=6, dim=1)))
case("DFT", "length_cut", [x(1, 6, 2), const(4), const(1)], lambda t, *_: pair(torch.fft.fft(cplx(t), n=4, dim=1)))
case("DFT", "onesided", [x(1, 6, 1), None, const(1)], lambda t, *_: pair(torch.fft.rfft(t[..., 0], dim=1)), onesided=1)
case("DFT", "inverse", [x(1, 5, 2), None, const(1)], lambda t, *_: pair(torch.fft.ifft(cplx(t), dim=1)), inverse=1)
case("DFT", "opset17", [x(1, 4, 1)], lambda t: pair(torch.fft.fft(t[..., 0], dim=1)), opset=17, axis=1)


def stft(signal, step, window, length, onesided):
    s = cplx(signal)
    frames = torch.stack([s[:, i:i + length] for i in range(0, s.shape[1] - length + 1, step)], 1)
    frames = frames * window if window is not None else frames
    y = torch.fft.fft(frames, dim=-1)
    return pair(y[..., :length // 2 + 1] if onesided else y)


REF_STFT = "casts its windows"
case("STFT", "onesided", [x(1, 12, 1), const(3), x(6)], lambda t, s, w: stft(t, 3, w, 6, True), onesided=1)
case("STFT", "both_sides", [x(2, 10, 1), const(2), x(4)], lambda t, s, w: stft(t, 2, w, 4, False), onesided=0)
case("STFT", "no_window", [x(1, 8, 1), const(4), None, const(4)], lambda t, *_: stft(t, 4, None, 4, True),
     onesided=1)
# Windows are data: what is trained is what they multiply.
N = 6
for op, w in (("HannWindow", lambda n, d: 0.5 - 0.5 * np.cos(2 * np.pi * n / d)),
              ("HammingWindow", lambda n, d: 25 / 46 - 21 / 46 * np.cos(2 * np.pi * n / d)),
              ("BlackmanWindow", lambda n, d: 0.42 - 0.5 * np.cos(2 * np.pi * n / d) + 0.08 * np.cos(4 * np.pi * n / d))):
    for periodic in (0, 1):
        values = torch.from_numpy(w(np.arange(N), N if periodic else N - 1))
        case(op, f"periodic{periodic}", [x(2, N)], lambda t, values=values: t * values,
             nodes=f"n = Constant<value = int64 {{{N}}}>() w = {op}<output_datatype=11, periodic={periodic}>(n) "
                   "y0 = Mul(x0, w)")
