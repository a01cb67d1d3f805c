"""Reductions in every form of axes, running sums and products, arg-reductions."""
import torch

from make_ops import case, const, data, v, x


def l1(t, d, k): return t.abs().sum(d, keepdim=k)
def l2(t, d, k): return torch.linalg.vector_norm(t, 2, dim=d, keepdim=k)
def prod(t, d, k):
    for a in sorted([a % t.dim() for a in d], reverse=True):
        t = t.prod(a, keepdim=k)
    return t


REDUCE = {
    "ReduceSum": (lambda t, d, k: t.sum(d, keepdim=k), -2),
    "ReduceMean": (lambda t, d, k: t.mean(d, keepdim=k), -2),
    "ReduceMax": (lambda t, d, k: t.amax(d, keepdim=k), -2),
    "ReduceMin": (lambda t, d, k: t.amin(d, keepdim=k), -2),
    "ReduceProd": (prod, -2),
    "ReduceL1": (l1, -2),
    "ReduceL2": (l2, -2),
    "ReduceLogSum": (lambda t, d, k: t.sum(d, keepdim=k).log(), 0.25),
    "ReduceLogSumExp": (lambda t, d, k: torch.logsumexp(t, d, keepdim=k), -2),
    "ReduceSumSquare": (lambda t, d, k: (t * t).sum(d, keepdim=k), -2),
}
for op, (fn, lo) in REDUCE.items():
    t = lambda: x(2, 3, 4, lo=lo)
    full = [0, 1, 2]
    case(op, "axes_input", [t(), const([1])], lambda a, _, fn=fn: fn(a, [1], True))
    case(op, "no_keepdims", [t(), const([-1, 0])], lambda a, _, fn=fn: fn(a, [0, 2], False), keepdims=0)
    case(op, "no_axes", [t()], lambda a, fn=fn: fn(a, full, True))
    case(op, "no_axes_no_keepdims", [t()], lambda a, fn=fn: fn(a, full, False), keepdims=0)
    case(op, "empty_axes", [t(), const([])], lambda a, _, fn=fn: fn(a, full, True))
    case(op, "attribute", [t()], lambda a, fn=fn: fn(a, [1, 2], False), opset=12 if op != "ReduceSum" else 11,
         axes=[1, 2], keepdims=0)
    case(op, "attribute_negative", [t()], lambda a, fn=fn: fn(a, [1], True), opset=11, axes=[-2])
    case(op, "size_one", [x(1, 1, lo=lo), const([0])], lambda a, _, fn=fn: fn(a, [0], False), keepdims=0)
# noop_with_empty_axes: the elementwise part still happens, the sum does not (onnx's text for opset 18).
NOOP = {"ReduceSum": lambda t: t * 1, "ReduceMean": lambda t: t * 1, "ReduceMax": lambda t: t * 1,
        "ReduceMin": lambda t: t * 1, "ReduceProd": lambda t: t * 1}
for op, fn in NOOP.items():
    case(op, "noop", [x(2, 3), const([])], lambda a, _, fn=fn: fn(a), noop_with_empty_axes=1)

case("ReduceMax", "ties", [v([[1.0, 4, 4], [2, 2, 2]]), const([1])], lambda t, _: t.amax([1], keepdim=True))
case("ReduceMin", "ties", [v([[1.0, 1, 4], [2, 2, 2]]), const([1])], lambda t, _: t.amin([1], keepdim=True))
case("ReduceProd", "one_zero", [v([2.0, 0, 3]), const([0])], lambda t, _: t.prod(0, keepdim=True))
case("ReduceProd", "two_zeros", [v([0.0, 0, 3]), const([0])], lambda t, _: t.prod(0, keepdim=True))
case("ReduceL2", "zero_row", [v([[0.0, 0], [3, 4]]), const([1])], lambda t, _: l2(t, [1], True))
case("ReduceL1", "zeros", [v([[0.0, -1], [3, 0]]), const([1])], lambda t, _: l1(t, [1], True))
case("ReduceLogSumExp", "far", [v([[900.0, 899, -900], [-900, -901, -902]]), const([1])],
     lambda t, _: torch.logsumexp(t, [1], keepdim=True))
case("ReduceSum", "empty", [x(0, 3), const([0])], lambda t, _: t.sum([0], keepdim=True))
case("ReduceSum", "opset13", [x(2, 3), const([1])], lambda t, _: t.sum([1]), opset=13, keepdims=0)


def cumulative(op, torch_fn, neutral):
    def run(t, axis, exclusive, reverse):
        if reverse:
            t = t.flip(axis)
        if exclusive:
            keep = t.narrow(axis, 0, t.shape[axis] - 1)
            first = torch.full_like(t.narrow(axis, 0, 1), neutral)
            t = torch.cat([first, keep], axis)
        t = torch_fn(t, axis)
        return t.flip(axis) if reverse else t
    for e in (0, 1):
        for r in (0, 1):
            case(op, f"exclusive{e}_reverse{r}", [x(3, 4), const(1)],
                 lambda t, _, e=e, r=r: run(t, 1, e, r), exclusive=e, reverse=r)
    case(op, "negative_axis", [x(2, 3, 2), const(-2)], lambda t, _: run(t, 1, 0, 0))


cumulative("CumSum", torch.cumsum, 0.0)
cumulative("CumProd", torch.cumprod, 1.0)
case("CumProd", "zeros", [v([[2.0, 0, 3, 4], [0, 1, 0, 2]]), const(1)], lambda t, _: torch.cumprod(t, 1))

arg = lambda fn, d, k: lambda t: fn(t, dim=d, keepdim=k)
case("ArgMax", "plain", [x(3, 4)], arg(torch.argmax, 1, True), axis=1)
case("ArgMax", "default", [x(3, 4)], arg(torch.argmax, 0, False), keepdims=0)
case("ArgMin", "plain", [x(3, 4)], arg(torch.argmin, 1, True), axis=-1)
case("ArgMax", "last", [v([[1.0, 3, 3], [2, 2, 1]])], lambda t: 2 - torch.argmax(t.flip(1), 1, keepdim=True), axis=1,
     select_last_index=1)
case("Hardmax", "plain", [x(3, 4)], lambda t: torch.nn.functional.one_hot(t.argmax(1), 4).double())
case("Hardmax", "axis0", [x(3, 4)], lambda t: torch.nn.functional.one_hot(t.argmax(0), 3).double().T.contiguous(),
     axis=0)
case("Shape", "scaled", [x(2, 3)], lambda t: t * torch.tensor([2.0, 3.0, 1.0], dtype=torch.float64),
     nodes="s = Shape(x0) one = Constant<value = int64[1] {1}>() c = Concat<axis=0>(s, one) f = Cast<to=11>(c) "
           "y0 = Mul(x0, f)")
case("Size", "scaled", [x(2, 3)], lambda t: t * 6, nodes="s = Size(x0) f = Cast<to=11>(s) y0 = Mul(x0, f)")
case("NonZero", "plain", [v([[1.0, 0, 2], [0, 3, 0]])], lambda t: torch.nonzero(t).T.contiguous(),
     ref=True)
