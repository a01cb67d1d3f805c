"""Makes edges.npz: gradients at ties, kinks, bounds, empty and size-1 shapes, and the right behaviour
of operators that other trainers are known to get wrong, from PyTorch 2.15 in double precision.

Needs torch, onnx and numpy:  python tests/golden/edges/make_edges.py
Names "rowNN_..." are of the list of gradient defects in the design's facts: row 1 Reduce*, 2 Pad,
3 Scatter*, 4 TopK, 5 and 32 LayerNormalization, 6 Clip, 8 Concat, 9 Pow, 10 ConvTranspose, 16
SoftmaxCrossEntropyLoss, 18 and 31 Gather, 19 MaxPool, 20 AveragePool, 21 Resize, 22 ties and untaken
branches, 23 recurrent layers, 24 Cast, 25 shapes computed at run time, 26 Softmax before opset 13,
33 ceil-mode shapes. Arrays: "CASE/model" (ONNX bytes), "CASE/in/NAME",
"CASE/out/y", "CASE/dy", "CASE/grad/NAME" per input that gets a gradient. Row 28 is in ../fake_quantize. tests/ops/edges_test.cc
reads them.
"""
import math
import os

import numpy as np
import onnx
import onnx.parser
import torch
import torch.nn.functional as F
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(11)
arrays, count = {}, 0
INF, NAN = math.inf, math.nan
KIND = {"float64": "double", "int64": "int64", "bool": "bool", "int32": "int32", "uint8": "uint8", "int8": "int8"}


def r(*shape, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape)


def case(name, op, inputs, fn, opset=18, given=None, fixed=(), text=None, symbolic=(), dy=None):
    """op: "Name <attributes>" of one node on all inputs, or text: a graph body that ends in y.
    inputs: arrays (None = absent); floats get a gradient unless their index is in `fixed`, which
    makes them initializers, as integers and bools are. fn: torch inputs -> y. given: (y, gradients)
    where PyTorch is not the witness."""
    global count
    inputs = [None if a is None else np.asarray(a, np.float64 if np.asarray(a).dtype == np.float64 else None) for a in inputs]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    constant = [a is not None and (a.dtype != np.float64 or i in fixed) for i, a in enumerate(inputs)]
    extents = lambda i, a: "[" + ",".join("N" if (i, k) in symbolic else str(d) for k, d in enumerate(a.shape)) + "]" if a.ndim else ""
    formal = ", ".join(f"{KIND[a.dtype.name]}{extents(i, a)} {n}"
                       for i, (n, a) in enumerate(zip(names, inputs)) if a is not None and not constant[i])
    head, _, attrs = (op or "").partition(" ")
    while names and not names[-1]:
        names.pop()
    body = text or f"y = {head} {attrs}({', '.join(n or '' for n in names)})"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g ({formal}) => (double y) {{ {body} }}')
    for i, a in enumerate(inputs):
        if a is not None and constant[i]:
            model.graph.initializer.append(numpy_helper.from_array(a, f"x{i}"))
    if not text:  # the parser has no absent inputs in the middle
        del model.graph.node[0].input[:]
        model.graph.node[0].input.extend(names)
    ts = [None if a is None else torch.tensor(a, requires_grad=not constant[i]) for i, a in enumerate(inputs)]
    if given is None:
        y = fn(*ts)
        dy = torch.tensor(rng.uniform(0.5, 1.5, tuple(y.shape))) if dy is None else torch.tensor(dy)
        want = [t for t, c in zip(ts, constant) if t is not None and not c]
        grads = torch.autograd.grad(y, want, dy, allow_unused=True)
        result = {f"x{ts_index(ts, t)}": (torch.zeros_like(t) if d is None else d).numpy() for t, d in zip(want, grads)}
        y = y.detach().numpy()
    else:
        y, result = given
        y, dy = np.asarray(y, np.float64), torch.ones(np.asarray(y).shape) if dy is None else torch.tensor(dy)
    assert f"{name}/model" not in arrays, name
    count += 1
    arrays[f"{name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
    for i, a in enumerate(inputs):
        if a is not None and not constant[i]:
            arrays[f"{name}/in/x{i}"] = a
    arrays[f"{name}/out/y"] = np.asarray(y)
    arrays[f"{name}/dy"] = dy.numpy()
    for k, d in result.items():
        arrays[f"{name}/grad/{k}"] = np.asarray(d, np.float64)


def ts_index(ts, t):
    return next(i for i, u in enumerate(ts) if u is t)


def ints(*v):
    return np.array(v, np.int64)


# --- row 1: reductions in every form ------------------------------------------------------------------------
def prod(t, dims, keep):
    for d in sorted((k % t.dim() for k in dims), reverse=True):
        t = t.prod(d, keepdim=keep)
    return t


REDUCE = {
    "ReduceSum": lambda t, d, k: t.sum(d, k), "ReduceMean": lambda t, d, k: t.mean(d, k),
    "ReduceMax": lambda t, d, k: t.amax(d, k), "ReduceMin": lambda t, d, k: t.amin(d, k), "ReduceProd": prod,
    "ReduceL1": lambda t, d, k: t.abs().sum(d, k), "ReduceL2": lambda t, d, k: t.square().sum(d, k).sqrt(),
    "ReduceLogSum": lambda t, d, k: t.sum(d, k).log(), "ReduceLogSumExp": lambda t, d, k: t.logsumexp(d, k),
    "ReduceSumSquare": lambda t, d, k: t.square().sum(d, k)}
for op, fn in REDUCE.items():
    low = 0.1 if op == "ReduceLogSum" else -2.0
    x = r(2, 3, 2, low=low)
    allax = (0, 1, 2)
    for keep in (0, 1):
        old = 11
        case(f"row01_{op}_attribute_keep{keep}", f"{op} <axes=[1,-1], keepdims={keep}>", [x], lambda t: fn(t, (1, 2), bool(keep)), old)
        case(f"row01_{op}_input_keep{keep}", f"{op} <keepdims={keep}>", [x, ints(-2)], lambda t, a: fn(t, (1,), bool(keep)))
        case(f"row01_{op}_default_keep{keep}", f"{op} <keepdims={keep}>", [x], lambda t: fn(t, allax, bool(keep)))
    case(f"row01_{op}_empty_axes", f"{op} <keepdims=0>", [x, ints()], lambda t, a: fn(t, allax, False))
    case(f"row01_{op}_size_one", f"{op} <keepdims=0>", [r(3, 1, low=low), ints(1)], lambda t, a: fn(t, (1,), False))
    if op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        case(f"row01_{op}_noop", f"{op} <noop_with_empty_axes=1>", [x, ints()], lambda t, a: t * 1)
x = np.zeros((2, 0, 3))
for op in ("ReduceSum", "ReduceSumSquare", "ReduceL1"):
    case(f"row01_{op}_over_nothing", f"{op} <keepdims=0>", [x, ints(1)], lambda t, a: t.sum(1))
case("row01_ReduceProd_over_nothing", "ReduceProd <keepdims=0>", [x, ints(1)], lambda t, a: t.prod(1))
case("row01_ReduceSum_of_empty_batch", "ReduceSum <keepdims=0>", [np.zeros((0, 3)), ints(1)], lambda t, a: t.sum(1))

# --- row 2: Pad -------------------------------------------------------------------------------------------
x = r(2, 4, 3)


def pad_constant(t, pads, c):  # torch order: last axis first
    return F.pad(t, pads) + (1 - F.pad(torch.ones_like(t), pads)) * c


case("row02_pad_constant_value", "Pad", [x, ints(0, 1, 0, 1, 0, 2), np.float64(0.5)], lambda t, p, c: pad_constant(t, (0, 2, 1, 0, 0, 1), c))
case("row02_pad_axes", "Pad", [x, ints(1, 2), np.float64(-1.5), ints(-1)], lambda t, p, c, a: pad_constant(t, (1, 2), c))
case("row02_pad_negative", "Pad", [x, ints(0, -1, 1, 0, 2, -1), np.float64(2.0)], lambda t, p, c: pad_constant(t, (1, -1, -1, 2), c))
case("row02_pad_crop", "Pad", [x, ints(0, -1, 0, 0, -2, -1)], lambda t, p: F.pad(t, (0, -1, -1, -2)))
case("row02_pad_reflect", "Pad <mode=\"reflect\">", [x, ints(0, 2, 1, 0, 3, 2)], lambda t, p: F.pad(t[None], (1, 2, 2, 3), "reflect")[0])
case("row02_pad_edge", "Pad <mode=\"edge\">", [x, ints(0, 2, 1, 0, 3, 2)], lambda t, p: F.pad(t[None], (1, 2, 2, 3), "replicate")[0])
case("row02_pad_wrap", "Pad <mode=\"wrap\">", [x, ints(0, 2, 1, 0, 3, 2)], lambda t, p: F.pad(t[None], (1, 2, 2, 3), "circular")[0], 19)
case("row02_pad_attribute", "Pad <pads=[0,1,0,0,0,2], value=0.5>", [x], lambda t: F.pad(t, (0, 2, 1, 0), value=0.5), 10)
case("row02_pad_reflect_axes", "Pad <mode=\"reflect\">", [x, ints(2, 1), None, ints(1)], lambda t, p, c, a: F.pad(t[None], (0, 0, 2, 1), "reflect")[0])

# --- row 3: scatters -------------------------------------------------------------------------------------
data, updates = np.array([[1.0, 2, 3], [4, 5, 6]]), np.array([[7.0, -1], [5, 6]])
idx = np.array([[0, 2], [1, -3]])
same = np.array([[1, 1], [0, 0]])
NAMES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
case("row03_scatter_elements_none", "ScatterElements <axis=1>", [data, idx, updates], lambda d, i, u: d.scatter(1, i % 3, u))
case("row03_scatter_opset9", "Scatter <axis=1>", [data, idx % 3, updates], lambda d, i, u: d.scatter(1, i, u), 9)
for red, torch_name in NAMES.items():
    for what, index in (("unique", idx), ("duplicate", same)):
        case(f"row03_scatter_elements_{red}_{what}", f'ScatterElements <axis=-1, reduction="{red}">', [data, index, updates],
             lambda d, i, u: d.scatter_reduce(1, i % 3, u, torch_name))
    tied = np.array([[4.0, 4], [5, 5]])
    if red in ("max", "min"):
        case(f"row03_scatter_elements_{red}_tied", f'ScatterElements <axis=1, reduction="{red}">', [np.full((2, 3), 4.0), same, tied],
             lambda d, i, u: d.scatter_reduce(1, i, u, torch_name))
nd_idx, nd_same = np.array([[0], [2]]), np.array([[1], [1], [1]])
base = r(3, 2)
case("row03_scatter_nd_none", "ScatterND", [base, nd_idx, r(2, 2)], lambda d, i, u: d.index_put((i[:, 0],), u))
for red, torch_name in NAMES.items():
    case(f"row03_scatter_nd_{red}", f'ScatterND <reduction="{red}">', [base, nd_same, r(3, 2)],
         lambda d, i, u: d.scatter_reduce(0, i.expand(3, 2), u, torch_name))
case("row03_scatter_nothing", "ScatterElements <axis=0, reduction=\"add\">", [data, np.zeros((0, 3), np.int64), np.zeros((0, 3))],
     lambda d, i, u: d.scatter_add(0, i, u))
case("row03_scatter_elements_mul_zero", 'ScatterElements <axis=0, reduction="mul">', [np.array([2.0, 0, 3]), ints(0, 0, 1), np.array([0.0, 5, 7])],
     lambda d, i, u: d.scatter_reduce(0, i, u, "prod"))

# --- row 4: TopK (ties: lower index first, as a stable sort) ------------------------------------------------
def topk(t, k, dim=-1, largest=True):
    return torch.gather(t, dim, torch.sort(t, dim=dim, descending=largest, stable=True).indices.narrow(dim, 0, k))


x = np.array([[1.0, 3, 3, -2], [0, 0, 0, 0]])
case("row04_topk_default_axis", None, [x, ints(2)], lambda t, k: topk(t, 2), text="y, i = TopK(x0, x1)")
case("row04_topk_smallest", None, [x, ints(3)], lambda t, k: topk(t, 3, largest=False), text="y, i = TopK<largest=0, sorted=0>(x0, x1)")
case("row04_topk_axis", None, [x, ints(1)], lambda t, k: topk(t, 1, 0), text="y, i = TopK<axis=0>(x0, x1)")
case("row04_topk_attribute", None, [x], lambda t: topk(t, 2), 9, text="y, i = TopK<k=2>(x0)")
case("row04_topk_none", None, [x, ints(0)], lambda t, k: t[:, :0], text="y, i = TopK(x0, x1)")

# --- rows 5 and 32: LayerNormalization -----------------------------------------------------------------------
x, w, b = r(2, 3, 4), r(4), r(4)
case("row05_layer_norm_one_output", "LayerNormalization <epsilon=0.0009765625>", [x, w, b], lambda t, g, h: F.layer_norm(t, (4,), g, h, 0.0009765625), 17)
case("row32_layer_norm_no_bias", "LayerNormalization <axis=1>", [x, r(3, 4)], lambda t, g: F.layer_norm(t, (3, 4), g), 17)
case("row32_layer_norm_empty_bias", None, [x, w], lambda t, g: F.layer_norm(t, (4,), g), 17, text='y = LayerNormalization(x0, x1, "")')
case("row05_layer_norm_width_one", "LayerNormalization", [r(3, 1), r(1), r(1)], lambda t, g, h: F.layer_norm(t, (1,), g, h), 17)
case("row05_layer_norm_constant_row", "LayerNormalization", [np.ones((2, 4)), w, b], lambda t, g, h: F.layer_norm(t, (4,), g, h), 17)

# --- row 6: Clip ----------------------------------------------------------------------------------------
x = np.array([-2.0, -1, 0, 1, 2])
for form, lo, hi in (("bounds", -1.0, 1.0), ("crossed", 1.0, -1.0), ("equal", 1.0, 1.0)):
    case(f"row06_clip_{form}", "Clip", [x, np.float64(lo), np.float64(hi)], lambda t, a, c: torch.clamp(t, a, c))
    case(f"row06_clip_{form}_fixed", "Clip", [x, np.float64(lo), np.float64(hi)], lambda t, a, c: torch.clamp(t, a.item(), c.item()), fixed=(1, 2))
case("row06_clip_min_only", "Clip", [x, np.float64(0.0)], lambda t, a: torch.clamp(t, min=a))
case("row06_clip_max_only", "Clip", [x, None, np.float64(0.0)], lambda t, a, c: torch.clamp(t, max=c))
case("row06_clip_attributes", "Clip <min=-1.0, max=1.0>", [x], lambda t: torch.clamp(t, -1, 1), 10)
case("row06_clip_none", "Clip", [x], lambda t: t * 1)

# --- row 8: Concat over an axis that is open in the file -----------------------------------------------------
case("row08_concat_open_axis", "Concat <axis=0>", [r(2, 3), r(1, 3)], lambda a, c: torch.cat([a, c]), 11, symbolic={(0, 0)})
case("row08_concat_empty_piece", "Concat <axis=-1>", [r(2, 0), r(2, 3), r(2, 1)], lambda *t: torch.cat(t, -1), 12)

# --- row 9: Pow ------------------------------------------------------------------------------------------
case("row09_pow_zero_base", "Pow", [np.zeros(4), np.array([0.0, 1, 2, 3])], torch.pow)
case("row09_pow_zero_exponent", "Pow", [np.array([-2.0, 0, 3]), np.zeros(3)], torch.pow)
case("row09_pow_negative_base", "Pow", [np.array([-2.0, -3, -1]), np.array([2.0, 3, -1])], torch.pow)
case("row09_pow_broadcast", "Pow", [r(2, 3, low=0.5), r(3)], torch.pow)
case("row09_pow_zero_to_negative", "Pow", [np.zeros(2), np.array([-1.0, -2])], torch.pow)
case("row09_pow_integer_exponent", None, [np.array([-2.0, 0, 3]), ints(2)], lambda t, e: t ** 2, text="y = Pow(x0, x1)")

# --- row 10: ConvTranspose on the CPU --------------------------------------------------------------------
case("row10_conv_transpose", "ConvTranspose <strides=[2,1], pads=[1,0,1,0], output_padding=[1,0]>", [r(1, 2, 3, 3), r(2, 3, 3, 2), r(3)],
     lambda t, w, c: F.conv_transpose2d(t, w, c, stride=(2, 1), padding=(1, 0), output_padding=(1, 0)))
case("row10_conv_empty_batch", "Conv", [np.zeros((0, 2, 4, 4)), r(3, 2, 2, 2), r(3)], F.conv2d)

# --- row 16: losses with ignored positions ------------------------------------------------------------------
logits, labels, weight = r(4, 3), ints(0, 2, 1, 2), np.array([0.5, 1.0, 2.0])
for red in ("mean", "sum", "none"):
    for ig in (None, 2):
        for wt in (False, True):
            attrs = f'<reduction="{red}"' + ("" if ig is None else f", ignore_index={ig}") + ">"
            ins = [logits, labels] + ([weight] if wt else [])
            fixed = (2,)
            kw = dict(reduction=red, ignore_index=-100 if ig is None else ig)
            tail = f"{red}_{'all' if ig is None else 'ignore'}{'_weights' if wt else ''}"
            case(f"row16_sce_{tail}", f"SoftmaxCrossEntropyLoss {attrs}", ins, lambda t, l, g=None: F.cross_entropy(t, l, g, **kw), fixed=fixed)
            case(f"row16_nll_{tail}", f"NegativeLogLikelihoodLoss {attrs}", ins, lambda t, l, g=None: F.nll_loss(t, l, g, **kw), fixed=fixed)
case("row16_sce_2d", "SoftmaxCrossEntropyLoss", [r(2, 3, 2, 2), np.array([[[0, 1], [2, 0]], [[1, 1], [0, 2]]])], lambda t, l: F.cross_entropy(t, l))
case("row16_sce_all_ignored_sum", 'SoftmaxCrossEntropyLoss <reduction="sum", ignore_index=1>', [logits, ints(1, 1, 1, 1)],
     lambda t, l: F.cross_entropy(t, l, reduction="sum", ignore_index=1))
# PyTorch's mean over nothing is NaN; here the loss and its gradient are 0.
case("row16_sce_all_ignored", "SoftmaxCrossEntropyLoss <ignore_index=1>", [logits, ints(1, 1, 1, 1)], None, given=(0.0, {"x0": np.zeros((4, 3))}))
case("row16_sce_log_prob", None, [logits, labels], lambda t, l: F.log_softmax(t, 1), text="loss, y = SoftmaxCrossEntropyLoss(x0, x1)")
case("row16_sce_both_outputs", None, [logits, labels], lambda t, l: F.log_softmax(t, 1) * 0.5 + F.cross_entropy(t, l),
     text="loss, p = SoftmaxCrossEntropyLoss(x0, x1) h = Constant<value = double {0.5}>() q = Mul(p, h) y = Add(q, loss)")

# --- rows 18 and 31: Gather -------------------------------------------------------------------------------
x = r(4, 3)
case("row18_gather_duplicates", "Gather", [x, ints(1, 1, 3, 1)], lambda t, i: t[i])
case("row18_gather_negative", "Gather", [x, ints(-1, 0, -4, -1)], lambda t, i: t[i])
case("row31_gather_rank2_indices", "Gather", [x, np.array([[0, 3, 3], [1, 0, 3]])], lambda t, i: t[i])
case("row31_gather_rank3_axis1", "Gather <axis=-1>", [x, np.array([[[0], [2]]])], lambda t, i: t[:, i])
case("row31_gather_nothing", "Gather", [x, np.zeros((0, 2), np.int64)], lambda t, i: t[i])
case("row31_gather_scalar", "Gather", [x, np.int64(-2)], lambda t, i: t[i])
case("row18_gather_elements_duplicates", "GatherElements <axis=0>", [x, np.array([[1, 1, 0], [1, 3, 0]])], lambda t, i: t.gather(0, i))
case("row18_gather_nd_duplicates", "GatherND", [x, np.array([[1, 2], [1, 2], [0, 0]])], lambda t, i: t[i[:, 0], i[:, 1]])

# --- rows 19, 20, 33: pooling ------------------------------------------------------------------------------
flat = np.zeros((1, 1, 4, 4))
case("row19_max_pool_ties", "MaxPool <kernel_shape=[2,2], strides=[2,2]>", [flat], lambda t: F.max_pool2d(t, 2))
case("row19_max_pool_overlapping_ties", "MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]>", [flat], lambda t: F.max_pool2d(t, 3, 1, 1))
case("row19_max_pool_dilations", "MaxPool <kernel_shape=[2,2], dilations=[2,1], strides=[1,2]>", [r(1, 2, 4, 5)],
     lambda t: F.max_pool2d(t, 2, (1, 2), dilation=(2, 1)))
case("row19_max_pool_ceil", "MaxPool <kernel_shape=[3,2], strides=[2,2], ceil_mode=1>", [r(1, 1, 6, 5)], lambda t: F.max_pool2d(t, (3, 2), 2, ceil_mode=True))
case("row19_max_pool_opset8", "MaxPool <kernel_shape=[2,2]>", [r(1, 1, 3, 3)], lambda t: F.max_pool2d(t, 2, 1), 8)
for pad_in in (0, 1):
    case(f"row20_average_pool_pad_included{pad_in}", f"AveragePool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad={pad_in}>",
         [r(1, 2, 5, 4)], lambda t: F.avg_pool2d(t, 3, 2, 1, count_include_pad=bool(pad_in)))
    case(f"row20_average_pool_ceil_included{pad_in}", f"AveragePool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1, count_include_pad={pad_in}>",
         [r(1, 1, 6, 6)], lambda t: F.avg_pool2d(t, 3, 2, 1, True, bool(pad_in)), 19)
case("row33_max_pool_ceil_width", "MaxPool <kernel_shape=[3], strides=[3], pads=[1,1], ceil_mode=1>", [r(1, 1, 5)],
     lambda t: F.max_pool1d(t, 3, 3, 1, ceil_mode=True))
case("row33_average_pool_ceil_width", "AveragePool <kernel_shape=[3], strides=[3], pads=[1,1], ceil_mode=1, count_include_pad=1>", [r(1, 1, 5)],
     lambda t: F.avg_pool1d(t, 3, 3, 1, True, True), 19)

# --- row 21: Resize -------------------------------------------------------------------------------------
x = r(1, 2, 3, 4)
RESIZE = [("nearest", 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"', dict(mode="nearest")),
          ("linear", 'mode="linear"', dict(mode="bilinear")), ("cubic", 'mode="cubic"', dict(mode="bicubic")),
          ("linear_corners", 'mode="linear", coordinate_transformation_mode="align_corners"', dict(mode="bilinear", align_corners=True)),
          ("cubic_corners", 'mode="cubic", coordinate_transformation_mode="align_corners"', dict(mode="bicubic", align_corners=True))]
for form, attrs, kw in RESIZE:
    for size in ((5, 6), (2, 2)):
        case(f"row21_resize_{form}_{size[0]}x{size[1]}", f"Resize <{attrs}>", [x, None, None, ints(1, 2, *size)],
             lambda t, a, s, z: F.interpolate(t, size=size, **kw))
for mode, torch_mode in (("linear", "bilinear"),):
    case(f"row21_resize_{mode}_antialias", f'Resize <mode="{mode}", antialias=1, exclude_outside=1>', [r(1, 1, 6, 6), None, None, ints(1, 1, 2, 3)],
         lambda t, a, s, z: F.interpolate(t, size=(2, 3), mode=torch_mode, antialias=True))

# --- row 22: ties, kinks, untaken branches ------------------------------------------------------------------
a, c = np.array([1.0, 2, 5, NAN, 0]), np.array([1.0, 3, 4, 1, NAN])
case("row22_max_ties", "Max", [a[:3], c[:3]], torch.maximum)
case("row22_min_ties", "Min", [a[:3], c[:3]], torch.minimum)
case("row22_max_broadcast_ties", "Max", [np.array([[0.0], [1]]), np.array([0.0, 1, 2])], torch.maximum)
case("row22_reduce_max_ties", "ReduceMax <keepdims=0>", [np.array([[1.0, 4, 4], [2, 2, 2]]), ints(1)], lambda t, d: t.amax(1))
case("row22_reduce_min_ties", "ReduceMin", [np.array([[1.0, 4, 4], [2, 2, 2]])], lambda t: t.amin((0, 1), True), 13)
case("row22_abs_zero", "Abs", [np.array([-1.0, 0, 2, -0.0])], torch.abs)
case("row22_sqrt_zero", "Sqrt", [np.array([0.0, 4])], torch.sqrt)
case("row22_l2_zero", "ReduceL2", [np.array([[0.0, 0], [3, 4]]), ints(1)], lambda t, d: torch.linalg.vector_norm(t, dim=1, keepdim=True))
case("row22_l1_zero", "ReduceL1", [np.array([[0.0, 0], [3, -4]]), ints(1)], lambda t, d: torch.linalg.vector_norm(t, 1, dim=1, keepdim=True))
case("row22_relu_zero", "Relu", [np.array([-1.0, 0, 2])], torch.relu)
case("row22_leaky_zero", "LeakyRelu <alpha=0.25>", [np.array([-1.0, 0, 2])], lambda t: F.leaky_relu(t, 0.25))
case("row22_prelu_zero", "PRelu", [np.array([-1.0, 0, 2]), np.array([0.25])], F.prelu)
case("row22_elu_zero", "Elu <alpha=0.5>", [np.array([-1.0, 0, 2])], lambda t: F.elu(t, 0.5))
case("row22_celu_zero", "Celu <alpha=0.5>", [np.array([-1.0, 0, 2])], lambda t: F.celu(t, 0.5))
case("row22_hard_swish_corners", "HardSwish", [np.array([-3.0, -1, 0, 3, 4])], F.hardswish)
case("row22_shrink_corners", "Shrink <lambd=0.5>", [np.array([-1.0, -0.5, 0, 0.5, 2])], lambda t: F.hardshrink(t, 0.5))
case("row22_thresholded_corner", "ThresholdedRelu <alpha=1.0>", [np.array([-1.0, 1, 2])], lambda t: F.threshold(t, 1.0, 0.0))
mask = np.array([True, False, True])
case("row22_where_untaken", None, [mask, np.array([4.0, -1, 9]), np.array([1.0, 2, 3])],
     lambda m, t, o: torch.where(m, torch.sqrt(torch.where(m, t, torch.ones_like(t))), o),
     text="q = Sqrt(x1) y = Where(x0, q, x2)", given=([2.0, 2.0, 3.0], {"x1": np.array([0.25, NAN, 1 / 6]), "x2": np.array([0.0, 1, 0])}))
case("row22_where_nan_branch", "Where", [mask, np.array([1.0, NAN, 3]), np.array([NAN, 2, INF])], torch.where)
case("row22_where_broadcast", "Where", [np.array([[True], [False]]), r(3), r(2, 1)], torch.where)
case("row22_sign_zero", "Sign", [np.array([-1.0, 0, 2])], torch.sign)
case("row22_mod_floats", "Mod <fmod=1>", [np.array([5.5, -5.5, 4]), np.array([2.0, 2, 2])], torch.fmod)
case("row22_floor", "Floor", [np.array([-1.5, 0, 2])], torch.floor)

# --- masked softmax ----------------------------------------------------------------------------------------
scores = np.array([[1.0, 2, -INF], [-INF, 0, 3]])
case("softmax_masked", "Softmax <axis=-1>", [scores], lambda t: F.softmax(t, -1))
case("softmax_all_masked_row", "Softmax <axis=-1>", [np.array([[-INF, -INF], [0.0, 1]])], lambda t: F.softmax(t, -1))
case("log_softmax_masked", "LogSoftmax <axis=-1>", [scores], lambda t: F.log_softmax(t, -1))
case("softmax_size_one", "Softmax <axis=1>", [r(3, 1)], lambda t: F.softmax(t, 1))
case("softmax_empty", "Softmax <axis=-1>", [np.zeros((0, 3))], lambda t: F.softmax(t, -1))
case("log_of_zero", "Log", [np.array([0.0, 1])], torch.log)
case("xlogy_masked", None, [np.array([[0.0, 1], [0.5, 0.5]]), np.array([[True, False], [False, False]])],
     lambda p, m: torch.where(m, torch.zeros(()), p * torch.log(torch.where(m, torch.ones(()), p))),
     text="one = Constant<value = double {1.0}>() zero = Constant<value = double {0.0}>() s = Where(x1, one, x0) l = Log(s) t = Mul(x0, l) y = Where(x1, zero, t)")

# --- rows 24 and 25 -------------------------------------------------------------------------------------
x = np.array([1.5, -2.5, 0.0])
case("row24_cast_through_int", None, [x], lambda t: t * t.detach().trunc(), text="i = Cast<to=7>(x0) f = Cast<to=11>(i) y = Mul(x0, f)")
case("row24_cast_through_bool", None, [x], lambda t: t * (t.detach() != 0), text="i = Cast<to=9>(x0) f = Cast<to=11>(i) y = Mul(x0, f)")
case("row24_cast_only", None, [x], lambda t: t.detach().trunc() + t * 0, text="i = Cast<to=7>(x0) f = Cast<to=11>(i) z = Sub(x0, x0) y = Add(f, z)")
case("row24_cast_float", None, [np.array([1.5, -2.5])], lambda t: t.float().double(), text="h = Cast<to=1>(x0) y = Cast<to=11>(h)")
case("row25_reshape_zero_minus_one", "Reshape", [r(2, 3, 4), ints(0, -1)], lambda t, s: t.reshape(2, -1))
case("row25_reshape_from_shape", None, [r(2, 3, 4), ints(0), ints(-1)], lambda t, z, m: t.reshape(2, 12),
     text="s = Shape(x0) b = Gather(s, x1) t = Concat<axis=0>(b, x2) y = Reshape(x0, t)", symbolic={(0, 0)})
case("row25_expand_to_shape", None, [r(2, 1), r(2, 3)], lambda t, u: t.expand(2, 3) * u, text="s = Shape(x1) e = Expand(x0, s) y = Mul(e, x1)")
case("row25_expand_rank", "Expand", [r(3, 1), ints(2, 1, 4)], lambda t, s: t.expand(2, 3, 4))
case("row25_tile", "Tile", [r(2, 3), ints(2, 3)], lambda t, s: t.repeat(2, 3))
case("row25_tile_zero", "Tile", [r(2, 3), ints(1, 0)], lambda t, s: t.repeat(1, 0))
case("row25_reshape_empty", "Reshape <allowzero=1>", [np.zeros((0, 3)), ints(3, 0)], lambda t, s: t.reshape(3, 0))

# --- row 26: Softmax before opset 13 -----------------------------------------------------------------------
x = r(2, 3, 2)
two = lambda t, axis, f: f(t.reshape(int(np.prod(t.shape[:axis])), -1), 1).reshape(t.shape)
case("row26_softmax_opset11", "Softmax <axis=1>", [x], lambda t: two(t, 1, F.softmax), 11)
case("row26_softmax_opset11_default", "Softmax", [x], lambda t: two(t, 1, F.softmax), 11)
case("row26_log_softmax_opset11_axis0", "LogSoftmax <axis=0>", [x], lambda t: two(t, 0, F.log_softmax), 11)
case("row26_softmax_opset13", "Softmax", [x], lambda t: F.softmax(t, -1), 13)

# --- axes, steps, small and empty shapes ------------------------------------------------------------------
x = r(3, 4)
case("slice_negative_step", "Slice", [x, ints(-1, 2), ints(-9, 0), ints(0, 1), ints(-1, -2)],
     lambda t, *a: t.flip(0)[:, [2]])
case("slice_step_two", "Slice", [x, ints(1), ints(99), ints(-1), ints(2)], lambda t, *a: t[:, 1::2])
case("slice_negative_start", "Slice", [x, ints(-2), ints(-1), ints(0)], lambda t, *a: t[-2:-1])
case("slice_nothing", "Slice", [x, ints(2), ints(1), ints(0)], lambda t, *a: t[2:1])
case("slice_attribute", "Slice <starts=[1], ends=[-1], axes=[1]>", [x], lambda t: t[:, 1:-1], 9)
case("concat_negative_axis", "Concat <axis=-2>", [r(2, 3), r(1, 3)], lambda *t: torch.cat(t, -2))
case("split_negative_axis", None, [x, ints(1, 3)], lambda t, s: t[:, 1:] * 2, text="a, b = Split<axis=-1>(x0, x1) y = Add(b, b)")
case("flatten_negative_axis", "Flatten <axis=-1>", [r(2, 3, 4)], lambda t: t.reshape(6, 4))
case("unsqueeze_negative_axes", "Unsqueeze", [x, ints(-1, 0)], lambda t, a: t[None, ..., None])
case("squeeze_negative_axes", "Squeeze", [r(2, 1, 3, 1), ints(-1)], lambda t, a: t.squeeze(-1))
case("squeeze_all", "Squeeze", [r(1, 3, 1)], lambda t: t.squeeze())
case("cumsum_reverse_exclusive", "CumSum <reverse=1, exclusive=1>", [x, np.int64(-1)], lambda t, a: t.flip(1).cumsum(1).flip(1) - t)
case("transpose_default", "Transpose", [r(2, 3, 4)], lambda t: t.permute(2, 1, 0))
case("argmax_has_no_gradient", None, [x], lambda t: t * 2 + t.detach().argmax(1, True), text="i = ArgMax<axis=-1>(x0) f = Cast<to=11>(i) d = Add(x0, x0) y = Add(d, f)")
case("matmul_inner_empty", "MatMul", [np.zeros((2, 0)), np.zeros((0, 3))], torch.matmul)
case("matmul_outer_empty", "MatMul", [np.zeros((0, 2)), r(2, 3)], torch.matmul)
case("matmul_vectors", "MatMul", [r(3), r(3)], torch.matmul)
case("matmul_broadcast_batch", "MatMul", [r(2, 1, 2, 3), r(3, 3, 1)], torch.matmul)
case("gemm_size_one", "Gemm <alpha=0.5, beta=2.0, transA=1>", [r(1, 1), r(1, 1), r(1, 1)], lambda p, q, z: 0.5 * p.T @ q + 2 * z)
case("add_size_one_axes", "Add", [r(1, 3, 1), r(2, 1, 4)], torch.add)
case("mul_empty", "Mul", [np.zeros((0, 3)), r(1, 3)], torch.mul)
case("div_by_zero", "Div", [np.array([1.0, 0, -1]), np.zeros(3)], torch.div)
case("sum_of_one", "Sum", [x], lambda t: t * 1)
case("mean_of_three", "Mean", [r(2, 1), r(3), r(2, 3)], lambda a, b, c: (a + b + c) / 3)
case("trilu_offset", "Trilu <upper=0>", [r(3, 4), np.int64(-1)], lambda t, k: t.tril(-1))
case("instance_norm_size_one", "InstanceNormalization", [r(2, 3, 2), r(3), r(3)], lambda t, w, b: F.instance_norm(t, weight=w, bias=b))
case("batch_norm_frozen", "BatchNormalization", [r(2, 3, 2), r(3), r(3), r(3), r(3, low=0.5)],
     lambda t, w, b, m, s: F.batch_norm(t, m, s, w, b), 15, fixed=(3, 4))
case("group_norm_18", "GroupNormalization <num_groups=2>", [r(2, 4, 3), r(2), r(2)],
     lambda t, w, b: F.group_norm(t, 2, w.repeat_interleave(2), b.repeat_interleave(2)), 18)
case("group_norm_21", "GroupNormalization <num_groups=2>", [r(2, 4, 3), r(4), r(4)], lambda t, w, b: F.group_norm(t, 2, w, b), 21)
case("lp_norm_1", "LpNormalization <p=1, axis=0>", [x], lambda t: t / t.abs().sum(0, True))
case("lp_norm_2", "LpNormalization <p=2, axis=-1>", [x], lambda t: t / t.square().sum(-1, True).sqrt())
case("mean_variance", "MeanVarianceNormalization", [r(2, 3, 2, 2)],
     lambda t: (t - t.mean((0, 2, 3), True)) / (t.var((0, 2, 3), unbiased=False, keepdim=True).sqrt() + 1e-9))
case("rms_norm", "RMSNormalization <axis=-1, epsilon=0.0009765625>", [x, r(4)], lambda t, w: F.rms_norm(t, (4,), w, 0.0009765625), 23)
case("swish_alpha", "Swish <alpha=1.5>", [x], lambda t: t * torch.sigmoid(1.5 * t), 24)


# --- row 23: recurrent layers with lengths, both directions and initial states ---------------------------------
def reorder(w, order, n):
    return np.concatenate([w[k * n:(k + 1) * n] for k in order])


def recurrent(kind, gates, order):
    n, size, width, steps, batch = 3, 2, 2, 4, 3
    lens = [4, 2, 3]
    net = getattr(torch.nn, kind)(size, n, bidirectional=True).double()
    x = r(steps, batch, size)
    x[2:, 1], x[3:, 2] = 0, 0
    h0 = r(2, batch, n)
    ws, rs, bs = [], [], []
    for tail in ("", "_reverse"):
        get = lambda p: getattr(net, f"{p}_l0{tail}").detach().numpy()
        ws.append(reorder(get("weight_ih"), order, n)), rs.append(reorder(get("weight_hh"), order, n))
        bs.append(np.concatenate([reorder(get("bias_ih"), order, n), reorder(get("bias_hh"), order, n)]))
    inputs = [x, np.stack(ws), np.stack(rs), np.stack(bs), np.array(lens, np.int32), h0]
    if kind == "LSTM":
        inputs.append(r(2, batch, n))

    def fn(t, w, rr, b, l, h, c=None):
        back = np.argsort(order)
        undo = lambda m: torch.cat([m[k * n:(k + 1) * n] for k in back])
        params = []
        for d in (0, 1):
            params += [undo(w[d]), undo(rr[d]), undo(b[d][:gates * n]), undo(b[d][gates * n:])]
        packed = torch.nn.utils.rnn.pack_padded_sequence(t, lens, enforce_sorted=False)
        state = h if c is None else (h, c)
        perm = packed.sorted_indices
        state = h[:, perm] if c is None else (h[:, perm], c[:, perm])
        call = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[kind]
        out = call(packed.data, packed.batch_sizes, state, params, True, 1, 0.0, False, True)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(
            torch.nn.utils.rnn.PackedSequence(out[0], packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices))
        return y.reshape(steps, batch, 2, n).permute(0, 2, 1, 3)

    attrs = f'hidden_size={n}, direction="bidirectional"' + (", linear_before_reset=1" if kind == "GRU" else "")
    case(f"row23_{kind.lower()}_lens_both_directions", f"{kind} <{attrs}>", inputs, fn, 14)


recurrent("LSTM", 4, [0, 3, 1, 2])  # torch: i f g o; ONNX: i o f c
recurrent("GRU", 3, [1, 0, 2])      # torch: r z n; ONNX: z r h
recurrent("RNN", 1, [0])

np.savez_compressed(os.path.join(HERE, "edges.npz"), **arrays)
print(count, "cases,", sum(a.nbytes for a in arrays.values()), "bytes")
