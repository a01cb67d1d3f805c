"""Control flow, sequences, optionals, quantisation (straight-through inside the range)."""
import numpy as np
import torch

from make_ops import case, const, data, fixed, v, x

# ---- If ---------------------------------------------------------------------------------------------
BRANCHES = ("then_branch = t () => (double[2,3] a) { a = Mul(x1, x2) }, "
            "else_branch = e () => (double[2,3] b) { n = Neg(x1) b = Sub(n, x2) }")
for taken in (True, False):
    fn = lambda c, a, b, taken=taken: a * b if taken else -a - b
    case("If", f"data_{str(taken).lower()}", [data(taken, bool), x(2, 3), x(3)], fn, nodes=f"y0 = If (i0) <{BRANCHES}>")
    case("If", f"constant_{str(taken).lower()}", [const(taken, bool), x(2, 3), x(3)], fn,
         nodes=f"y0 = If (c0) <{BRANCHES}>")
case("If", "one_side_uses", [data(False, bool), x(2, 2), x(2, 2)], lambda c, a, b: b * 2,
     nodes="y0 = If (i0) <then_branch = t () => (double[2,2] a) { a = Exp(x1) }, "
           "else_branch = e () => (double[2,2] b) { b = Add(x2, x2) }>")
case("If", "nested", [data(True, bool), data(False, bool), x(2)], lambda c, d, a: torch.sin(a),
     nodes="y0 = If (i0) <then_branch = t () => (double[2] a) { a = If (i1) <then_branch = u () => (double[2] b) "
           "{ b = Cos(x2) }, else_branch = w () => (double[2] d) { d = Sin(x2) }> }, "
           "else_branch = e () => (double[2] f) { f = Neg(x2) }>")


# ---- Loop ----------------------------------------------------------------------------------------------
def loop(n, s, w):
    states = []
    for i in range(n):
        s = torch.tanh(s * w) + i
        states.append(s)
    return s, torch.stack(states)


case("Loop", "carried_and_scan", [const(3), const(True, bool), x(3), x(3)], lambda n, c, s, w: loop(3, s, w),
     nodes="y0, y1 = Loop (c0, c1, x2) <body = b (int64 i, bool c, double[3] s) => (bool co, double[3] so, double[3] sc)"
           " { co = Identity(c) m = Mul(s, x3) t = Tanh(m) f = Cast<to = 11>(i) so = Add(t, f) sc = Identity(so) }>")
case("Loop", "two_carried", [const(2), const(True, bool), x(2, 2), x(2, 2)],
     lambda n, c, a, b: two_carried(a, b),
     nodes="y0, y1 = Loop (c0, c1, x2, x3) <body = l (int64 i, bool c, double[2,2] a, double[2,2] b) => "
           "(bool co, double[2,2] ao, double[2,2] bo) { co = Identity(c) ao = MatMul(a, b) bo = Add(ao, b) }>")
case("Loop", "zero_trips", [const(0), const(True, bool), x(3)], lambda n, c, s: s * 1,
     nodes="y0 = Loop (c0, c1, x2) <body = b (int64 i, bool c, double[3] s) => (bool co, double[3] so) "
           "{ co = Identity(c) so = Exp(s) }>")


def two_carried(a, b):
    for _ in range(2):
        a = a @ b
        b = a + b
    return a, b


# ---- Scan -------------------------------------------------------------------------------------------------
def scan(s, xs, w):
    out = []
    for t in xs:
        s = torch.sigmoid(s @ w + t)
        out.append(s * 2)
    return s, torch.stack(out)


BODY = ("body = b (double[2] s, double[2] t) => (double[2] so, double[2] o) { m = MatMul(s, x2) a = Add(m, t) "
        "so = Sigmoid(a) o = Add(so, so) }")
case("Scan", "forward", [x(2), x(3, 2), x(2, 2)], scan, nodes=f"y0, y1 = Scan (x0, x1) <num_scan_inputs = 1, {BODY}>")
case("Scan", "reverse", [x(2), x(3, 2), x(2, 2)],
     lambda s, t, w: (lambda r: (r[0], r[1].flip(0)))(scan(s, t.flip(0), w)),
     nodes=f"y0, y1 = Scan (x0, x1) <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], {BODY}>",
     ref="scans forwards along axis 0 only")
case("Scan", "axes", [x(2), x(2, 3), x(2, 2)],
     lambda s, t, w: (lambda r: (r[0], r[1].T.contiguous()))(scan(s, t.T, w)),
     nodes=f"y0, y1 = Scan (x0, x1) <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], {BODY}>",
     ref="scans forwards along axis 0 only")

# ---- sequences and optionals that are known -----------------------------------------------------------------
case("SplitToSequence", "at", [x(4, 3), const(2), const(1)], lambda t, *_: t[2:4] * 1,
     nodes="s = SplitToSequence<axis = 0>(x0, c1) y0 = SequenceAt(s, c2)")
case("SequenceAt", "negative", [x(2, 3), x(3), const(-1)], lambda a, b, _: b * 2,
     nodes="s = SequenceConstruct(x0, x1) a = SequenceAt(s, c2) y0 = Add(a, a)")
case("SequenceConstruct", "concat", [x(2, 3), x(1, 3)], lambda a, b: torch.cat([a, b, a], 0),
     nodes="s = SequenceConstruct(x0, x1, x0) y0 = ConcatFromSequence<axis = 0>(s)")
case("ConcatFromSequence", "new_axis", [x(2, 3), x(2, 3)], lambda a, b: torch.stack([a, b], 1),
     nodes="s = SequenceConstruct(x0, x1) y0 = ConcatFromSequence<axis = 1, new_axis = 1>(s)")
case("SequenceInsert", "end", [x(2), x(3)], lambda a, b: torch.cat([a, b]),
     nodes="s = SequenceConstruct(x0) t = SequenceInsert(s, x1) y0 = ConcatFromSequence<axis = 0>(t)")
case("SequenceInsert", "front", [x(2), x(3), const(0)], lambda a, b, _: torch.cat([b, a]),
     nodes="s = SequenceConstruct(x0) t = SequenceInsert(s, x1, c2) y0 = ConcatFromSequence<axis = 0>(t)")
case("SequenceErase", "middle", [x(2), x(3), x(1), const(1)], lambda a, b, c, _: torch.cat([a, c]),
     nodes="s = SequenceConstruct(x0, x1, x2) t = SequenceErase(s, c3) y0 = ConcatFromSequence<axis = 0>(t)")
case("SequenceEmpty", "filled", [x(2)], lambda a: torch.cat([a, a]), ref=True,
     nodes="e = SequenceEmpty<dtype = 11>() s = SequenceInsert(e, x0) t = SequenceInsert(s, x0) "
           "y0 = ConcatFromSequence<axis = 0>(t)")
case("SequenceLength", "scaled", [x(2), x(2)], lambda a, b: a * 2,
     nodes="s = SequenceConstruct(x0, x1) n = SequenceLength(s) f = Cast<to = 11>(n) y0 = Mul(x0, f)")
case("SequenceMap", "squares", [x(2), x(2)], lambda a, b: torch.cat([a * a, b * b]),
     nodes="s = SequenceConstruct(x0, x1) t = SequenceMap (s) <body = b (double[2] e) => (double[2] o) { o = Mul(e, e) }> "
           "y0 = ConcatFromSequence<axis = 0>(t)")
case("Optional", "get", [x(2, 3)], lambda a: a * a, ref="knows sequences only",
     nodes="o = Optional(x0) g = OptionalGetElement(o) y0 = Mul(g, x0)")
case("OptionalGetElement", "tensor", [x(2, 3)], lambda a: a * 2, opset=18,
     nodes="g = OptionalGetElement(x0) y0 = Add(g, x0)")
case("OptionalHasElement", "scaled", [x(2, 3)], lambda a: a * 1, opset=18,
     nodes="h = OptionalHasElement(x0) f = Cast<to = 11>(h) y0 = Mul(x0, f)")


# ---- quantisation: round passes the gradient, saturation stops it; the scale learns (LSQ) --------------------
def fake_quantize(t, s, z, low, high, axis=None):
    if axis is not None:
        shape = [1] * t.dim()
        shape[axis] = -1
        s, z = s.reshape(shape), z.reshape(shape)
    z = z.to(torch.float64)
    r = t / s
    r = r + (torch.round(r) - r).detach()
    return (torch.clamp(r + z, low, high) - z) * s


QDQ = "q = QuantizeLinear{0}(x0, x1, c2) y0 = DequantizeLinear{0}(q, x1, c2)"
REF_Q = "has no fp64 form"
case("QuantizeLinear", "int8", [x(3, 4, lo=-4, hi=4), v(0.02734375), const(3, np.int8)],
     lambda t, s, z: fake_quantize(t, s, z, -128, 127), nodes=QDQ.format(""), ref=REF_Q)
case("QuantizeLinear", "uint8", [x(3, 4, lo=-4, hi=4), v(0.02734375), const(100, np.uint8)],
     lambda t, s, z: fake_quantize(t, s, z, 0, 255), nodes=QDQ.format(""), ref=REF_Q)
case("QuantizeLinear", "per_axis", [x(2, 3, 2, lo=-4, hi=4), v([0.015625, 0.03125, 0.02]), const([0, 5, -7], np.int8)],
     lambda t, s, z: fake_quantize(t, s, z, -128, 127, 1), nodes=QDQ.format("<axis = 1>"), ref=REF_Q)
case("DequantizeLinear", "scale", [data([[-3, 5], [127, -128]], np.int8), v(0.25), const(2, np.int8)],
     lambda q, s, z: (q.to(torch.float64) - 2) * s, ref=REF_Q)
case("DequantizeLinear", "per_axis", [data([[3, 5], [255, 0]], np.uint8), v([0.25, 0.5]), const([2, 128], np.uint8)],
     lambda q, s, z: (q.to(torch.float64) - z.to(torch.float64)[:, None]) * s[:, None], axis=0, ref=REF_Q)
