#!/usr/bin/env python3
"""Writes opsets.onnx: one tiny model per operator and operator version (opset 7 to the newest), with
inputs and expected outputs, for tests/onnx_node/opsets_test.cc.

Expected outputs come from onnx.reference where it has that version's meaning, else from the numpy
expression written beside the case (2-D softmax, Upsample, Resize 10, spatial batch norm, ...).
The container is a ModelProto whose nodes are the cases: attributes "model" (a serialized ModelProto),
"feeds" and "results" (tensors). Needs pip's onnx and numpy:  python make_opsets.py
"""
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

NEWEST = 27
rng = np.random.default_rng(7)
cases, failed = [], []
versions = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if schema.domain == "":
        versions.setdefault(schema.name, []).append(schema.since_version)


def forms(op, first=7, last=NEWEST):
    """The opsets at which a version of op begins, with 7 for the one active there."""
    all_ = sorted(versions[op])
    at = [max(v, 7) for v in all_ if v > 7] + ([7] if any(v <= 7 for v in all_) else [])
    return [v for v in sorted(set(at)) if first <= v <= last]


def f(*shape, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def i64(*values):
    return np.array(values, np.int64)


class Const:
    """An input that is an initializer."""

    def __init__(self, value):
        self.value = np.asarray(value)


def reference(op, opset, inputs, attrs, outputs=1):
    """What onnx.reference gives for one node."""
    arrays = {f"x{k}": np.asarray(x.value if isinstance(x, Const) else x)
              for k, x in enumerate(inputs) if x is not None}
    graph = helper.make_graph(
        [helper.make_node(op, ["" if x is None else f"x{k}" for k, x in enumerate(inputs)],
                          [f"y{k}" for k in range(outputs)], **attrs)], "reference",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for k, v in arrays.items()],
        [helper.make_tensor_value_info(f"y{k}", TensorProto.UNDEFINED, None) for k in range(outputs)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return ReferenceEvaluator(model).run(None, arrays)


def add(op, opset, inputs, attrs=None, expected=None, outputs=1, tag=""):
    """inputs: arrays, Const or None (absent). expected: a list of arrays, or None for onnx.reference."""
    attrs = attrs or {}
    names, infos, inits, feed = [], [], [], {}
    for k, x in enumerate(inputs):
        if x is None:
            names.append("")
            continue
        names.append(f"x{k}")
        if isinstance(x, Const):
            inits.append(numpy_helper.from_array(x.value, f"x{k}"))
        else:
            x = np.asarray(x)
            feed[f"x{k}"] = x
            infos.append(helper.make_tensor_value_info(
                f"x{k}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
    ys = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, ys, **attrs)

    def model(types):
        graph = helper.make_graph([node], "case", infos, [
            helper.make_tensor_value_info(y, t, s) for y, (t, s) in zip(ys, types)], inits)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    name = f"{op}_{opset}{tag}"
    try:
        got = reference(op, opset, inputs, attrs, outputs) if expected is None else expected
        got = [np.asarray(g) for g in got]
        made = model([(helper.np_dtype_to_tensor_dtype(g.dtype), g.shape) for g in got])
        if op != "GroupNormalization":  # 18 is deprecated: the checker refuses it
            onnx.checker.check_model(made)
    except Exception as e:  # pylint: disable=broad-except
        failed.append(f"{name}: {type(e).__name__}: {str(e)[:200]}")
        return
    cases.append(helper.make_node(
        "Case", [], [], name=name, model=made.SerializeToString(),
        **({"feeds": [numpy_helper.from_array(v, k) for k, v in feed.items()]} if feed else {}),
        results=[numpy_helper.from_array(g, y) for g, y in zip(got, ys)]))


def every(op, make, first=7, last=NEWEST, tag="", **more):
    """One case per version; make(opset) gives (inputs, attrs) or (inputs, attrs, expected)."""
    for v in forms(op, first, last):
        made = make(v)
        add(op, v, *made, tag=tag, **more)


# --- one input, no attributes
for op, low, high in [
        ("Abs", -2, 2), ("Acos", -.9, .9), ("Acosh", 1.1, 3), ("Asin", -.9, .9), ("Asinh", -2, 2),
        ("Atan", -2, 2), ("Atanh", -.9, .9), ("Ceil", -2, 2), ("Cos", -2, 2), ("Cosh", -2, 2),
        ("Erf", -2, 2), ("Exp", -2, 2), ("Floor", -2, 2), ("Log", .1, 3), ("Neg", -2, 2),
        ("Reciprocal", .5, 2), ("Relu", -2, 2), ("Sigmoid", -2, 2), ("Sign", -2, 2), ("Sin", -2, 2),
        ("Sinh", -2, 2), ("Softplus", -2, 2), ("Softsign", -2, 2), ("Sqrt", .1, 3), ("Tan", -1, 1),
        ("Tanh", -2, 2), ("Round", -3, 3), ("Identity", -2, 2), ("HardSwish", -4, 4), ("Mish", -2, 2),
        ("IsNaN", -2, 2), ("Elu", -2, 2), ("Selu", -2, 2), ("LeakyRelu", -2, 2),
        ("ThresholdedRelu", -2, 2), ("HardSigmoid", -4, 4), ("Det", -2, 2), ("Shape", -2, 2),
        ("Size", -2, 2), ("NonZero", -2, 2)]:
    def unary(v, op=op, low=low, high=high):
        x = f(3, 3, low=low, high=high)
        return [Const(x) if op == "NonZero" else x], {}
    every(op, unary)
x = f(2, 3, low=-3, high=3)
every("Elu", lambda v: ([x], {"alpha": .7}), tag="_alpha")
every("LeakyRelu", lambda v: ([x], {"alpha": .3}), tag="_alpha")
every("ThresholdedRelu", lambda v: ([x], {"alpha": .5}), tag="_alpha")
every("HardSigmoid", lambda v: ([x], {"alpha": .3, "beta": .4}), tag="_alpha")
every("Selu", lambda v: ([x], {"alpha": 1.2, "gamma": 2.0}), tag="_alpha")
every("IsInf", lambda v: ([np.array([np.inf, -np.inf, 1], np.float32)], {"detect_negative": 0}))

# --- arithmetic and comparison
for op in ("Add", "Sub", "Mul", "Div"):
    every(op, lambda v: ([f(2, 3, low=1), f(3, low=1)], {}))
    every(op, lambda v: ([np.array([[7, 9]], np.int32), np.array([2, 3], np.int32)], {}), tag="_i32")
every("Pow", lambda v: ([f(2, 3, low=.5), f(3)], {}))
every("Pow", lambda v: ([f(2, 3, low=.5), i64(2)], {}), first=12, tag="_i64")
every("PRelu", lambda v: ([f(2, 3, 2), f(3, 1)], {}))
every("Mod", lambda v: ([np.array([-7, 9], np.int64), np.array([3, -4], np.int64)], {}))
every("Mod", lambda v: ([f(4), f(4, low=1)], {"fmod": 1}), tag="_fmod")
for op in ("Max", "Min", "Sum", "Mean"):
    every(op, lambda v: ([f(2, 3), f(2, 3), f(2, 3)], {}))
    every(op, lambda v: ([f(2, 3), f(3)], {}), first=8, tag="_broadcast")
for op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
    every(op, lambda v: ([f(2, 3), f(3)], {}))
every("Equal", lambda v: ([i64(1, 2, 3), i64(1, 0, 3)], {}))
every("Where", lambda v: ([np.array([True, False]), f(2, 2), f(2)], {}))

# --- normalisation and softmax
X4 = f(2, 3, 2, 2)
scale, bias, mean, var = f(3), f(3), f(3), f(3, low=.5)
side = lambda s: s.reshape(1, 3, 1, 1)
normal = side(scale) * (X4 - side(mean)) / np.sqrt(side(var) + 1e-5) + side(bias)
every("BatchNormalization", lambda v: ([X4, scale, bias, mean, var], {}, [normal]))
s4, b4, m4, v4 = f(3, 2, 2), f(3, 2, 2), f(3, 2, 2), f(3, 2, 2, low=.5)
add("BatchNormalization", 7, [X4, s4, b4, m4, v4], {"spatial": 0, "epsilon": .01},
    [s4 * (X4 - m4) / np.sqrt(v4 + .01) + b4], tag="_spatial0")
add("BatchNormalization", 7, [X4, scale, bias, mean, var], {"spatial": 1, "momentum": .8}, [normal],
    tag="_spatial1")


def flat_softmax(x, axis, kind):
    two = x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1).astype(np.float64)
    if kind == "Hardmax":
        y = np.zeros_like(two)
        y[np.arange(len(two)), two.argmax(1)] = 1
    else:
        y = two - two.max(1, keepdims=True)
        y = y - np.log(np.exp(y).sum(1, keepdims=True))
        y = np.exp(y) if kind == "Softmax" else y
    return [y.reshape(x.shape).astype(np.float32)]


x3 = f(2, 3, 4)
for op in ("Softmax", "LogSoftmax", "Hardmax"):
    for v in (7, 11):
        add(op, v, [x3], {}, flat_softmax(x3, 1, op))
        add(op, v, [x3], {"axis": 0}, flat_softmax(x3, 0, op), tag="_axis0")
        add(op, v, [x3], {"axis": 2}, flat_softmax(x3, 2, op), tag="_axis2")
    add(op, 11, [x3], {"axis": -2}, flat_softmax(x3, 1, op), tag="_axis-2")
    add(op, 13, [x3])
    add(op, 13, [x3], {"axis": 1}, tag="_axis1")
for op, more in (("InstanceNormalization", 1), ("LRN", 0), ("LpNormalization", 0),
                 ("MeanVarianceNormalization", 0)):
    every(op, lambda v: ([X4, scale, bias] if more else [X4], {"size": 3} if op == "LRN" else {}))
add("LpNormalization", 7, [X4], {"axis": 1, "p": 1}, [X4 / np.abs(X4).sum(1, keepdims=True)], tag="_p1")
gx, gs, gb = f(2, 4, 3), f(2), f(2)


def group_norm(x, s, b):
    y = x.reshape(2, 2, -1).astype(np.float64)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return [(y.reshape(x.shape) * s.reshape(1, 4, 1) + b.reshape(1, 4, 1)).astype(np.float32)]


add("GroupNormalization", 18, [gx, gs, gb], {"num_groups": 2}, group_norm(gx, gs.repeat(2), gb.repeat(2)))
g4, h4 = f(4), f(4)
add("GroupNormalization", 21, [gx, g4, h4], {"num_groups": 2}, group_norm(gx, g4, h4))

# --- reductions
for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
           "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"):
    as_input = 13 if op == "ReduceSum" else 18
    r = f(2, 3, 2, low=.5)

    def axes(v, values, extra):
        return ([r, Const(i64(*values))], extra) if v >= as_input else ([r], {"axes": values, **extra})
    every(op, lambda v: axes(v, [1], {}))
    every(op, lambda v: axes(v, [0, 2], {"keepdims": 0}), tag="_two")
    every(op, lambda v: axes(v, [-1], {"keepdims": 0}), first=11, tag="_negative")
    every(op, lambda v: ([r], {"keepdims": 0}), tag="_all")
    every(op, lambda v: ([r, Const(np.array([], np.int64))], {"noop_with_empty_axes": 1}),
          first=as_input, tag="_noop")
for op in ("ArgMax", "ArgMin"):
    ties = np.array([[1, 3, 3], [2, 0, 0]], np.float32)
    every(op, lambda v: ([ties], {}))
    every(op, lambda v: ([ties], {"axis": 1, "keepdims": 0}), tag="_axis1")
    every(op, lambda v: ([ties], {"axis": -1}), first=11, tag="_negative")
    every(op, lambda v: ([ties], {"axis": 1, "select_last_index": 1}), first=12, tag="_last")

# --- shapes
every("Reshape", lambda v: ([f(2, 6), Const(i64(0, 3, -1))], {}))
every("Reshape", lambda v: ([f(0, 3), Const(i64(3, 0))], {"allowzero": 1}), first=14, tag="_zero")
for axis in (0, 1, 2):
    every("Flatten", lambda v: ([f(2, 3, 2)], {"axis": axis}), tag=f"_axis{axis}")
every("Flatten", lambda v: ([f(2, 3, 2)], {"axis": -1}), first=11, tag="_negative")
every("Squeeze", lambda v: ([f(1, 3, 1), Const(i64(0))], {}) if v >= 13 else ([f(1, 3, 1)], {"axes": [0]}))
every("Squeeze", lambda v: ([f(1, 3, 1)], {}), tag="_all")
every("Unsqueeze", lambda v: ([f(2, 3), Const(i64(0, 3))], {}) if v >= 13 else ([f(2, 3)], {"axes": [0, 3]}))
every("Unsqueeze", lambda v: ([f(2, 3), Const(i64(-1))], {}) if v >= 13 else ([f(2, 3)], {"axes": [-1]}),
      first=11, tag="_negative")
every("Transpose", lambda v: ([f(2, 3, 4)], {"perm": [2, 0, 1]}))
every("Transpose", lambda v: ([f(2, 3)], {}), tag="_default")
every("Expand", lambda v: ([f(3, 1), Const(i64(2, 1, 4))], {}))
every("Tile", lambda v: ([f(2, 3), Const(i64(2, 1))], {}))
every("Concat", lambda v: ([f(2, 3), f(2, 1)], {"axis": 1}))
every("Concat", lambda v: ([f(2, 3), f(2, 1)], {"axis": -1}), first=11, tag="_negative")
s6 = f(6, 2)
every("Split", lambda v: ([s6, Const(i64(2, 4))], {}) if v >= 13 else ([s6], {"split": [2, 4]}), outputs=2)
every("Split", lambda v: ([s6], {"num_outputs": 3} if v >= 18 else {}), outputs=3, tag="_even")
add("Split", 18, [f(5, 2)], {"num_outputs": 2}, outputs=2, tag="_uneven")
every("Shape", lambda v: ([f(2, 3, 4)], {"start": 1, "end": -1}), first=15, tag="_part")
d = f(4, 5)
every("Slice", lambda v: ([d, Const(i64(1, 0)), Const(i64(3, 9)), Const(i64(0, 1)), Const(i64(1, 2))], {})
      if v >= 10 else ([d], {"starts": [1, 0], "ends": [3, 9], "axes": [0, 1]}))
every("Slice", lambda v: ([d, Const(i64(-3)), Const(i64(-1))], {})
      if v >= 10 else ([d], {"starts": [-3], "ends": [-1]}), tag="_default")
every("Slice", lambda v: ([d, Const(i64(3)), Const(i64(-9)), Const(i64(-1)), Const(i64(-2))], {}), first=11,
      tag="_back")
p = f(2, 3)
for mode in ("constant", "reflect", "edge"):
    every("Pad", lambda v: ([p, Const(i64(0, 1, 1, 2)), Const(np.float32(.5))], {"mode": mode}) if v >= 11
          else ([p], {"pads": [0, 1, 1, 2], "mode": mode, "value": .5}), tag=f"_{mode}")
every("Pad", lambda v: ([p, Const(i64(1, 1)), None, Const(i64(-1))], {"mode": "constant"}), first=18, tag="_axes")
add("Pad", 19, [p, Const(i64(0, 2, 0, 1))], {"mode": "wrap"}, tag="_wrap")
add("Pad", 7, [p], {"pads": [0, -1, 0, 1]}, [np.pad(p[:, 1:], ((0, 0), (0, 1)))], tag="_crop")

# --- selection
c = f(2, 4)
every("Clip", lambda v: ([c, np.float32(-.5), np.float32(1)], {}) if v >= 11 else ([c], {"min": -.5, "max": 1.}))
every("Clip", lambda v: ([c], {}), tag="_open")
every("Clip", lambda v: ([c, None, np.float32(.25)], {}) if v >= 11 else ([c], {"max": .25}), tag="_max")
every("Clip", lambda v: ([np.array([1, 5, 9], np.int64), np.int64(2), np.int64(7)], {}), first=12, tag="_i64")
t = f(3, 5)
every("TopK", lambda v: ([t, Const(i64(2))], {}) if v >= 10 else ([t], {"k": 2}), outputs=2)
every("TopK", lambda v: ([t, Const(i64(2))], {"axis": 0}) if v >= 10 else ([t], {"k": 2, "axis": 0}), outputs=2,
      tag="_axis0")
every("TopK", lambda v: ([t, Const(i64(2))], {"largest": 0}), first=11, outputs=2, tag="_smallest")
every("Gather", lambda v: ([f(4, 3), i64(2, 0)], {}))
every("Gather", lambda v: ([f(4, 3), i64(-1, 0)], {"axis": 1}), first=11, tag="_negative")
every("GatherElements", lambda v: ([f(2, 3), np.array([[0, 2], [1, 1]], np.int64)], {"axis": 1}))
every("GatherND", lambda v: ([f(2, 3, 2), np.array([[0, 2], [1, 1]], np.int64)], {}))
every("GatherND", lambda v: ([f(2, 3, 2), np.array([[2], [1]], np.int64)], {"batch_dims": 1}), first=12, tag="_batch")
se = [f(3, 3), np.array([[1, 0, 2]], np.int64), f(1, 3)]
sx = se[0].copy()
for k in range(3):
    sx[se[1][0, k], k] = se[2][0, k]
for v in (9, 10):
    add("Scatter", v, se, {"axis": 0}, [sx])
every("ScatterElements", lambda v: (se, {"axis": 0}))
for reduction, first in (("add", 16), ("mul", 16), ("max", 18), ("min", 18)):
    every("ScatterElements", lambda v: (se, {"reduction": reduction}), first=first, tag=f"_{reduction}")
    every("ScatterND", lambda v: ([f(4, 2), np.array([[1], [3]], np.int64), f(2, 2)], {"reduction": reduction}),
          first=first, tag=f"_{reduction}")
every("ScatterND", lambda v: ([f(4, 2), np.array([[1], [3]], np.int64), f(2, 2)], {}))
every("Compress", lambda v: ([f(3, 2), Const(np.array([True, False, True]))], {"axis": 0}))
onehot = np.where(np.eye(3)[[1, 0, 2]] > 0, 2, .5).astype(np.float32)
every("OneHot", lambda v: ([i64(1, 0, 2), Const(i64(3)), np.array([.5, 2], np.float32)], {}, [onehot]))
every("OneHot", lambda v: ([i64(1, -1), Const(i64(3)), np.array([0, 1], np.float32)], {"axis": 0},
                           [np.eye(3, dtype=np.float32)[[1, 2]].T]), first=11, tag="_axis0")
every("EyeLike", lambda v: ([f(2, 3)], {"k": 1}))
every("Range", lambda v: ([Const(np.int64(1)), Const(np.int64(8)), Const(np.int64(3))], {}))
every("ConstantOfShape", lambda v: ([Const(i64(2, 3))], {}))
every("ConstantOfShape", lambda v: ([Const(i64(2))], {"value": numpy_helper.from_array(i64(5))}), tag="_value")
every("Constant", lambda v: ([], {"value": numpy_helper.from_array(f(2))}))
every("Constant", lambda v: ([], {"value_floats": [1.5, 2.0]}), first=12, tag="_floats")
every("Constant", lambda v: ([], {"value_int": 3}), first=12, tag="_int")
every("CumSum", lambda v: ([f(2, 3), Const(np.int64(1))], {"exclusive": 1, "reverse": 1}))
every("NonMaxSuppression", lambda v: ([Const(np.array([[[0, 0, 1, 1], [0, .1, 1, 1.1], [0, 5, 1, 6]]], np.float32)),
                                       Const(np.array([[[.9, .7, .8]]], np.float32)), Const(i64(2)),
                                       Const(np.array([.5], np.float32)), Const(np.array([.1], np.float32))], {}))

# --- casts
for to in (TensorProto.INT32, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.DOUBLE):
    every("Cast", lambda v: ([f(2, 3)], {"to": to}), tag=f"_{to}")
every("CastLike", lambda v: ([f(2, 3), np.zeros(1, np.int32)], {}))
for v in (7, 10, 12, 13, 22):
    x = f(2, 3)
    add("Dropout", v, [x], {"ratio": .4} if v < 12 else {}, [x])
    add("Dropout", v, [x] if v < 12 else [x, Const(np.float32(.4)), Const(np.bool_(False))], {},
        [x, np.ones(x.shape, np.float32 if v < 10 else bool)], outputs=2, tag="_mask")

# --- products and convolutions
every("MatMul", lambda v: ([f(2, 2, 3), f(3, 2)], {}))
every("Gemm", lambda v: ([f(3, 2), f(4, 3), f(4)], {"transA": 1, "transB": 1, "alpha": .5, "beta": 2.}))
every("Gemm", lambda v: ([f(2, 3), f(3, 4), f(2, 1)], {}), tag="_column")
every("Gemm", lambda v: ([f(2, 3), f(3, 4)], {}), first=11, tag="_no_c")
img, ker = f(1, 2, 5, 5), f(3, 2, 3, 3)
every("Conv", lambda v: ([img, ker, f(3)], {"strides": [2, 1], "pads": [1, 0, 1, 0]}))
every("Conv", lambda v: ([img, ker], {"auto_pad": "SAME_UPPER", "kernel_shape": [3, 3]}), tag="_same_upper")
every("Conv", lambda v: ([img, ker], {"auto_pad": "VALID"}, reference("Conv", 22, [img, ker], {})), tag="_valid")
every("ConvTranspose", lambda v: ([img, f(2, 3, 3, 3)], {"strides": [2, 2], "output_padding": [1, 0]}))
ckt = f(2, 3, 3, 3)
# Opset 7's text splits an odd total the other way round; ONNX Runtime never did, and 11 corrected it.
whole = reference("ConvTranspose", 22, [img, ckt], {"strides": [2, 2]})[0]  # 11 x 11: one row too many
every("ConvTranspose", lambda v: ([img, ckt], {"strides": [2, 2], "output_shape": [10, 10]}, [whole[:, :, 1:, 1:]]),
      tag="_shape")
every("ConvTranspose", lambda v: ([img, ckt], {"strides": [2, 2], "output_shape": [10, 10], "auto_pad": "SAME_UPPER"},
                                  [whole[:, :, :-1, :-1]]), tag="_shape_upper")
every("ConvTranspose", lambda v: ([img, f(2, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}), tag="_same")
pool = f(1, 2, 5, 6)
for op in ("AveragePool", "MaxPool", "LpPool"):
    every(op, lambda v: ([pool], {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]}))
    every(op, lambda v: ([pool], {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"}), tag="_same_lower")
    first = {"AveragePool": 10, "MaxPool": 10, "LpPool": 18}[op]
    # onnx.reference scales the norm of a window that is cut off by ceil_mode; the text does not.
    cut = np.pad(np.abs(pool) ** 2, ((0, 0), (0, 0), (0, 1), (0, 0))).reshape(1, 2, 3, 2, 3, 2).sum((3, 5)) ** .5
    every(op, lambda v: ([pool], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
                         [cut] if op == "LpPool" else None), first=first, tag="_ceil")
    first = {"AveragePool": 19, "MaxPool": 10, "LpPool": 18}[op]
    every(op, lambda v: ([pool], {"kernel_shape": [2, 2], "dilations": [2, 2]}), first=first, tag="_dilated")
every("AveragePool", lambda v: ([pool], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}), tag="_include")
every("MaxPool", lambda v: ([pool], {"kernel_shape": [2, 2], "strides": [2, 2]}), first=8, outputs=2, tag="_indices")
for op in ("GlobalAveragePool", "GlobalMaxPool"):
    every(op, lambda v: ([pool], {}))
every("GlobalLpPool", lambda v: ([pool], {"p": 3}, [(np.abs(pool) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)]))
every("MaxUnpool", lambda v: ([f(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]], np.int64)],
                              {"kernel_shape": [2, 2], "strides": [2, 2]}))
dts = f(1, 8, 2, 3)
blocks = dts.reshape(1, 2, 2, 2, 2, 3)
for v in (7, 11, 13):
    add("DepthToSpace", v, [dts], {"blocksize": 2}, [blocks.transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6)])
every("DepthToSpace", lambda v: ([dts], {"blocksize": 2, "mode": "CRD"}), first=11, tag="_crd")
every("SpaceToDepth", lambda v: ([f(1, 2, 4, 6)], {"blocksize": 2}))

# --- resampling
up = f(1, 1, 2, 3)
near = up.repeat(2, 2).repeat(3, 3)


def linear(x, axis, factor):
    """Opset 7 to 10: position i / factor, ends clamped."""
    n = x.shape[axis]
    at = np.arange(n * factor) / factor
    low = np.minimum(at.astype(int), n - 1)
    high = np.minimum(low + 1, n - 1)
    w = (at - low).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    return np.take(x, low, axis) * (1 - w) + np.take(x, high, axis) * w


bil = linear(linear(up.astype(np.float64), 2, 2), 3, 3).astype(np.float32)
scales = np.array([1, 1, 2, 3], np.float32)
for mode, want in (("nearest", near), ("linear", bil)):
    add("Upsample", 7, [up], {"mode": mode, "scales": scales.tolist()}, [want], tag=f"_{mode}")
    add("Upsample", 9, [up, Const(scales)], {"mode": mode}, [want], tag=f"_{mode}")
    add("Resize", 10, [up, Const(scales)], {"mode": mode}, [want], tag=f"_{mode}")
down = f(1, 1, 4, 6)
add("Resize", 10, [down, Const(np.array([1, 1, .5, .5], np.float32))], {"mode": "nearest"}, [down[:, :, ::2, ::2]], tag="_down")
none = Const(np.array([], np.float32))
for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
    for mode in ("nearest", "linear", "cubic"):
        every("Resize", lambda v: ([down, none, Const(np.array([1, 1, 1.5, .5], np.float32))],
                                   {"mode": mode, "coordinate_transformation_mode": how}), first=11,
              tag=f"_{mode}_{how}")
for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    every("Resize", lambda v: ([down, none, none, Const(i64(1, 1, 7, 3))], {"nearest_mode": rounding}), first=11,
          tag=f"_{rounding}")
every("Resize", lambda v: ([down, Const(np.array([0, 0, .2, .1, 1, 1, .8, 1.2], np.float32)), none, Const(i64(1, 1, 3, 4))],
                           {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
                            "extrapolation_value": 9.}), first=11, tag="_crop")
every("Resize", lambda v: ([down, none, Const(np.array([1, 1, .7, .6], np.float32))],
                           {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -.5}), first=11, tag="_exclude")
for mode in ("linear", "cubic"):
    every("Resize", lambda v: ([down, None, Const(np.array([.6, .6], np.float32))],
                               {"mode": mode, "antialias": 1, "axes": [2, 3]}), first=18, tag=f"_antialias_{mode}")
for policy in ("not_larger", "not_smaller"):
    every("Resize", lambda v: ([down, None, None, Const(i64(3, 3))],
                               {"mode": "nearest", "axes": [2, 3], "keep_aspect_ratio_policy": policy}), first=18,
          tag=f"_{policy}")
add("Resize", 19, [down, None, Const(np.array([1, 1, .8, .8], np.float32))],
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}, tag="_symmetric")
gx, gg = f(1, 1, 3, 4), f(1, 2, 2, 2, low=-1.3, high=1.3)
for v in (16, 20, 22):
    for old, new in (("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic")):
        for padding in ("zeros", "border", "reflection"):
            add("GridSample", v, [gx, gg], {"mode": old if v < 20 else new, "padding_mode": padding},
                reference("GridSample", 20, [gx, gg], {"mode": new, "padding_mode": padding}),
                tag=f"_{new}_{padding}")
for v in (20, 22):
    add("GridSample", v, [f(1, 1, 2, 3, 2), f(1, 1, 2, 2, 3, low=-1.2, high=1.2)], {"align_corners": 1}, tag="_3d")

# --- signal, regions
every("DFT", lambda v: ([f(1, 5, 1)], {"axis": 1}) if v < 20 else ([f(1, 5, 1), None, Const(np.int64(1))], {}))
every("DFT", lambda v: ([f(1, 4, 3, 2)], {"inverse": 1}), tag="_default_axis", outputs=1)
boxes = np.array([[.3, .7, 4.2, 3.6], [1, 1, 2, 5]], np.float32)
roi = f(1, 2, 6, 6)
aligned = {"output_height": 2, "output_width": 2}
for ratio in (0, 2):
    at = {**aligned, "sampling_ratio": ratio}
    corner = reference("RoiAlign", 16, [roi, boxes, i64(0, 0)], {**at, "coordinate_transformation_mode": "output_half_pixel"})
    add("RoiAlign", 10, [roi, boxes, i64(0, 0)], at, corner, tag=f"_{ratio}")
    every("RoiAlign", lambda v: ([roi, boxes, i64(0, 0)], at), first=16, tag=f"_{ratio}")

# --- recurrent
for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    ins = [f(3, 2, 2), f(1, gates * 3, 2), f(1, gates * 3, 3), f(1, gates * 6)]
    ys = reference(op, 14, ins, {"hidden_size": 3}, 2)
    every(op, lambda v: (ins, {"hidden_size": 3}, ys), outputs=2)
    every(op, lambda v: ([ins[0].transpose(1, 0, 2)] + ins[1:], {"hidden_size": 3, "layout": 1},
                         [ys[0].transpose(2, 0, 1, 3), ys[1].transpose(1, 0, 2)]), first=14, outputs=2, tag="_layout1")

# --- losses
labels = i64(0, 2)
every("SoftmaxCrossEntropyLoss", lambda v: ([f(2, 3), labels], {}))
every("SoftmaxCrossEntropyLoss", lambda v: ([f(2, 3), labels, f(3, low=.5)], {"reduction": "sum", "ignore_index": 2}),
      tag="_ignore")
every("NegativeLogLikelihoodLoss", lambda v: ([f(2, 3), labels], {}))
every("NegativeLogLikelihoodLoss", lambda v: ([f(2, 3, 2), np.array([[0, 1], [2, 2]], np.int64), f(3, low=.5)], {}),
      tag="_weights")

# --- quantization
q = f(2, 3)
for v in forms("QuantizeLinear", 10):
    add("QuantizeLinear", v, [q, Const(np.float32(.05)), Const(np.uint8(128))])
    deq = [np.array([[0, 7], [200, 255]], np.uint8), Const(np.float32(.05)), Const(np.uint8(128))]
    add("DequantizeLinear", v, deq, {}, reference("DequantizeLinear", 21, deq, {}))
    if v >= 13:
        add("QuantizeLinear", v, [q, Const(f(3, low=.02, high=.1)), Const(np.zeros(3, np.int8))], {"axis": 1}, tag="_axis")

# --- state along the sequence
heads = {"q_num_heads": 2, "kv_num_heads": 1}
qkv, past = [f(1, 3, 4), f(1, 3, 2), f(1, 3, 2)], f(1, 1, 2, 2)
decay, beta = f(1, 3, 1, low=-1, high=0), f(1, 3, 1, low=0, high=1)
for rule, more in (("linear", []), ("gated", [decay]), ("delta", [None, beta]), ("gated_delta", [decay, beta])):
    every("LinearAttention", lambda v: (qkv + [past] + more, {**heads, "update_rule": rule}), outputs=2, tag=f"_{rule}")
conv = [f(2, 3, 4), f(3, 1, 3), f(3), f(2, 3, 2)]
for activation in ("none", "silu", "swish"):
    every("CausalConvWithState", lambda v: (conv, {"activation": activation}), outputs=2, tag=f"_{activation}")
every("CausalConvWithState", lambda v: (conv[:2], {}), outputs=2)

out = helper.make_model(helper.make_graph(cases, "opset forms", [], []), producer_name="make_opsets.py")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "opsets.onnx"), "wb") as file:
    file.write(out.SerializeToString())
for line in failed:
    print("no case:", line)
print(len(cases), "cases,", len({c.name.split("_")[0] for c in cases}), "operators")
