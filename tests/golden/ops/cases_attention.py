"""Attention with masks, groups and caches; rotary positions; state-space building blocks of opset 27."""
import math

import numpy as np
import torch
import torch.nn.functional as F

from make_ops import case, const, data, f32, fixed, v, x


def attention(q, k, v_, mask=None, causal=False, scale=None, softcap=0.0, past=0):
    """[B, heads, T, D] each; fewer key heads are shared by neighbouring query heads."""
    g = q.shape[1] // k.shape[1]
    k, v_ = k.repeat_interleave(g, 1), v_.repeat_interleave(g, 1)
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        allowed = torch.tril(torch.ones(s.shape[-2:], dtype=torch.bool), past)
        s = s.masked_fill(~allowed, -math.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    return F.softmax(s, -1) @ v_


heads = lambda t, n: t.reshape(t.shape[0], t.shape[1], n, -1).transpose(1, 2)
merge = lambda t: t.transpose(1, 2).reshape(t.shape[0], t.shape[2], -1)
sdpa = F.scaled_dot_product_attention
case("Attention", "plain", [x(1, 2, 3, 4), x(1, 2, 3, 4), x(1, 2, 3, 4)], sdpa)
case("Attention", "causal", [x(2, 1, 3, 2), x(2, 1, 3, 2), x(2, 1, 3, 2)],
     lambda q, k, w: sdpa(q, k, w, is_causal=True), is_causal=1)
case("Attention", "scale", [x(1, 1, 2, 4), x(1, 1, 3, 4), x(1, 1, 3, 2)], lambda q, k, w: sdpa(q, k, w, scale=0.25),
     scale=0.25)
case("Attention", "float_mask", [x(1, 2, 2, 2), x(1, 2, 3, 2), x(1, 2, 3, 2), x(2, 3)],
     lambda q, k, w, m: sdpa(q, k, w, m))
MASK = np.array([[True, False, True], [True, True, False]])
case("Attention", "bool_mask", [x(1, 2, 2, 2), x(1, 2, 3, 2), x(1, 2, 3, 2), data(MASK, bool)],
     lambda q, k, w, m: sdpa(q, k, w, m))
case("Attention", "mask_4d", [x(2, 2, 2, 2), x(2, 2, 3, 2), x(2, 2, 3, 2), x(2, 1, 2, 3)],
     lambda q, k, w, m: sdpa(q, k, w, m))
case("Attention", "groups", [x(1, 4, 2, 2), x(1, 2, 3, 2), x(1, 2, 3, 2)],
     lambda q, k, w: sdpa(q, k, w, enable_gqa=True))
case("Attention", "packed_3d", [x(2, 3, 4), x(2, 3, 4), x(2, 3, 4)],
     lambda q, k, w: merge(sdpa(heads(q, 2), heads(k, 2), heads(w, 2))), q_num_heads=2, kv_num_heads=2)
case("Attention", "packed_groups_causal", [x(1, 3, 8), x(1, 3, 4), x(1, 3, 6)],
     lambda q, k, w: merge(attention(heads(q, 4), heads(k, 2), heads(w, 2), causal=True)), q_num_heads=4, kv_num_heads=2,
     is_causal=1)
# Operators of opset 23 cap the masked scores, opset 24 likewise: softmax(softcap(q k + mask)).
case("Attention", "softcap", [x(1, 1, 3, 4), x(1, 1, 3, 4), x(1, 1, 3, 4)],
     lambda q, k, w: attention(q, k, w, softcap=1.5), softcap=1.5)
case("Attention", "past", [x(1, 2, 2, 2), x(1, 2, 2, 2), x(1, 2, 2, 3), None, x(1, 2, 3, 2), x(1, 2, 3, 3)],
     lambda q, k, w, m, pk, pv: (attention(q, torch.cat([pk, k], 2), torch.cat([pv, w], 2)), torch.cat([pk, k], 2),
                                 torch.cat([pv, w], 2)), outputs=3)
case("Attention", "past_causal", [x(1, 1, 2, 2), x(1, 1, 2, 2), x(1, 1, 2, 2), None, x(1, 1, 2, 2), x(1, 1, 2, 2)],
     lambda q, k, w, m, pk, pv: (attention(q, torch.cat([pk, k], 2), torch.cat([pv, w], 2), causal=True, past=2),
                                 torch.cat([pk, k], 2), torch.cat([pv, w], 2)), outputs=3, is_causal=1)


# ---- rotary ---------------------------------------------------------------------------------------------
def rotate(t, cos, sin, interleaved):
    """t [B, heads, T, D], cos and sin [B, T, D / 2]."""
    cos, sin = cos[:, None], sin[:, None]
    a, b = (t[..., 0::2], t[..., 1::2]) if interleaved else t.chunk(2, -1)
    real, imag = cos * a - sin * b, sin * a + cos * b
    return torch.stack([real, imag], -1).flatten(-2) if interleaved else torch.cat([real, imag], -1)


for inter in (0, 1):
    case("RotaryEmbedding", f"cache_interleaved{inter}", [x(1, 2, 3, 4), x(5, 2), x(5, 2), data([[0, 2, 4]])],
         lambda t, c, s, p, i=inter: rotate(t, c[p], s[p], i), interleaved=inter)
case("RotaryEmbedding", "no_positions", [x(2, 1, 3, 4), x(2, 3, 2), x(2, 3, 2)], lambda t, c, s: rotate(t, c, s, 0))
case("RotaryEmbedding", "packed", [x(2, 3, 8), x(5, 2), x(5, 2), data([[0, 1, 2], [2, 1, 4]])],
     lambda t, c, s, p: merge(rotate(heads(t, 2), c[p], s[p], 0)), num_heads=2)
case("RotaryEmbedding", "partial", [x(1, 2, 2, 6), x(3, 2), x(3, 2), data([[1, 2]])],
     lambda t, c, s, p: torch.cat([rotate(t[..., :4], c[p], s[p], 0), t[..., 4:]], -1), rotary_embedding_dim=4)


# ---- opset 27 ----------------------------------------------------------------------------------------------
def causal_conv(t, w, b=None, past=None, act="none"):
    k = w.shape[-1]
    past = torch.zeros(t.shape[0], t.shape[1], k - 1, dtype=t.dtype) if past is None else past
    full = torch.cat([past, t], -1)
    y = F.conv1d(full, w, b, groups=t.shape[1])
    return (F.silu(y) if act != "none" else y), full[..., full.shape[-1] - (k - 1):]


case("CausalConvWithState", "plain", [x(2, 3, 4), x(3, 1, 3)], lambda t, w: causal_conv(t, w), outputs=2)
case("CausalConvWithState", "state", [x(2, 3, 4), x(3, 1, 3), x(3), x(2, 3, 2)],
     lambda t, w, b, p: causal_conv(t, w, b, p), outputs=2)
case("CausalConvWithState", "silu", [x(1, 2, 2), x(2, 1, 4), None, x(1, 2, 3)],
     lambda t, w, b, p: causal_conv(t, w, b, p, "silu"), outputs=2, activation="silu")


def linear_attention(q, k, w, past=None, decay=None, beta=None, rule="gated_delta", hq=1, hk=1, scale=None):
    b, n, _ = q.shape
    q, k, w = heads(q, hq), heads(k, hk), heads(w, hk)  # [B, heads, T, d]
    dk, dv = k.shape[-1], w.shape[-1]
    s = torch.zeros(b, hk, dk, dv, dtype=q.dtype) if past is None else past
    out = []
    for t in range(n):
        kt, vt = k[:, :, t], w[:, :, t]
        if decay is not None:
            g = decay[:, t].reshape(b, hk, -1)
            s = s * torch.exp(g)[..., None]  # per head: broadcasts over d_k
        if beta is not None:
            rate = beta[:, t].reshape(b, -1, 1)
            vt = rate * (vt - torch.einsum("bhkv,bhk->bhv", s, kt))
        s = s + kt[..., :, None] * vt[..., None, :]
        out.append((scale or 1 / math.sqrt(dk)) * torch.einsum("bhkv,bhk->bhv", s.repeat_interleave(hq // hk, 1), q[:, :, t]))
    return merge(torch.stack(out, 2)), s


case("LinearAttention", "linear", [x(1, 3, 4), x(1, 3, 4), x(1, 3, 6)],
     lambda q, k, w: linear_attention(q, k, w, hq=2, hk=2), outputs=2, update_rule="linear", q_num_heads=2,
     kv_num_heads=2)
case("LinearAttention", "gated", [x(1, 2, 4), x(1, 2, 2), x(1, 2, 3), x(1, 1, 2, 3), x(1, 2, 2, lo=-1, hi=0)],
     lambda q, k, w, p, d: linear_attention(q, k, w, p, d, hq=2, hk=1), outputs=2, update_rule="gated", q_num_heads=2,
     kv_num_heads=1)
case("LinearAttention", "delta", [x(2, 2, 2), x(2, 2, 2), x(2, 2, 2), None, None, x(2, 2, 1, lo=0, hi=1)],
     lambda q, k, w, p, d, b: linear_attention(q, k, w, p, d, b, scale=0.5), outputs=2, update_rule="delta",
     q_num_heads=1, kv_num_heads=1, scale=0.5)
case("LinearAttention", "gated_delta",
     [x(1, 3, 4), x(1, 3, 4, lo=-1, hi=1), x(1, 3, 4), x(1, 2, 2, 2), x(1, 3, 2, lo=-1, hi=0), x(1, 3, 2, lo=0, hi=1)],
     lambda q, k, w, p, d, b: linear_attention(q, k, w, p, d, b, hq=2, hk=2), outputs=2, q_num_heads=2, kv_num_heads=2)
