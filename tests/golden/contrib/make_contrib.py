"""Makes contrib.npz: one-node models of com.microsoft operators with inputs and the outputs of
onnxruntime 1.19.2 (CPU), the outside witness of tests/ops/contrib_test.cc.

Needs onnxruntime, onnx and numpy:  python tests/golden/contrib/make_contrib.py
Arrays: "CASE/model" (bytes of the file), "CASE/in/NAME", "CASE/out/NAME". An input in `fixed` is an
initializer of the model. NhwcConv, BiasSoftmax and BiasDropout have no CPU kernel there; they are
checked against their formulas in the test. So are four things that this version gets wrong on the
CPU: the bias of SkipSimplifiedLayerNormalization (left out), padding masks of MultiHeadAttention
where keys and queries differ in number (read with a wrong stride), an attention_bias that lacks the
batch (read past its end), and local_window_size (one key too many; newer versions count the token
itself).
"""
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(20240)
arrays = {}


def f(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def i(*values, shape=None, dtype=np.int32):
    a = np.array(values, dtype)
    return a.reshape(shape) if shape else a


def case(name, op, inputs, outputs, fixed=(), domain="com.microsoft", **attrs):
    """inputs: list of (name, array) or None; outputs: list of names, "" = not wanted."""
    names = [x[0] if x else "" for x in inputs]
    given = [x for x in inputs if x]
    node = helper.make_node(op, names, outputs, name=op, domain=domain, **attrs)
    tensor = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node], name,
        [helper.make_tensor_value_info(n, tensor(a.dtype), a.shape) for n, a in given if n not in fixed],
        [helper.make_empty_tensor_value_info(o) for o in outputs if o],
        [numpy_helper.from_array(a, n) for n, a in given if n in fixed])
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {n: a for n, a in given if n not in fixed}
    got = session.run(None, feed)
    for info, y in zip(graph.output, got):
        info.CopyFrom(helper.make_tensor_value_info(info.name, tensor(y.dtype), y.shape))
    arrays[f"{name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
    for n, a in feed.items():
        arrays[f"{name}/in/{n}"] = a
    for info, y in zip(graph.output, got):
        arrays[f"{name}/out/{info.name}"] = y


x, w = ("x", f(2, 3, 8)), ("gamma", f(8))
b, bias = ("beta", f(8)), ("bias", f(8))
for op in ("Gelu", "QuickGelu", "FastGelu"):
    case(op.lower(), op, [x], ["y"])
case("quick_gelu_alpha", "QuickGelu", [x], ["y"], alpha=0.7)
case("bias_gelu", "BiasGelu", [x, bias], ["y"])
case("fast_gelu_bias", "FastGelu", [x, bias], ["y"])

case("simplified_norm", "SimplifiedLayerNormalization", [x, w], ["y", "inv"], domain="", axis=-1, epsilon=1e-3)
case("layer_norm_stats", "LayerNormalization", [x, w, b], ["y", "mean", "inv"], domain="", axis=-1, epsilon=1e-3)
skip = ("skip", f(2, 3, 8))
case("skip_norm", "SkipLayerNormalization", [x, skip, w, b], ["y"], epsilon=1e-5)
case("skip_norm_bias", "SkipLayerNormalization", [x, skip, w, b, bias], ["y", "", "", "sum"])
case("skip_norm_no_beta", "SkipLayerNormalization", [x, skip, w], ["y"])
case("skip_norm_broadcast", "SkipLayerNormalization", [x, ("skip", f(1, 3, 8)), w, b], ["y"])
case("skip_norm_flat", "SkipLayerNormalization", [x, ("skip", f(3, 8)), w, b], ["y"])
case("skip_simplified", "SkipSimplifiedLayerNormalization", [x, skip, w], ["y"], epsilon=1e-5)

ids = ("ids", i(1, 0, 4, 2, 2, 3, shape=(2, 3)))
kinds = ("kinds", i(0, 0, 1, 1, 0, 1, shape=(2, 3)))
words, places, types = ("words", f(5, 8)), ("places", f(4, 8)), ("types", f(2, 8))
mask = ("mask", i(1, 1, 0, 1, 1, 1, shape=(2, 3)))
case("embed", "EmbedLayerNormalization", [ids, kinds, words, places, types, w, b, mask], ["y", "index"])
case("embed_no_segment", "EmbedLayerNormalization", [ids, None, words, places, None, w, b], ["y", "index"])
case("embed_sum", "EmbedLayerNormalization", [ids, kinds, words, places, types, w, b, mask, ("where", i(2, 0, 3, 1, 1, 0, shape=(2, 3)))],
     ["y", "index", "sum"], epsilon=1e-3)

case("fused_matmul", "FusedMatMul", [("a", f(2, 3, 4)), ("c", f(2, 4, 5))], ["y"], alpha=0.5)
case("fused_matmul_trans", "FusedMatMul", [("a", f(2, 4, 3)), ("c", f(2, 5, 4))], ["y"], transA=1, transB=1, alpha=2.0)
case("fused_matmul_batch_a", "FusedMatMul", [("a", f(3, 2, 4)), ("c", f(2, 4, 5))], ["y"], transBatchA=1)
case("fused_matmul_batch_ab", "FusedMatMul", [("a", f(4, 2, 3)), ("c", f(5, 2, 4))], ["y"], transA=1, transBatchA=1, transB=1, transBatchB=1)
case("fused_matmul_2d", "FusedMatMul", [("a", f(2, 3, 4)), ("c", f(5, 4))], ["y"], transB=1)
case("fused_gemm_relu", "FusedGemm", [("a", f(2, 3)), ("c", f(4, 3)), ("d", f(4))], ["y"], transB=1, alpha=0.5, beta=2.0, activation="Relu")
case("fused_gemm_leaky", "FusedGemm", [("a", f(2, 3)), ("c", f(3, 4)), ("d", f(2, 1))], ["y"], activation="LeakyRelu", activation_alpha=0.2)
case("fused_gemm_tanh", "FusedGemm", [("a", f(2, 3)), ("c", f(3, 4)), ("d", f(1, 4))], ["y"], activation="Tanh")
case("fused_gemm_sigmoid", "FusedGemm", [("a", f(2, 3)), ("c", f(3, 4))], ["y"], activation="Sigmoid")
image, kernel = ("x", f(1, 2, 5, 4)), ("w", f(3, 2, 3, 3))
case("fused_conv_relu", "FusedConv", [image, kernel, ("b", f(3))], ["y"], activation="Relu", pads=[1, 1, 1, 1])
case("fused_conv_leaky", "FusedConv", [image, kernel], ["y"], activation="LeakyRelu", activation_params=[0.3])
case("fused_conv_clip", "FusedConv", [image, kernel], ["y"], activation="Clip", activation_params=[-1.0, 2.0])
case("fused_conv_hard_sigmoid", "FusedConv", [image, kernel], ["y"], activation="HardSigmoid", activation_params=[0.2, 0.4])
case("fused_conv_sum", "FusedConv", [image, kernel, ("b", f(3)), ("z", f(1, 3, 2, 2))], ["y"], activation="Relu", strides=[2, 1])
case("fused_conv_group", "FusedConv", [image, ("w", f(2, 1, 2, 2))], ["y"], activation="Tanh", group=2, dilations=[2, 1])

hidden, proj = ("x", f(2, 3, 8)), ("w", f(8, 24, scale=0.5))
pb = ("b", f(24))
case("attention", "Attention", [hidden, proj, pb], ["y"], num_heads=2)
case("attention_scale", "Attention", [hidden, proj, pb], ["y"], num_heads=4, scale=0.3)
case("attention_causal", "Attention", [hidden, proj, pb], ["y"], num_heads=2, unidirectional=1)
case("attention_mask", "Attention", [hidden, proj, pb, mask], ["y"], num_heads=2)
case("attention_mask_all", "Attention", [hidden, proj, pb, ("mask", i(0, 0, 0, 1, 0, 1, shape=(2, 3)))], ["y"], num_heads=2)
case("attention_mask_value", "Attention", [hidden, proj, pb, mask], ["y"], num_heads=2, mask_filter_value=-2.0)
case("attention_mask_3d", "Attention", [hidden, proj, pb, ("mask", i(*([1, 0, 1] * 6), shape=(2, 3, 3)))], ["y"], num_heads=2)
case("attention_lengths", "Attention", [hidden, proj, pb, ("mask", i(2, 3))], ["y"], num_heads=2)
case("attention_ranges", "Attention", [hidden, proj, pb, ("mask", i(3, 2, 1, 0))], ["y"], num_heads=2)
case("attention_sizes", "Attention", [hidden, ("w", f(8, 20)), ("b", f(20))], ["y"], num_heads=2, qkv_hidden_sizes=[8, 8, 4])
case("attention_scores", "Attention", [hidden, proj, pb, None, None, ("s", f(2, 2, 3, 3))], ["y"], num_heads=2)
case("attention_past", "Attention", [hidden, proj, pb, None, ("past", f(2, 2, 2, 2, 4))], ["y", "present"], num_heads=2, unidirectional=1)
case("attention_past_mask", "Attention", [hidden, proj, pb, ("mask", i(1, 1, 1, 0, 1, 0, 1, 1, 1, 1, shape=(2, 5))), ("past", f(2, 2, 2, 2, 4))],
     ["y", "present"], num_heads=2)
case("attention_present", "Attention", [hidden, proj, pb], ["y", "present"], num_heads=2)

q, k, v = ("q", f(2, 3, 8)), ("k", f(2, 5, 8)), ("v", f(2, 5, 6))
case("mha", "MultiHeadAttention", [q, k, v], ["y"], num_heads=2)
case("mha_bias", "MultiHeadAttention", [q, k, v, ("b", f(22))], ["y"], num_heads=2, scale=0.2)
k3, v3 = ("k", f(2, 3, 8)), ("v", f(2, 3, 6))
case("mha_mask", "MultiHeadAttention", [q, k3, v3, None, ("m", i(1, 1, 0, 1, 0, 1, shape=(2, 3)))], ["y"], num_heads=2)
case("mha_lengths", "MultiHeadAttention", [q, k3, v3, None, ("m", i(3, 2))], ["y"], num_heads=2)
case("mha_scores", "MultiHeadAttention", [q, k, v, None, None, ("s", f(2, 2, 3, 5))], ["y"], num_heads=2)
case("mha_causal", "MultiHeadAttention", [("q", f(2, 4, 8)), ("k", f(2, 4, 8)), ("v", f(2, 4, 8))], ["y"], num_heads=2, unidirectional=1)
case("mha_cross", "MultiHeadAttention", [q, ("k", f(2, 2, 5, 4)), ("v", f(2, 2, 5, 4))], ["y"], num_heads=2)
case("mha_past", "MultiHeadAttention", [q, ("k", f(2, 3, 8)), ("v", f(2, 3, 8)), None, None, None, ("pk", f(2, 2, 2, 4)), ("pv", f(2, 2, 2, 4))],
     ["y", "present_k", "present_v"], num_heads=2)

g = dict(num_heads=4, kv_num_heads=2)
gq, gk, gv = ("q", f(2, 3, 64)), ("k", f(2, 3, 32)), ("v", f(2, 3, 32))
full, total = ("lens", i(2, 2)), ("total", i(3, shape=(1,)))
angles = np.outer(np.arange(8), 1 / 10 ** np.arange(4)).astype(np.float32)
caches = [("cos", np.cos(angles)), ("sin", np.sin(angles))]  # heads of 8
wide = np.outer(np.arange(8), 1 / 4 ** np.arange(8)).astype(np.float32)
gqa_caches = [("cos", np.cos(wide)), ("sin", np.sin(wide))]  # of 16, a multiple of which it wants
gqa = "GroupQueryAttention"
case("gqa", gqa, [gq, gk, gv, None, None, full, total], ["y", "pk", "pv"], ("total",), **g)
case("gqa_scale", gqa, [gq, gk, gv, None, None, full, total], ["y", "pk", "pv"], ("total",), scale=0.2, **g)
case("gqa_rotary", gqa, [gq, gk, gv, None, None, full, total, *gqa_caches], ["y", "pk", "pv"], ("total",), do_rotary=1, **g)
case("gqa_rotary_interleaved", gqa, [gq, gk, gv, None, None, full, total, *gqa_caches], ["y", "pk", "pv"], ("total",), do_rotary=1,
     rotary_interleaved=1, **g)
case("gqa_packed", gqa, [("q", f(2, 3, 128)), None, None, None, None, full, total, *gqa_caches], ["y", "pk", "pv"], ("total",), do_rotary=1, **g)
past = [("past_k", f(2, 2, 3, 16)), ("past_v", f(2, 2, 3, 16))]
one = [("q", f(2, 1, 64)), ("k", f(2, 1, 32)), ("v", f(2, 1, 32))]
case("gqa_decode", gqa, [*one, *past, ("lens", i(3, 3)), ("total", i(4, shape=(1,))), *gqa_caches], ["y", "pk", "pv"], ("total",), do_rotary=1, **g)

rope = ("x", f(2, 3, 16))
r_ids = ("ids", i(0, 1, 2, 4, 5, 7, shape=(2, 3), dtype=np.int64))
case("rotary", "RotaryEmbedding", [rope, r_ids, *caches], ["y"])
case("rotary_offset", "RotaryEmbedding", [rope, ("ids", i(2, dtype=np.int64)), *caches], ["y"], interleaved=1)
case("rotary_4d", "RotaryEmbedding", [("x", f(2, 2, 3, 8)), r_ids, *caches], ["y"])
case("rotary_part", "RotaryEmbedding", [("x", f(2, 3, 24)), r_ids, *caches], ["y"], num_heads=2, rotary_embedding_dim=8)

np.savez_compressed(os.path.join(HERE, "contrib.npz"), **arrays)
print(len([k for k in arrays if k.endswith("/model")]), "cases,", sum(a.nbytes for a in arrays.values()), "bytes")
