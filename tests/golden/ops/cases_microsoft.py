"""Operators of the domain com.microsoft that optimised exports contain (formulas of ONNX Runtime's
ContribOperators.md; onnx's reference evaluator does not know them)."""
import math

import numpy as np
import torch
import torch.nn.functional as F

from cases_attention import attention, heads, merge, rotate
from make_ops import case, const, data, f32, fixed, v, x

MS = "com.microsoft"


def ms(op, form, inputs, fn, **kw):
    case(op, form, inputs, fn, domain=MS, **kw)


ms("Gelu", "plain", [x(2, 3)], F.gelu)
ms("BiasGelu", "plain", [x(2, 3), x(3)], lambda t, b: F.gelu(t + b))
ms("FastGelu", "plain", [x(2, 3)], lambda t: F.gelu(t, approximate="tanh"))
ms("FastGelu", "bias", [x(2, 3), x(3)], lambda t, b: F.gelu(t + b, approximate="tanh"))
ms("QuickGelu", "alpha", [x(2, 3)], lambda t: t * torch.sigmoid(1.5 * t), alpha=1.5)
ln = lambda t, s, b: F.layer_norm(t, (t.shape[-1],), s, b, f32(1e-3))
rms = lambda t, s: F.rms_norm(t, (t.shape[-1],), s, f32(1e-3))
ms("SkipLayerNormalization", "plain", [x(1, 2, 4), x(1, 2, 4), x(4), x(4)], lambda t, k, s, b: ln(t + k, s, b),
   epsilon=1e-3)
ms("SkipLayerNormalization", "bias", [x(2, 2, 4), x(2, 2, 4), x(4), x(4), x(4)],
   lambda t, k, s, b, c: ln(t + k + c, s, b), epsilon=1e-3)
ms("SkipLayerNormalization", "sum_output", [x(1, 2, 4), x(1, 2, 4), x(4)],
   lambda t, k, s: (ln(t + k, s, None), None, None, t + k), epsilon=1e-3)
ms("SkipSimplifiedLayerNormalization", "plain", [x(1, 2, 4), x(1, 2, 4), x(4)], lambda t, k, s: rms(t + k, s),
   epsilon=1e-3)
ms("SkipSimplifiedLayerNormalization", "bias_sum", [x(1, 2, 4), x(1, 2, 4), x(4), x(4)],
   lambda t, k, s, b: (rms(t + k + b, s), None, None, t + k + b), epsilon=1e-3)
ms("LayerNormalization", "plain", [x(2, 3, 4), x(4), x(4)], ln, epsilon=1e-3)
ms("SimplifiedLayerNormalization", "plain", [x(2, 3, 4), x(4)], rms, epsilon=1e-3)
ms("DequantizeLinear", "scale", [data([[-3, 5], [127, -128]], np.int8), v(0.25), const(2, np.int8)],
   lambda q, s, z: (q.to(torch.float64) - 2) * s)
ms("EmbedLayerNormalization", "plain",
   [data([[1, 0, 3]], "int32"), data([[0, 1, 1]], "int32"), x(4, 2), x(5, 2), x(2, 2), x(2), x(2)],
   lambda i, g, w, p, s, a, b: ln(w[i.long()] + p[:3] + s[g.long()], a, b), epsilon=1e-3,
   nodes="y0, m = com.microsoft.EmbedLayerNormalization<epsilon = 1e-3>(i0, i1, x2, x3, x4, x5, x6)")
ms("FusedMatMul", "alpha", [x(2, 3), x(3, 2)], lambda a, b: 0.5 * (a @ b), alpha=0.5)
ms("FusedMatMul", "transposes", [x(2, 3, 2), x(2, 4, 3)],
   lambda a, b: a.transpose(-1, -2) @ b.transpose(-1, -2), transA=1, transB=1)
ms("FusedGemm", "relu", [x(2, 3), x(4, 3), x(4)], lambda a, b, c: F.relu(a @ b.T + c), transB=1, activation="Relu")
ms("FusedConv", "relu", [x(1, 2, 3, 3), x(2, 2, 2, 2), x(2)], lambda t, w, b: F.relu(F.conv2d(t, w, b)),
   activation="Relu", kernel_shape=[2, 2])
ms("FusedConv", "add", [x(1, 1, 3, 3), x(2, 1, 2, 2), x(2), x(1, 2, 2, 2)],
   lambda t, w, b, z: F.relu(F.conv2d(t, w, b) + z), activation="Relu", kernel_shape=[2, 2])
ms("NhwcConv", "strides_pads", [x(1, 4, 3, 2), x(3, 2, 2, 2), x(3)],
   lambda t, w, b: F.conv2d(F.pad(t.permute(0, 3, 1, 2), (0, 1, 1, 0)), w, b, (2, 1)).permute(0, 2, 3, 1).contiguous(),
   kernel_shape=[2, 2], strides=[2, 1], pads=[1, 0, 0, 1])
ms("BiasSoftmax", "plain", [x(2, 3, 4), x(1, 3, 4)], lambda t, b: F.softmax(t + b, -1), axis=-1,
   is_inner_broadcast=0)
ms("BiasDropout", "ratio0", [x(2, 3), x(3), x(2, 3), fixed(0.0), const(True, bool)],
   lambda t, b, r, *_: t + b + r)
ms("MultiHeadAttention", "plain", [x(1, 3, 4), x(1, 3, 4), x(1, 3, 4)],
   lambda q, k, w: merge(attention(heads(q, 2), heads(k, 2), heads(w, 2))), num_heads=2)
ms("MultiHeadAttention", "bias", [x(2, 2, 4), x(2, 3, 4), x(2, 3, 4), x(12)],
   lambda q, k, w, b: merge(attention(heads(q + b[:4], 2), heads(k + b[4:8], 2), heads(w + b[8:], 2))), num_heads=2)
ms("Attention", "packed", [x(1, 3, 4), x(4, 12), x(12)],
   lambda t, w, b: merge(attention(*[heads(p, 2) for p in (t @ w + b).chunk(3, -1)])), num_heads=2)
ms("RotaryEmbedding", "plain", [x(1, 2, 3, 4), data([[0, 2, 3]]), x(4, 2), x(4, 2)],
   lambda t, p, c, s: rotate(t, c[p], s[p], 0))
ms("RotaryEmbedding", "packed_interleaved", [x(1, 3, 8), data([1]), x(4, 2), x(4, 2)],
   lambda t, p, c, s: merge(rotate(heads(t, 2), c[None, 1:4], s[None, 1:4], 1)), num_heads=2, interleaved=1,
   rotary_embedding_dim=4)
CODES = np.random.RandomState(9).randint(0, 256, (3, 2, 8)).astype(np.uint8)
SCALES = np.random.RandomState(10).uniform(0.1, 0.5, 6).round(3)


def matmul_nbits(t):
    low, high = CODES & 15, CODES >> 4
    q = np.stack([low, high], -1).reshape(3, 2, 16).astype(np.float64) - 8
    w = (q * SCALES.reshape(3, 2, 1)).reshape(3, 32)
    return t @ torch.from_numpy(w).T


ms("MatMulNBits", "input", [x(2, 32), const(CODES, np.uint8), fixed(SCALES)], lambda t, *_: matmul_nbits(t), K=32, N=3,
   bits=4, block_size=16)
