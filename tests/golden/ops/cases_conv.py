"""Matrix products, convolutions and pooling."""
import itertools

import numpy as np
import torch
import torch.nn.functional as F
import torchvision

from make_ops import case, const, data, fixed, v, x

# ---- products ---------------------------------------------------------------------------------------
for form, (a, b) in {"matrices": [(2, 3), (3, 4)], "vector_right": [(2, 3), (3,)], "vector_left": [(3,), (3, 2)],
                     "dot": [(4,), (4,)], "batch": [(2, 2, 3), (2, 3, 2)], "broadcast": [(2, 1, 2, 3), (3, 3, 1)],
                     "shared_right": [(2, 3, 2), (2, 3)], "empty": [(0, 3), (3, 2)], "inner_one": [(2, 1), (1, 3)]}.items():
    case("MatMul", form, [x(*a), x(*b)], torch.matmul)
for ta, tb in itertools.product((0, 1), (0, 1)):
    a, b = ((3, 2) if ta else (2, 3)), ((4, 3) if tb else (3, 4))
    case("Gemm", f"trans{ta}{tb}", [x(*a), x(*b), x(4)],
         lambda p, q, c, ta=ta, tb=tb: (p.T if ta else p) @ (q.T if tb else q) + c, transA=ta, transB=tb)
case("Gemm", "alpha_beta", [x(2, 3), x(3, 4), x(2, 1)], lambda p, q, c: 0.5 * (p @ q) + 0.25 * c, alpha=0.5, beta=0.25)
case("Gemm", "no_c", [x(2, 3), x(3, 2)], lambda p, q: p @ q)
case("Gemm", "scalar_c", [x(2, 3), x(3, 2), x()], lambda p, q, c: p @ q + c)
case("Gemm", "full_c", [x(2, 3), x(3, 2), x(2, 2)], lambda p, q, c: p @ q + c, opset=9)
for form, eq, shapes in (("matmul", "ij,jk->ik", [(2, 3), (3, 2)]), ("batch", "bij,bkj->bik", [(2, 2, 3), (2, 2, 3)]),
                         ("diagonal", "ii->i", [(3, 3)]), ("trace", "ii->", [(3, 3)]), ("sum", "ij->j", [(2, 3)]),
                         ("implicit", "ij,jk", [(2, 3), (3, 2)]), ("ellipsis", "...ij,jk->...ik", [(2, 2, 3), (3, 2)]),
                         ("transpose", "ij->ji", [(2, 3)]), ("outer", "i,j->ij", [(2,), (3,)]),
                         ("three", "ij,jk,kl->il", [(2, 3), (3, 2), (2, 2)]), ("hadamard", "ij,ij->ij", [(2, 3), (2, 3)])):
    case("Einsum", form, [x(*s) for s in shapes], lambda *t, eq=eq: torch.einsum(eq, *t), equation=eq)
case("Det", "plain", [x(3, 3)], torch.linalg.det)
case("Det", "batch", [x(2, 2, 2)], torch.linalg.det)
case("Det", "one", [x(2, 1, 1)], torch.linalg.det)

# ---- convolutions: F.pad, then torch without padding --------------------------------------------------------
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONVT = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def torch_pads(pads):  # ONNX: all begins, all ends; torch: pairs, last axis first
    r = len(pads) // 2
    return [p for a in reversed(range(r)) for p in (pads[a], pads[a + r])]


def conv(t, w, b=None, pads=None, strides=1, dilations=1, group=1):
    t = F.pad(t, torch_pads(pads)) if pads else t
    return CONV[w.dim() - 2](t, w, b, stride=strides, dilation=dilations, groups=group)


def conv_case(form, xs, ws, bias=False, opset=None, attrs=None, **kw):
    ins = [x(*xs), x(*ws)] + ([x(ws[0])] if bias else [])
    case("Conv", form, ins, lambda t, w, b=None: conv(t, w, b, **kw), opset=opset, ref=REF_CONV.get(form, True),
         **(attrs if attrs is not None else kw))


REF_CONV = {"valid": "takes VALID for SAME"}
conv_case("plain", (1, 2, 4, 4), (3, 2, 3, 3))
conv_case("bias", (2, 2, 3, 3), (2, 2, 2, 2), bias=True)
conv_case("pads", (1, 2, 3, 4), (2, 2, 3, 3), pads=[1, 0, 2, 1])
conv_case("strides", (1, 1, 5, 6), (2, 1, 2, 3), strides=[2, 3], pads=[1, 1, 1, 1])
conv_case("dilations", (1, 1, 5, 5), (1, 1, 2, 3), dilations=[3, 2])
conv_case("group", (1, 4, 3, 3), (4, 2, 2, 2), bias=True, group=2)
conv_case("depthwise", (1, 3, 4, 3), (6, 1, 2, 2), group=3, strides=[2, 1])
conv_case("1d", (2, 3, 6), (2, 3, 3), bias=True, pads=[2, 1], strides=[2])
conv_case("3d", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), pads=[0, 1, 0, 0, 0, 1])
conv_case("pointwise", (1, 3, 2, 2), (2, 3, 1, 1), bias=True)
conv_case("opset7", (1, 2, 4, 4), (3, 2, 3, 3), opset=7)
same = lambda n, k, s, d: max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    p = [0 if auto == "VALID" else same(n, k, s, 1) for n, k, s in ((5, 2, 2), (4, 3, 1))]
    begin = [q // 2 if auto == "SAME_UPPER" else (q + 1) // 2 for q in p]
    pads = begin + [q - b for q, b in zip(p, begin)]
    conv_case(auto.lower(), (1, 1, 5, 4), (2, 1, 2, 3), pads=pads, strides=[2, 1],
              attrs={"auto_pad": auto, "strides": [2, 1]})


def conv_transpose(t, w, b=None, pads=None, strides=1, dilations=1, group=1, output_padding=0):
    r = w.dim() - 2
    full = CONVT[r](t, w, b, stride=strides, dilation=dilations, groups=group,
                    output_padding=0)
    op = output_padding or [0] * r
    pads = pads or [0] * (2 * r)
    # Pads crop the full result, output_padding extends it at the end: with zeros plus bias where it was empty.
    grow = [p for a in reversed(range(r)) for p in (-pads[a], op[a] - pads[a + r])]
    if b is None:
        return F.pad(full, grow)
    shape = (1, -1) + (1,) * r
    return F.pad(full - b.reshape(shape), grow) + b.reshape(shape)


def convt_case(form, xs, ws, bias=0, attrs=None, ref=True, opset=None, **kw):
    ins = [x(*xs), x(*ws)] + ([x(bias)] if bias else [])
    case("ConvTranspose", form, ins, lambda t, w, b=None: conv_transpose(t, w, b, **kw), ref=ref, opset=opset,
         **(attrs if attrs is not None else kw))


convt_case("plain", (1, 2, 3, 3), (2, 3, 2, 2))
convt_case("bias", (1, 2, 2, 3), (2, 3, 3, 2), bias=3)
convt_case("strides", (1, 2, 2, 3), (2, 1, 3, 3), strides=[2, 3])
convt_case("pads", (1, 1, 3, 3), (1, 2, 3, 3), pads=[1, 0, 2, 1], strides=[2, 2])
convt_case("output_padding", (1, 1, 2, 2), (1, 2, 3, 3), bias=2, strides=[3, 2], output_padding=[2, 1])
convt_case("dilations", (1, 1, 2, 3), (1, 1, 2, 3), dilations=[2, 1])
convt_case("group", (1, 4, 2, 2), (4, 2, 2, 2), bias=4, group=2, ref="fails on groups with a bias")
convt_case("depthwise", (1, 3, 2, 3), (3, 1, 2, 2), group=3, strides=[2, 2])
convt_case("1d", (2, 2, 3), (2, 2, 3), bias=2, strides=[2], pads=[1, 1])
convt_case("3d", (1, 1, 2, 2, 2), (1, 2, 2, 1, 2), strides=[1, 2, 1])
# output_shape: total padding = stride (n - 1) + output_padding + (k - 1) d + 1 - out; SAME_UPPER puts more at the end.
convt_case("output_shape", (1, 1, 3, 3), (1, 1, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2],
           attrs={"output_shape": [6, 6], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, ref="splits otherwise")
convt_case("same_upper", (1, 1, 2, 3), (1, 2, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2],
           attrs={"auto_pad": "SAME_UPPER", "strides": [2, 2]})

taps = np.random.RandomState(5)
offsets = lambda *s: taps.uniform(-0.4, 0.4, s).round(3) + 0.003  # away from the kinks at whole positions


def deform(t, w, off, b=None, m=None, **kw):
    return torchvision.ops.deform_conv2d(t, off, w, b, mask=m, **kw)


case("DeformConv", "plain", [x(1, 1, 3, 3), x(1, 1, 2, 2), v(offsets(1, 8, 2, 2))], deform)
case("DeformConv", "all", [x(1, 2, 3, 3), x(2, 2, 2, 2), v(offsets(1, 16, 2, 2)), x(2), x(1, 8, 2, 2, lo=0.1, hi=1)],
     deform, offset_group=2)
case("DeformConv", "strides_pads", [x(1, 2, 4, 4), x(2, 1, 2, 2), v(offsets(1, 8, 3, 2)), x(2)],
     lambda t, w, o, b: deform(t, w, o, b, stride=(2, 2), padding=(1, 0)), strides=[2, 2], pads=[1, 0, 1, 0], group=2)

# ---- pooling -------------------------------------------------------------------------------------------------
POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def max_pool_case(form, shape, k, s=None, p=None, d=None, ceil=False, opset=None, values=None):
    r = len(k)
    attrs = {"kernel_shape": k, **({"strides": s} if s else {}), **({"pads": p + p} if p else {}),
             **({"dilations": d} if d else {}), **({"ceil_mode": 1} if ceil else {})}
    case("MaxPool", form, [v(values) if values is not None else x(*shape)],
         lambda t: POOL[r](t, k, s or [1] * r, p or 0, d or 1, ceil), opset=opset, **attrs)


max_pool_case("plain", (1, 2, 4, 4), [2, 2], [2, 2])
max_pool_case("overlap", (1, 1, 4, 5), [3, 2], [1, 1])
max_pool_case("pads", (1, 1, 4, 4), [3, 3], [2, 2], [1, 1])
max_pool_case("dilations", (1, 1, 5, 5), [2, 2], [1, 1], d=[2, 3])
max_pool_case("ceil", (1, 1, 5, 6), [2, 2], [2, 4], ceil=True)
max_pool_case("ceil_pads", (1, 1, 5, 5), [3, 3], [3, 3], [1, 1], ceil=True)
max_pool_case("1d", (2, 2, 5), [2], [2])
max_pool_case("3d", (1, 1, 3, 4, 4), [2, 2, 2], [1, 2, 2])
max_pool_case("ties", None, [2, 2], [2, 2], values=[[[[1.0, 1, 3, 2], [1, 1, 3, 3], [0, 5, -1, -1], [5, 5, -1, -2]]]])
max_pool_case("opset7", (1, 2, 4, 4), [2, 2], [2, 2], opset=7)
case("MaxPool", "indices", [x(1, 2, 4, 4)], lambda t: tuple(
    (y, i + torch.arange(2).reshape(1, 2, 1, 1) * 16) for y, i in [F.max_pool2d(t, 2, 2, return_indices=True)])[0],
     outputs=2, kernel_shape=[2, 2], strides=[2, 2])


def avg_pool_case(form, shape, k, s=None, p=None, ceil=False, include=False, opset=None, ref=True):
    r = len(k)
    attrs = {"kernel_shape": k, **({"strides": s} if s else {}), **({"pads": p + p} if p else {}),
             **({"ceil_mode": 1} if ceil else {}), **({"count_include_pad": 1} if include else {})}
    case("AveragePool", form, [x(*shape)], lambda t: AVG[r](t, k, s or [1] * r, p or 0, ceil, include), opset=opset,
         ref=ref, **attrs)


avg_pool_case("plain", (1, 2, 4, 4), [2, 2], [2, 2])
avg_pool_case("pads", (1, 1, 4, 5), [3, 3], [2, 2], [1, 1])
avg_pool_case("include_pad", (1, 1, 4, 5), [3, 3], [2, 2], [1, 1], include=True)
avg_pool_case("ceil", (1, 1, 5, 6), [3, 3], [2, 2], ceil=True)
avg_pool_case("ceil_pads", (1, 1, 5, 5), [3, 3], [3, 3], [1, 1], ceil=True)
avg_pool_case("ceil_include_pad", (1, 1, 5, 6), [3, 3], [2, 2], [1, 1], ceil=True, include=True)
avg_pool_case("1d", (2, 2, 5), [2], [2])
avg_pool_case("3d", (1, 1, 3, 3, 4), [2, 2, 2], [1, 1, 2])
avg_pool_case("opset10", (1, 1, 5, 6), [3, 3], [2, 2], ceil=True, opset=10)
avg_pool_case("opset7", (1, 1, 5, 6), [3, 3], [2, 2], opset=7)
case("AveragePool", "dilations", [x(1, 1, 5, 4)],
     lambda t: F.conv2d(t, torch.full((1, 1, 2, 2), 0.25, dtype=torch.float64), dilation=(3, 2)), kernel_shape=[2, 2],
     dilations=[3, 2])
case("AveragePool", "same_upper", [x(1, 1, 5, 4)],
     lambda t: F.conv2d(F.pad(t, (0, 1, 0, 1)), torch.ones(1, 1, 2, 2, dtype=torch.float64)) /
     F.conv2d(F.pad(torch.ones_like(t), (0, 1, 0, 1)), torch.ones(1, 1, 2, 2, dtype=torch.float64)),
     kernel_shape=[2, 2], auto_pad="SAME_UPPER")


def lp_pool(t, k, s, p=2, pads=None, dilation=1, ceil=0):
    c = t.shape[1]
    t = F.pad(t.abs() ** p, torch_pads(pads)) if pads else t.abs() ** p
    w = torch.ones(c, 1, *k, dtype=torch.float64)
    return CONV[len(k)](t, w, stride=s, dilation=dilation, groups=c) ** (1 / p)


case("LpPool", "plain", [x(1, 2, 4, 4)], lambda t: lp_pool(t, [2, 2], [2, 2]), kernel_shape=[2, 2], strides=[2, 2])
case("LpPool", "torch", [x(1, 2, 4, 4, lo=0.25)], lambda t: F.lp_pool2d(t, 3, 2, 1), kernel_shape=[2, 2], p=3)
case("LpPool", "pads_p3", [x(1, 1, 3, 4)], lambda t: lp_pool(t, [2, 2], [1, 1], 3, [1, 0, 0, 1]), kernel_shape=[2, 2],
     p=3, pads=[1, 0, 0, 1])
case("LpPool", "dilations", [x(1, 1, 4, 4)], lambda t: lp_pool(t, [2, 2], [1, 1], 2, None, [2, 2]), kernel_shape=[2, 2],
     dilations=[2, 2])
case("LpPool", "1d_p1", [x(1, 2, 5)], lambda t: lp_pool(t, [3], [1], 1), kernel_shape=[3], p=1)
case("LpPool", "opset7", [x(1, 1, 4, 4)], lambda t: lp_pool(t, [2, 2], [1, 1]), kernel_shape=[2, 2], opset=7)
case("GlobalAveragePool", "2d", [x(2, 3, 2, 4)], lambda t: t.mean((2, 3), keepdim=True))
case("GlobalAveragePool", "1d", [x(2, 3, 4)], lambda t: t.mean(2, keepdim=True))
case("GlobalMaxPool", "2d", [x(2, 3, 2, 4)], lambda t: F.adaptive_max_pool2d(t, 1))
case("GlobalMaxPool", "ties", [v([[[[2.0, 1], [2, 2]]]])], lambda t: F.adaptive_max_pool2d(t, 1))
case("GlobalMaxPool", "3d", [x(1, 2, 2, 2, 2)], lambda t: F.adaptive_max_pool3d(t, 1), ref="adds an axis")
REF_GLOBAL_LP = "does not have it"
for p in (1, 2, 3):
    case("GlobalLpPool", f"p{p}", [x(1, 2, 2, 3)],
         lambda t, p=p: torch.linalg.vector_norm(t, p, dim=(2, 3), keepdim=True), p=p, ref=REF_GLOBAL_LP)
case("GlobalLpPool", "zero", [v([[[0.0, 0, 0], [3, 4, 0]]])],
     lambda t: torch.linalg.vector_norm(t, 2, dim=2, keepdim=True), ref=REF_GLOBAL_LP)
case("MaxUnpool", "plain", [x(1, 1, 2, 2), data([[[[5, 7], [13, 15]]]])],
     lambda t, i: F.max_unpool2d(t, i, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
case("MaxUnpool", "output_shape", [x(1, 1, 2, 2), data([[[[5, 7], [13, 15]]]]), const([1, 1, 5, 5])],
     lambda t, i, s: F.pad(F.max_unpool2d(t, i, 2, 2), (0, 1, 0, 1)), kernel_shape=[2, 2], strides=[2, 2])
case("MaxUnpool", "after_pool", [x(1, 1, 4, 4)],
     lambda t: F.max_unpool2d(*F.max_pool2d(t, 2, 2, return_indices=True), 2, 2),
     nodes="p, i = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x0) "
           "y0 = MaxUnpool<kernel_shape=[2, 2], strides=[2, 2]>(p, i)")
rois = [[0.0, 0, 0, 3, 3], [1, 1, 0, 4, 2], [0, 2, 1, 4, 4]]
case("MaxRoiPool", "plain", [x(2, 2, 5, 5), fixed(rois)],
     lambda t, r: torchvision.ops.roi_pool(t, r, (2, 2)), pooled_shape=[2, 2], ref="does not have it")
case("MaxRoiPool", "scale", [x(2, 1, 5, 5), fixed([[0.0, 0, 0, 7, 7], [1, 2, 0, 8, 4]])],
     lambda t, r: torchvision.ops.roi_pool(t, r, (2, 3), 0.5), pooled_shape=[2, 3], spatial_scale=0.5,
     ref="does not have it")
