"""Elementwise operators: unary, binary with broadcasting, n-ary, selection and casts."""
import torch
import torch.nn.functional as F

from make_ops import case, const, data, f32, fixed, v, x

NAN, INF = float("nan"), float("inf")


def unary(op, fn, lo=-2, hi=2, edge=None, **attrs):
    case(op, "plain", [x(2, 3, lo=lo, hi=hi)], fn, **attrs)
    case(op, "scalar", [x(lo=lo, hi=hi)], fn, **attrs)
    if edge is not None:
        case(op, "edge", [v(edge)], fn, **attrs)


unary("Abs", torch.abs, edge=[-2, 0, 3])
unary("Acos", torch.acos, -0.9, 0.9)
unary("Acosh", torch.acosh, 1.1, 3)
unary("Asin", torch.asin, -0.9, 0.9)
unary("Asinh", torch.asinh)
unary("Atan", torch.atan)
unary("Atanh", torch.atanh, -0.9, 0.9)
unary("Ceil", torch.ceil)
unary("Cos", torch.cos)
unary("Cosh", torch.cosh)
unary("Erf", torch.erf)
unary("Exp", torch.exp)
unary("Floor", torch.floor)
unary("HardSwish", F.hardswish, -5, 5, edge=[-4, -3, 0, 3, 4])
unary("Identity", lambda t: t * 1)
unary("Log", torch.log, 0.1, 3)
unary("Mish", F.mish)
unary("Neg", torch.neg)
unary("Reciprocal", torch.reciprocal, 0.5, 3)
unary("Relu", F.relu, edge=[-2, 0, 3])
unary("Round", torch.round, edge=[-1.5, -0.5, 0.5, 1.5, 2.5])
unary("Sigmoid", torch.sigmoid, edge=[-800, -30, 0, 30, 800])
unary("Sign", torch.sign, edge=[-2, 0, 3])
unary("Sin", torch.sin)
unary("Sinh", torch.sinh)
unary("Softplus", F.softplus, edge=[-900, 0, 15])
case("Softsign", "plain", [x(2, 3)], F.softsign)
case("Softsign", "edge", [v([-2.0, 0, 3])], F.softsign)
unary("Sqrt", torch.sqrt, 0.1, 3, edge=[0, 4])
unary("Tan", torch.tan, -1.2, 1.2)
unary("Tanh", torch.tanh, edge=[-400, 0, 400])

# With attributes: the defaults, other values, and the kink.
unary("Celu", F.celu, edge=[-1, 0, 2])
case("Celu", "alpha", [x(3, 4)], lambda t: F.celu(t, 0.5), alpha=0.5)
case("Celu", "negative_slope_region", [v([-3.0, -0.25, 0.5])], lambda t: F.celu(t, 2.5), alpha=2.5)
unary("Elu", F.elu, edge=[-1, 0, 2])
case("Elu", "alpha", [x(3, 4)], lambda t: F.elu(t, 1.5), alpha=1.5)
case("Elu", "alpha_edge", [v([-1.0, 0, 2])], lambda t: F.elu(t, 0.5), alpha=0.5)
unary("Gelu", F.gelu)
case("Gelu", "tanh", [x(2, 5)], lambda t: F.gelu(t, approximate="tanh"), approximate="tanh")
case("Gelu", "far", [v([-40.0, -8, 0, 8, 40])], F.gelu)
case("HardSigmoid", "plain", [x(3, 4, lo=-4, hi=4)], lambda t: F.relu(1 - F.relu(1 - (0.25 * t + 0.5))),
     alpha=0.25, beta=0.5)
case("HardSigmoid", "default", [x(3, 4, lo=-4, hi=4)], lambda t: torch.clamp(f32(0.2) * t + 0.5, 0, 1),
     alpha=0.2)
case("HardSigmoid", "torch", [v([-4.0, -1, 0, 2, 4])], lambda t: torch.clamp(t * f32(1 / 6) + 0.5, 0, 1),
     alpha=1 / 6)
unary("LeakyRelu", F.leaky_relu, edge=[-1, 0, 2])
case("LeakyRelu", "alpha", [x(3, 4)], lambda t: F.leaky_relu(t, 0.25), alpha=0.25)
SELU_A, SELU_G = 1.67326319217681884765625, 1.05070102214813232421875
selu = lambda t, a=SELU_A, g=SELU_G: g * torch.where(t > 0, t, a * torch.expm1(t))
unary("Selu", selu)
case("Selu", "alpha_gamma", [x(3, 4)], lambda t: selu(t, 1.5, 0.75), alpha=1.5, gamma=0.75)
unary("Shrink", lambda t: F.hardshrink(t, 0.5), edge=[-0.5, 0, 0.5, 2])
case("Shrink", "soft", [x(3, 4)], lambda t: F.softshrink(t, 0.75), lambd=0.75, bias=0.75)
case("Shrink", "other_bias", [x(3, 4)],
     lambda t: torch.where(t < -0.5, t + 0.25, torch.where(t > 0.5, t - 0.25, t * 0)), lambd=0.5, bias=0.25)
case("Swish", "plain", [x(3, 4)], F.silu)
case("Swish", "alpha", [x(3, 4)], lambda t: t * torch.sigmoid(1.5 * t), alpha=1.5)
unary("ThresholdedRelu", lambda t: F.threshold(t, 1.0, 0.0), edge=[-1, 1, 2])
case("ThresholdedRelu", "alpha", [x(3, 4)], lambda t: F.threshold(t, 0.5, 0.0), alpha=0.5)
case("IsNaN", "plain", [v([0, NAN, INF])], torch.isnan)
case("IsInf", "plain", [v([0, NAN, INF, -INF])], torch.isinf)
case("IsInf", "positive", [v([0, NAN, INF, -INF])], torch.isposinf, detect_negative=0)

SHAPES = {"same": [(2, 3), (2, 3)], "row": [(2, 3), (3,)], "column": [(2, 3), (2, 1)], "both": [(4, 1), (1, 3)],
          "scalar": [(2, 3), ()], "left": [(3,), (2, 1, 3)], "empty": [(0, 3), (1, 3)]}
for form, (a, b) in SHAPES.items():
    case("Add", form, [x(*a), x(*b)], torch.add)
    case("Sub", form, [x(*a), x(*b)], torch.sub)
    case("Mul", form, [x(*a), x(*b)], torch.mul)
    case("Div", form, [x(*a), x(*b, lo=0.5, hi=2)], torch.div)
    case("Pow", form, [x(*a, lo=0.25, hi=2), x(*b)], torch.pow)
    case("Max", form, [x(*a), x(*b)], torch.maximum)
    case("Min", form, [x(*a), x(*b)], torch.minimum)
    case("Sum", form, [x(*a), x(*b)], torch.add)
    case("Mean", form, [x(*a), x(*b)], lambda p, q: (p + q) / 2,
         ref="adds in place" if form in ("both", "left") else True)
case("Add", "opset7", [x(2, 3), x(3)], torch.add, opset=7)
case("Div", "opset7", [x(2, 3), x(2, 1, lo=0.5, hi=2)], torch.div, opset=7)
case("Pow", "opset7", [x(2, 3, lo=0.5, hi=2), x(3)], torch.pow, opset=7)
case("Pow", "negative_base", [v([-2.0, -3, 2]), fixed([2.0, 3, -1])], torch.pow)
case("Pow", "zero_base", [v([0.0, 0, 0, 2]), v([0.0, 1, 2, 3])], torch.pow)
case("Pow", "integer_exponent", [x(2, 3), const([3, 2, 1])], lambda a, e: torch.pow(a, e))
case("Max", "ties", [v([1.0, 2, 5]), v([1.0, 3, 4])], torch.maximum)
case("Min", "ties", [v([1.0, 2, 5]), v([1.0, 3, 4])], torch.minimum)
case("Max", "one", [x(2, 3)], lambda a: a * 1)
case("Min", "three", [x(2, 3), x(3), x(2, 1)], lambda a, b, c: torch.minimum(torch.minimum(a, b), c))
case("Max", "three", [x(2, 3), x(3), x(2, 1)], lambda a, b, c: torch.maximum(torch.maximum(a, b), c))
case("Sum", "three", [x(2, 3), x(3), x(2, 1)], lambda a, b, c: a + b + c)
case("Mean", "three", [x(2, 3), x(3), x(2, 1)], lambda a, b, c: (a + b + c) / 3)
case("Mean", "opset8", [x(2, 3), x(3)], lambda a, b: (a + b) / 2, opset=8)
case("Add", "itself", [x(2, 3)], lambda a: a + a, nodes="y0 = Add(x0, x0)")
case("Mul", "itself", [x(2, 3)], lambda a: a * a, nodes="y0 = Mul(x0, x0)")
case("Mod", "fmod", [x(2, 3, lo=-5, hi=5), x(3, lo=0.5, hi=2)], torch.fmod, fmod=1)
case("Mod", "fmod_negative", [x(2, 3, lo=-5, hi=5), x(2, 1, lo=-2, hi=-0.5)], torch.fmod, fmod=1)

prelu = lambda t, s: torch.where(t > 0, t, t * s)
case("PRelu", "one_slope", [x(2, 3, 4), x(1)], lambda t, s: F.prelu(t, s))
case("PRelu", "per_channel", [x(2, 3, 4), x(3, 1)], lambda t, s: F.prelu(t, s.reshape(3)))
case("PRelu", "full", [x(2, 3), x(2, 3)], prelu)
case("PRelu", "edge", [v([-1.0, 0, 2]), v([0.25])], lambda t, s: F.prelu(t, s))
case("PRelu", "opset7", [x(2, 3), x(3)], prelu, opset=7)

T, O = True, False
case("Where", "same", [data([[T, O, T], [O, O, T]], bool), x(2, 3), x(2, 3)], torch.where)
case("Where", "broadcast", [data([[T], [O]], bool), x(3), x(2, 3)], torch.where)
case("Where", "scalars", [data([[T, O], [O, T]], bool), x(), x()], torch.where)
case("Where", "opset9", [data([T, O], bool), x(2, 2), x(2)], torch.where, opset=9)

case("Clip", "both", [x(3, 4), v(-1.0), v(1.0)], lambda t, a, b: torch.clamp(t, a, b))
case("Clip", "min", [x(3, 4), v(-0.5)], lambda t, a: torch.clamp(t, min=a))
case("Clip", "max", [x(3, 4), None, v(0.5)], lambda t, a, b: torch.clamp(t, max=b))
case("Clip", "none", [x(3, 4)], lambda t: t * 1)
case("Clip", "bounds", [v([-2.0, -1, 0, 1, 2]), v(-1.0), v(1.0)], lambda t, a, b: torch.clamp(t, a, b))
case("Clip", "number_bounds", [v([-2.0, -1, 0, 1, 2]), fixed(-1.0), fixed(1.0)], lambda t, a, b: torch.clamp(t, -1, 1))
case("Clip", "relu6", [v([-2.0, 0, 1, 6, 7]), fixed(0.0), fixed(6.0)], lambda t, a, b: F.relu6(t))
case("Clip", "equal_bounds", [v([0.0, 1, 2]), v(1.0), v(1.0)], lambda t, a, b: torch.clamp(t, a, b))
case("Clip", "min_tie", [v([0.0, 1, 2]), v(1.0)], lambda t, a: torch.clamp(t, min=a))
case("Clip", "crossed", [v([-2.0, 0, 2]), v(1.0), v(-1.0)], lambda t, a, b: torch.clamp(t, a, b))
case("Clip", "opset7", [x(3, 4)], lambda t: torch.clamp(t, -1, 0.5), opset=7, min=-1.0, max=0.5)
case("Clip", "opset11", [x(3, 4), fixed(-1.0), fixed(0.5)], lambda t, a, b: torch.clamp(t, -1, 0.5), opset=11)
case("Clip", "opset6_default", [x(3, 4)], lambda t: t * 1, opset=7)

# Casts: through float32 the gradient passes, through integers it stops.
case("Cast", "double", [x(2, 3)], lambda t: t * 1, to=11)
case("Cast", "there_and_back", [x(2, 3)], lambda t: t * 1, ref="formulas are fp64",
     nodes="a = Cast<to=11>(x0) y0 = Cast<to=11>(a)")
case("Cast", "integer_stops", [x(2, 3)], lambda t: t.to(torch.int64).to(torch.float64) + t,
     nodes="a = Cast<to=7>(x0) b = Cast<to=11>(a) y0 = Add(b, x0)")
case("Cast", "bool_stops", [v([0.0, 1, -2])], lambda t: (t != 0).to(torch.float64) * t,
     nodes="a = Cast<to=9>(x0) b = Cast<to=11>(a) y0 = Mul(b, x0)")
case("CastLike", "plain", [x(2, 3), x(2)], lambda t, s: t * 1)

case("Equal", "plain", [v([1.0, 2, 3]), v([1.0, 3, 3])], torch.eq)
case("Less", "plain", [x(2, 3), x(3)], torch.lt)
case("LessOrEqual", "plain", [x(2, 3), x(3)], torch.le)
case("Greater", "plain", [x(2, 3), x(3)], torch.gt)
case("GreaterOrEqual", "plain", [x(2, 3), x(3)], torch.ge)
case("Not", "mask", [x(2, 3)], lambda t: torch.where(~(t > 0), t, t * 2),
     nodes="z = Constant<value = double {0.0}>() two = Constant<value = double {2.0}>() m = Greater(x0, z) n = Not(m) "
           "d = Mul(x0, two) y0 = Where(n, x0, d)")
for op, fn in {"And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor}.items():
    case(op, "mask", [x(2, 3), x(3)], lambda a, b, fn=fn: torch.where(fn(a > 0, b > 0), a, b),
         nodes=f"z = Constant<value = double {{0.0}}>() m = Greater(x0, z) n = Greater(x1, z) k = {op}(m, n) "
               "y0 = Where(k, x0, x1)")
