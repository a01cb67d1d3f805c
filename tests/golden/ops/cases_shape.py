"""Operators that move, repeat, cut or join data."""
import numpy as np
import torch
import torch.nn.functional as F

from make_ops import case, const, data, fixed, v, x

# ---- same elements, other shape ---------------------------------------------------------------------
case("Reshape", "plain", [x(2, 3, 4), const([4, 6])], lambda t, _: t.reshape(4, 6))
case("Reshape", "minus_one", [x(2, 3, 4), const([0, -1])], lambda t, _: t.reshape(2, 12))
case("Reshape", "allowzero", [x(0, 3), const([3, 0])], lambda t, _: t.reshape(3, 0), allowzero=1)
case("Reshape", "to_scalar", [x(1, 1), const([])], lambda t, _: t.reshape(()))
case("Flatten", "default", [x(2, 3, 4)], lambda t: t.reshape(2, 12))
case("Flatten", "axis0", [x(2, 3)], lambda t: t.reshape(1, 6), axis=0)
case("Flatten", "negative", [x(2, 3, 4)], lambda t: t.reshape(6, 4), axis=-1)
case("Squeeze", "axes", [x(1, 3, 1, 2), const([0, -2])], lambda t, _: t.squeeze(2).squeeze(0))
case("Squeeze", "all", [x(1, 3, 1)], torch.squeeze)
case("Squeeze", "attribute", [x(1, 3, 1)], lambda t: t.squeeze(2), opset=11, axes=[2])
case("Unsqueeze", "axes", [x(2, 3), const([0, -1])], lambda t, _: t.unsqueeze(0).unsqueeze(-1))
case("Unsqueeze", "attribute", [x(2, 3)], lambda t: t.unsqueeze(1), opset=11, axes=[1])
case("Transpose", "default", [x(2, 3, 4)], lambda t: t.permute(2, 1, 0).contiguous())
case("Transpose", "perm", [x(2, 3, 4)], lambda t: t.permute(1, 2, 0).contiguous(), perm=[1, 2, 0])
case("DepthToSpace", "dcr", [x(1, 8, 2, 3)],
     lambda t: t.reshape(1, 2, 2, 2, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6), blocksize=2)
case("DepthToSpace", "crd", [x(2, 8, 1, 3)], lambda t: F.pixel_shuffle(t, 2), blocksize=2, mode="CRD")
case("DepthToSpace", "opset1", [x(1, 4, 2, 1)],
     lambda t: t.reshape(1, 2, 2, 1, 2, 1).permute(0, 3, 4, 1, 5, 2).reshape(1, 1, 4, 2), opset=7, blocksize=2)
case("SpaceToDepth", "plain", [x(1, 2, 4, 6)],
     lambda t: t.reshape(1, 2, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3), blocksize=2)

# ---- repeating ----------------------------------------------------------------------------------------
case("Expand", "plain", [x(3, 1), const([2, 3, 4])], lambda t, _: t.expand(2, 3, 4))
case("Expand", "smaller", [x(2, 3), const([1])], lambda t, _: t * 1)
case("Expand", "scalar", [x(), const([2, 2])], lambda t, _: t.expand(2, 2))
case("Tile", "plain", [x(2, 3), const([2, 3])], lambda t, _: t.repeat(2, 3))
case("Tile", "ones", [x(2, 3), const([1, 2])], lambda t, _: t.repeat(1, 2))
case("Tile", "zero", [x(2, 3), const([0, 1])], lambda t, _: t.repeat(0, 1))

# ---- joining and cutting --------------------------------------------------------------------------------
case("Concat", "axis0", [x(1, 3), x(2, 3)], lambda a, b: torch.cat([a, b], 0), axis=0)
case("Concat", "negative", [x(2, 1), x(2, 3), x(2, 2)], lambda a, b, c: torch.cat([a, b, c], 1), axis=-1)
case("Concat", "one", [x(2, 3)], lambda a: a * 1, axis=1)
case("Concat", "empty_part", [x(2, 0), x(2, 3)], lambda a, b: torch.cat([a, b], 1), axis=1)
case("Concat", "itself", [x(2, 2)], lambda a: torch.cat([a, a], 0), nodes="y0 = Concat<axis=0>(x0, x0)")
case("Split", "sizes", [x(2, 6), const([1, 2, 3])], lambda t, _: torch.split(t, [1, 2, 3], 1), outputs=3, axis=1)
case("Split", "num_outputs", [x(5, 2)], lambda t: torch.split(t, 2, 0), outputs=3, axis=0, num_outputs=3)
case("Split", "unused_output", [x(4, 2)], lambda t: (torch.split(t, 2, 0)[1],),
     nodes="a, y0 = Split<axis=0, num_outputs=2>(x0)")
case("Split", "attribute", [x(2, 4)], lambda t: torch.split(t, [3, 1], 1), outputs=2, opset=11, axis=1, split=[3, 1])
case("Split", "equal_opset7", [x(2, 4)], lambda t: torch.split(t, 2, 1), outputs=2, opset=7, axis=1)
case("Slice", "plain", [x(4, 5), const([1, 0]), const([3, 4])], lambda t, *_: t[1:3, 0:4])
case("Slice", "axes_steps", [x(4, 6), const([0, 1]), const([6, 4]), const([1, 0]), const([2, 1])],
     lambda t, *_: t[1:4, 0:6:2])
case("Slice", "negative_step", [x(4, 5), const([-1]), const([-100]), const([1]), const([-2])],
     lambda t, *_: t.flip(1)[:, ::2])
case("Slice", "clamped", [x(3, 4), const([-100]), const([2 ** 62]), const([0])], lambda t, *_: t * 1)
case("Slice", "empty", [x(3, 4), const([2]), const([2]), const([0])], lambda t, *_: t[2:2])
case("Slice", "attributes", [x(4, 5)], lambda t: t[:, 1:-1], opset=9, starts=[1], ends=[-1], axes=[1])
case("Trilu", "upper", [x(3, 4)], torch.triu)
case("Trilu", "lower_k", [x(2, 3, 3), const(1)], lambda t, _: torch.tril(t, 1), upper=0)
case("Trilu", "upper_negative", [x(4, 3), const(-1)], lambda t, _: torch.triu(t, -1))
case("CenterCropPad", "both", [x(5, 2), const([3, 4])], lambda t, _: F.pad(t[1:4], (1, 1)))
case("CenterCropPad", "odd", [x(5, 4), const([2, 7])], lambda t, _: F.pad(t[1:3], (1, 2)))
case("CenterCropPad", "axes", [x(2, 6), const([3])], lambda t, _: t[:, 1:4], axes=[-1])


# ---- padding: every mode as a table of source positions, constant ones by F.pad ------------------------------
def pad_axis(t, axis, before, after, mode):
    n = t.shape[axis]
    positions = np.arange(-before, n + after)
    if mode == "edge":
        positions = np.clip(positions, 0, n - 1)
    elif mode == "wrap":
        positions = positions % n
    else:
        period = max(2 * (n - 1), 1)
        positions = positions % period
        positions = np.where(positions >= n, period - positions, positions)
    return t.index_select(axis, torch.from_numpy(positions))


def pad_all(t, pads, mode):
    r = len(pads) // 2
    for a in range(r):
        t = pad_axis(t, a, pads[a], pads[a + r], mode)
    return t


for mode in ("reflect", "edge", "wrap"):
    case("Pad", mode, [x(3, 4), const([1, 2, 0, 3])], lambda t, _, m=mode: pad_all(t, [1, 2, 0, 3], m), mode=mode)
    case("Pad", f"{mode}_3d", [x(2, 3, 2), const([0, 1, 1, 0, 2, 1])],
         lambda t, _, m=mode: pad_all(t, [0, 1, 1, 0, 2, 1], m), mode=mode)
    case("Pad", f"{mode}_axes", [x(3, 4), const([1, 2]), None, const([-1])],
         lambda t, a, b, c, m=mode: pad_axis(t, 1, 1, 2, m), mode=mode)
case("Pad", "reflect_torch", [x(1, 3, 4), const([0, 0, 2, 0, 0, 1])], lambda t, _: F.pad(t, (2, 1), mode="reflect"),
     mode="reflect")
case("Pad", "edge_crop", [x(4, 4), const([1, -1, -1, 2])],
     lambda t, _: pad_axis(pad_axis(t[:3], 0, 1, 0, "edge")[:, 1:], 1, 0, 2, "edge"), mode="edge",
     ref="does not crop")
case("Pad", "constant", [x(2, 3), const([1, 0, 0, 2])], lambda t, _: F.pad(t, (0, 2, 1, 0)))
case("Pad", "value", [x(2, 3), const([1, 0, 0, 2]), v(1.5)],
     lambda t, _, c: F.pad(t, (0, 2, 1, 0)) + c * (1 - F.pad(torch.ones_like(t), (0, 2, 1, 0))))
case("Pad", "negative", [x(4, 4), const([-1, 1, 0, -2])], lambda t, _: F.pad(t, (1, -2, -1, 0)), ref="does not crop")
case("Pad", "constant_axes", [x(2, 3, 2), const([1, 2, 0, 1]), fixed(0.5), const([0, -1])],
     lambda t, *_: F.pad(t, (2, 1, 0, 0, 1, 0), value=0.5))
case("Pad", "opset7", [x(2, 3)], lambda t: F.pad(t, (1, 1, 0, 2), value=0.25), opset=7, pads=[0, 1, 2, 1], value=0.25)
case("Pad", "opset7_reflect", [x(3, 3)], lambda t: pad_all(t, [1, 2, 1, 0], "reflect"), opset=7, mode="reflect",
     pads=[1, 2, 1, 0])

# ---- order -------------------------------------------------------------------------------------------------
def reverse_sequence(t, lens, batch_axis, time_axis):
    t = t.transpose(0, batch_axis) if batch_axis else t
    rows = [torch.cat([r[:n].flip(0), r[n:]]) if time_axis else None for r, n in zip(t, lens)]
    out = torch.stack(rows)
    return out.transpose(0, batch_axis) if batch_axis else out


case("ReverseSequence", "batch_first", [x(3, 4, 2), data([1, 3, 4])],
     lambda t, n: reverse_sequence(t, [1, 3, 4], 0, 1), batch_axis=0, time_axis=1)
case("ReverseSequence", "time_first", [x(4, 3), data([2, 4, 1])],
     lambda t, n: torch.stack([torch.cat([c[:k].flip(0), c[k:]]) for c, k in zip(t.T, [2, 4, 1])]).T.contiguous(),
     batch_axis=1, time_axis=0)
for form, kw, attrs in (("default", dict(dim=-1), {}), ("smallest", dict(dim=1, largest=False), dict(axis=1, largest=0)),
                        ("axis0", dict(dim=0), dict(axis=0))):
    case("TopK", form, [x(4, 5), const([2])], lambda t, k, kw=kw: torch.topk(t, 2, **kw), outputs=2, **attrs)
case("TopK", "opset10", [x(3, 4), const([3])], lambda t, k: torch.topk(t, 3), outputs=2, opset=10)
case("TopK", "opset7", [x(3, 4)], lambda t: torch.topk(t, 1), outputs=2, opset=7, k=1)
case("TopK", "values_only", [x(3, 4), const([2])], lambda t, k: torch.topk(t, 2)[0], nodes="y0, i = TopK(x0, c1)")

# ---- constants and shapes ---------------------------------------------------------------------------------------
case("ConstantOfShape", "added", [x(2, 3)], lambda t: t + 1.5,
     nodes="s = Shape(x0) o = ConstantOfShape<value = double[1] {1.5}>(s) y0 = Add(x0, o)")
case("EyeLike", "product", [x(3, 3)], lambda t: t * torch.eye(3, dtype=torch.float64),
     nodes="e = EyeLike(x0) y0 = Mul(x0, e)")
case("Range", "scaled", [x(4)], lambda t: t * torch.arange(0.0, 4, 1, dtype=torch.float64),
     nodes="a = Constant<value = double {0.0}>() b = Constant<value = double {4.0}>() c = Constant<value = double {1.0}>() "
           "r = Range(a, b, c) y0 = Mul(x0, r)")
