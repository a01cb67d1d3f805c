"""Normalisations, softmax family, dropout at ratio 0, losses."""
import torch
import torch.nn.functional as F

from make_ops import case, const, data, f32, fixed, v, x

# ---- batch statistics -------------------------------------------------------------------------------
MEAN, VAR = [0.25, -0.5, 1.0], [1.5, 0.75, 2.0]
for form, shape in {"plain": (4, 3), "1d": (2, 3, 5), "2d": (2, 3, 2, 2), "3d": (1, 3, 2, 1, 2)}.items():
    case("BatchNormalization", f"training_{form}", [x(*shape), x(3), x(3), fixed(MEAN), fixed(VAR)],
         lambda t, s, b, m, w: F.batch_norm(t, m.clone(), w.clone(), s, b, True, 0.1, 1e-5), train=True,
         ref="its only output in training mode would need three")
case("BatchNormalization", "training_mode", [x(3, 3, 2), x(3), x(3), fixed(MEAN), fixed(VAR)],
     lambda t, s, b, m, w: F.batch_norm(t, m.clone(), w.clone(), s, b, True, 0.1, 1e-3), train=True,
     nodes="y0, m, w = BatchNormalization<training_mode=1, epsilon=1e-3>(x0, x1, x2, c3, c4)")
case("BatchNormalization", "opset9", [x(3, 3, 2), x(3), x(3), fixed(MEAN), fixed(VAR)],
     lambda t, s, b, m, w: F.batch_norm(t, m.clone(), w.clone(), s, b, True, 0.1, 1e-5), train=True, opset=9,
     ref="trained, not inferred")

for form, shape in {"1d": (2, 3, 4), "2d": (2, 3, 2, 3), "3d": (1, 2, 2, 2, 2)}.items():
    case("InstanceNormalization", form, [x(*shape), x(shape[1]), x(shape[1])],
         lambda t, s, b: F.instance_norm(t, weight=s, bias=b, eps=1e-5))
case("InstanceNormalization", "epsilon", [x(2, 3, 4), x(3), x(3)],
     lambda t, s, b: F.instance_norm(t, weight=s, bias=b, eps=0.25), epsilon=0.25, opset=7)
for groups, channels in ((1, 4), (2, 4), (4, 4)):
    case("GroupNormalization", f"groups{groups}", [x(2, channels, 3), x(channels), x(channels)],
         lambda t, s, b, g=groups: F.group_norm(t, g, s, b, 1e-5), num_groups=groups)
case("GroupNormalization", "image", [x(2, 4, 2, 2), x(4), x(4)], lambda t, s, b: F.group_norm(t, 2, s, b, 0.5),
     num_groups=2, epsilon=0.5)
case("GroupNormalization", "opset18", [x(2, 4, 3), x(2), x(2)],
     lambda t, s, b: F.group_norm(t, 2, s.repeat_interleave(2), b.repeat_interleave(2), 1e-5), opset=18,
     num_groups=2, ref="has no form of opset 18")
for form, axis, shape in (("last", -1, (2, 3, 4)), ("from1", 1, (2, 3, 4)), ("from_minus2", -2, (2, 3, 4)),
                          ("all", 0, (3, 2))):
    tail = shape[axis:] if axis < 0 else shape[axis:]
    case("LayerNormalization", form, [x(*shape), x(*tail), x(*tail)],
         lambda t, s, b, tail=tail: F.layer_norm(t, tail, s, b, 1e-5), axis=axis)
    case("RMSNormalization", form, [x(*shape), x(*tail)],
         lambda t, s, tail=tail: F.rms_norm(t, tail, s, 1e-5), axis=axis)
case("LayerNormalization", "no_bias", [x(2, 5), x(5)], lambda t, s: F.layer_norm(t, (5,), s, None, 1e-5))
case("LayerNormalization", "epsilon", [x(2, 5), x(5), x(5)], lambda t, s, b: F.layer_norm(t, (5,), s, b, 0.5),
     epsilon=0.5)


def layer_norm_statistics(t, s, b):
    mean = t.mean(-1, keepdim=True)
    inv = torch.rsqrt(((t - mean) ** 2).mean(-1, keepdim=True) + 1e-5)
    return (t - mean) * inv * s + b, mean, inv


case("LayerNormalization", "three_outputs", [x(2, 5), x(5), x(5)], layer_norm_statistics, outputs=3)
case("RMSNormalization", "epsilon", [x(2, 5), x(5)], lambda t, s: F.rms_norm(t, (5,), s, 0.5), epsilon=0.5)


def lp(t, p, axis):
    n = torch.linalg.vector_norm(t, p, dim=axis, keepdim=True)
    return t / torch.where(n == 0, torch.ones_like(n), n)


REF_LP = "sums without taking absolute values"
for p in (1, 2):
    case("LpNormalization", f"p{p}", [x(3, 4)], lambda t, p=p: lp(t, p, -1), p=p, ref=REF_LP if p == 1 else True)
    case("LpNormalization", f"p{p}_axis0", [x(3, 2, 2)], lambda t, p=p: lp(t, p, 0), p=p, axis=0,
         ref=REF_LP if p == 1 else True)
case("MeanVarianceNormalization", "plain", [x(2, 3, 2, 2)],
     lambda t: (t - t.mean((0, 2, 3), keepdim=True)) / (torch.sqrt(t.var((0, 2, 3), unbiased=False, keepdim=True))
                                                       + 1e-9), ref="mixes f32 constants into f64")
case("MeanVarianceNormalization", "axes", [x(3, 4)],
     lambda t: (t - t.mean(1, keepdim=True)) / (t.std(1, unbiased=False, keepdim=True) + 1e-9), axes=[1],
     ref="mixes f32 constants into f64")
case("LRN", "odd", [x(2, 5, 3)], lambda t: F.local_response_norm(t, 3, 0.5, 0.75, 2.0), size=3, alpha=0.5, beta=0.75,
     bias=2.0, ref="reads four axes only")
case("LRN", "image", [x(1, 6, 2, 2)], lambda t: F.local_response_norm(t, 5, 0.25, 0.5, 1.0), size=5, alpha=0.25,
     beta=0.5, ref="counts batches instead of channels")


def lrn(t, size, alpha, beta, bias):
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = F.pad((t * t).unsqueeze(1), (0, 0) * (t.dim() - 2) + (before, after))
    total = sum(square[:, 0, i:i + t.shape[1]] for i in range(size))
    return t / (bias + alpha / size * total) ** beta


case("LRN", "even", [x(1, 5, 2, 2)], lambda t: lrn(t, 4, 0.5, 0.75, 1.0), size=4, alpha=0.5, beta=0.75,
     ref="counts batches instead of channels")

# ---- softmax family ---------------------------------------------------------------------------------
for op, fn in (("Softmax", F.softmax), ("LogSoftmax", F.log_softmax)):
    case(op, "default", [x(3, 4)], lambda t, fn=fn: fn(t, -1))
    case(op, "axis0", [x(3, 4)], lambda t, fn=fn: fn(t, 0), axis=0)
    case(op, "middle", [x(2, 3, 4)], lambda t, fn=fn: fn(t, 1), axis=1)
    case(op, "size_one", [x(3, 1)], lambda t, fn=fn: fn(t, -1))
    case(op, "far", [v([[900.0, -900, 0], [-900, -900.5, -901]])], lambda t, fn=fn: fn(t, -1),
         ref=True if op == "Softmax" else "takes the logarithm of 0")
    case(op, "opset11", [x(2, 3, 4)], lambda t, fn=fn: fn(t.reshape(2, 12), 1).reshape(2, 3, 4), opset=11,
         ref="computes the form of opset 13")
    case(op, "opset11_axis2", [x(2, 3, 4)], lambda t, fn=fn: fn(t, 2), opset=11, axis=2)
    case(op, "opset11_axis0", [x(2, 3)], lambda t, fn=fn: fn(t.reshape(6), 0).reshape(2, 3), opset=11, axis=0,
         ref="computes the form of opset 13")
case("Softmax", "masked", [v([[1.0, -1e30, 2], [0.5, -1e30, -1e30]])], lambda t: F.softmax(t, -1))

# ---- dropout: ratio 0 is exact ----------------------------------------------------------------------
case("Dropout", "ratio0", [x(2, 3), fixed(0.0), const(True, bool)], lambda t, r, m: t * 1)
case("Dropout", "ratio0_mask", [x(2, 3), fixed(0.0), const(True, bool)],
     lambda t, r, m: (t * 1, torch.ones(2, 3, dtype=torch.bool)), outputs=2)
case("Dropout", "opset7", [x(2, 3)], lambda t: t * 1, opset=7, ratio=0.0)

# ---- losses -------------------------------------------------------------------------------------------
for red in ("mean", "sum", "none"):
    case("NegativeLogLikelihoodLoss", red, [x(3, 4), data([1, 0, 3])],
         lambda t, y, r=red: F.nll_loss(t, y, reduction=r), reduction=red)
    case("NegativeLogLikelihoodLoss", f"weights_{red}", [x(3, 4), data([1, 0, 3]), fixed([0.5, 1, 2, 0.25])],
         lambda t, y, w, r=red: F.nll_loss(t, y, w, reduction=r), reduction=red)
    case("NegativeLogLikelihoodLoss", f"ignore_{red}", [x(2, 3, 2), data([[1, 0], [2, 1]]), fixed([0.5, 1, 2])],
         lambda t, y, w, r=red: F.nll_loss(t, y, w, reduction=r, ignore_index=1), reduction=red, ignore_index=1)
    case("SoftmaxCrossEntropyLoss", red, [x(3, 4), data([1, 0, 3])],
         lambda t, y, r=red: F.cross_entropy(t, y, reduction=r), reduction=red)
    case("SoftmaxCrossEntropyLoss", f"weights_{red}", [x(3, 4), data([1, 0, 3]), fixed([0.5, 1, 2, 0.25])],
         lambda t, y, w, r=red: F.cross_entropy(t, y, w, reduction=r), reduction=red)
    case("SoftmaxCrossEntropyLoss", f"ignore_{red}",
         [x(2, 3, 2, 2), data([[[1, 0], [2, 1]], [[-1, 0], [-1, 2]]]), fixed([0.5, 1, 2])],
         lambda t, y, w, r=red: F.cross_entropy(t, y, w, reduction=r, ignore_index=-1), reduction=red,
         ignore_index=-1)
case("SoftmaxCrossEntropyLoss", "log_prob", [x(3, 4), data([1, 0, 3])],
     lambda t, y: (F.cross_entropy(t, y), F.log_softmax(t, 1)), outputs=2)
case("SoftmaxCrossEntropyLoss", "log_prob_none", [x(2, 4, 3), data([[1, 0, 3], [2, 2, 0]])],
     lambda t, y: (F.cross_entropy(t, y, reduction="none"), F.log_softmax(t, 1)), outputs=2, reduction="none")
case("SoftmaxCrossEntropyLoss", "int32", [x(3, 4), data([1, 0, 3], "int32")],
     lambda t, y: F.cross_entropy(t, y.long()))
