"""The ONNX side of the golden cases: exporting a model through PyTorch's exporters, finding which
initializer is which parameter, and checking a file with onnx's reference evaluator.
Used by golden_lib.py.
"""
from __future__ import annotations

import collections, copy, dataclasses, itertools, math, os

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import onnx.reference.op_run
import torch
import torch.nn as nn

from golden_train import STEPS, Export, cast, jiggle, loss_of, quiet


# ------------------------------------------------------------------------------------------- export
def export_one(case, spec, base_model, example, path=None):
    """Writes the file without stack traces, raises on failure.  `example` = tuple of input tensors (small batch)."""
    if path is not None: spec.path = path
    if spec.build is not None:
        model = spec.build()
        if case.jiggle: jiggle(model)
        missing = model.load_state_dict(base_model.state_dict(), strict=False)
        assert not missing.missing_keys or all("mask" in k or "tril" in k for k in missing.missing_keys), missing
    else:
        model = copy.deepcopy(base_model)
    model.eval()
    with quiet(), torch.no_grad():
        if spec.exporter == "dynamo+safe":
            tmp = spec.path + ".tmp"
            export_one(case, dataclasses.replace(spec, exporter="dynamo", optimize=False, file=tmp), base_model, example, tmp)
            names = set(base_model.state_dict())
            try: safe_optimize(tmp, spec.path, [i.name for i in onnx.load(tmp).graph.initializer if i.name in names])
            finally: os.remove(tmp)
            return
        if spec.exporter == "dynamo":
            batch = torch.export.Dim("batch", min=2)
            torch.onnx.export(model, example, spec.path, dynamo=True, optimize=spec.optimize,
                              opset_version=spec.opset, external_data=False,
                              input_names=case.inputs, output_names=case.outputs,
                              dynamic_shapes=tuple({0: batch} for _ in example))
        else:
            axes = {n: {0: "batch"} for n in case.inputs}
            for o in case.outputs:
                if not (case.loss == "graph" and o == case.outputs[0]):
                    axes[o] = {0: "batch"}
            kw = {}
            if spec.training:
                model.train()
                kw["training"] = torch.onnx.TrainingMode.TRAINING
            torch.onnx.export(model, example, spec.path, dynamo=False, opset_version=spec.opset,
                              do_constant_folding=spec.constant_folding, input_names=case.inputs,
                              output_names=case.outputs, dynamic_axes=axes, **kw)
    if spec.training:
        # tracing in training mode runs the model, which moves BatchNorm's running statistics before
        # they are written: put the initial ones back
        mp = onnx.load(spec.path)
        st = base_model.state_dict()
        for i in mp.graph.initializer:
            if i.name in st and i.name.rsplit(".", 1)[-1] in ("running_mean", "running_var"):
                i.CopyFrom(onnx.numpy_helper.from_array(st[i.name].numpy(), i.name))
        onnx.save(mp, spec.path)
    mp = onnx.load(spec.path)
    strip_traces(mp.graph)
    onnx.save(mp, spec.path)


def strip_traces(graph):
    """Removes what the exporter writes about the exporting machine: stack traces of every node."""
    for item in [*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph]:
        kept = [(p.key, p.value) for p in item.metadata_props if "stack_trace" not in p.key and "/site-packages/" not in p.value]
        if len(kept) != len(item.metadata_props):
            del item.metadata_props[:]
            for key, value in kept: item.metadata_props.add(key=key, value=value)
    for node in graph.node:
        node.doc_string = ""
        for a in node.attribute:
            if a.HasField("g"): strip_traces(a.g)
            for g in a.graphs: strip_traces(g)


def safe_optimize(src, dst, keep):
    """optimize=False, then onnxscript's optimizer while the named initializers are disguised as graph
    inputs: shape chains and true constants are folded away, but nothing that depends on a parameter is
    folded, fused, merged or dropped.  Names and ties stay as exported."""
    import onnx_ir as ir
    import onnxscript.optimizer
    m = ir.load(src)
    n_real = len(m.graph.inputs)
    hidden = []
    for name in keep:
        v = m.graph.initializers.pop(name)
        hidden.append((name, v.const_value)); v.const_value = None
        m.graph.inputs.append(v)
    onnxscript.optimizer.optimize_ir(m)
    by = {v.name: v for v in m.graph.inputs}
    del m.graph.inputs[n_real:]
    for name, t in hidden:
        by[name].const_value = t
        m.graph.register_initializer(by[name])
    ir.save(m, dst)


def all_nodes(graph):
    for n in graph.node:
        yield n
        for a in n.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(a.g)
            elif a.type == onnx.AttributeProto.GRAPHS:
                for g in a.graphs:
                    yield from all_nodes(g)


FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def find_transform(init, ref):
    """How an ONNX initializer relates to a torch tensor: the transform takes torch -> initializer."""
    if init.shape == ref.shape and np.array_equal(init, ref):
        return "identity"
    if init.size != ref.size or init.size < 2:
        return None
    if init.ndim == ref.ndim:
        for perm in itertools.permutations(range(ref.ndim)):
            if perm != tuple(range(ref.ndim)) and ref.transpose(perm).shape == init.shape \
                    and np.array_equal(ref.transpose(perm), init):
                return "transpose" if ref.ndim == 2 else "permute:" + ",".join(map(str, perm))
    if np.array_equal(init.ravel(), ref.ravel()):
        return "reshape:" + ",".join(map(str, init.shape))
    return None


def apply_transform(t, ref):
    if t == "identity": return ref
    if t == "transpose": return np.ascontiguousarray(ref.T)
    if t.startswith("permute:"): return np.ascontiguousarray(ref.transpose([int(i) for i in t[8:].split(",")]))
    if t.startswith("reshape:"): return ref.reshape([int(i) for i in t[8:].split(",")] if t[8:] else [])
    raise ValueError(t)


def analyse(mp, model):
    """Match the float initializers of an exported file with the torch tensors they came from."""
    params, alias = {}, {}
    ptr = {}
    for n, t in model.state_dict(keep_vars=True).items():
        if not t.is_floating_point(): continue
        key = t.data_ptr() if isinstance(t, nn.Parameter) else None
        if key is not None and key in ptr:
            alias[n] = ptr[key]; continue
        if key is not None: ptr[key] = n
        params[n] = t.detach().numpy()
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    # parameters that take part in the forward pass at all are found by the caller (grad is not None)
    inits = {i.name: onnx.numpy_helper.to_array(i) for i in mp.graph.initializer if i.data_type in FLOATS}
    const_nodes = {}
    for n in all_nodes(mp.graph):
        if n.op_type == "Constant":
            for a in n.attribute:
                if a.name == "value" and a.t.data_type in FLOATS:
                    const_nodes[n.output[0]] = onnx.numpy_helper.to_array(a.t)
                elif a.name in ("value_float", "value_floats"):
                    v = onnx.helper.get_attribute_value(a)
                    const_nodes[n.output[0]] = np.array(v, dtype=np.float32)
    mapping, consts, composites = {}, {}, {}
    comp = recurrent_composites(model)
    claimed = collections.defaultdict(list)
    for name, arr in inits.items():
        hit = None
        cand = [name] + [alias[name]] if name in alias else [name]
        for c in cand:
            if c in params and (t := find_transform(arr, params[c])):
                hit = (c, t); break
        if hit is None:
            for c, ref in params.items():
                if arr.size > 1 and (t := find_transform(arr, ref)):
                    hit = (c, t); break
        if hit is None:
            for cn, (a, parts) in comp.items():
                if a.shape == arr.shape and np.array_equal(a, arr):
                    composites[name] = {"onnx_recurrent_tensor": cn, "torch_parts": parts}
                    for q in parts: claimed[q].append(name)
        if name in composites: continue
        if hit:
            mapping[name] = {"torch": hit[0], "transform": hit[1]}
            claimed[hit[0]].append(name)
        else:
            consts[name] = {"shape": list(arr.shape)}
            if arr.size == 1: consts[name]["value"] = float(arr.ravel()[0])
    folded = {}
    for name, arr in const_nodes.items():
        if arr.size > 1:
            for c, ref in params.items():
                if (t := find_transform(arr, ref)):
                    folded[name] = {"torch": c, "transform": t}
    ops = collections.Counter((n.domain + "::" if n.domain else "") + n.op_type for n in all_nodes(mp.graph))
    # Identity nodes that fan one initializer out under other names (the legacy exporter's way to merge)
    ident = [(n.input[0], n.output[0]) for n in mp.graph.node if n.op_type == "Identity" and n.input[0] in inits]
    return dict(mapping=mapping, composites=composites, float_constants=consts, params_inside_Constant_nodes=folded,
                multi={c: v for c, v in claimed.items() if len(v) > 1},
                missing=sorted(n for n in params if n in trainable and n not in claimed),
                missing_buffers=sorted(n for n in params if n not in trainable and n not in claimed
                                       and n.rsplit(".", 1)[-1] in ("running_mean", "running_var")),
                identity_of_initializer=ident, ops=dict(sorted(ops.items())), aliases=alias)


def recurrent_composites(model, state=None):
    """The W, R, B tensors of ONNX LSTM/GRU built from torch's: gates reordered (LSTM i f g o -> i o f g;
    GRU r z n -> z r n), directions stacked, the two biases concatenated.  A pure permutation, so losses,
    gradients and elementwise optimizers carry over.  name -> (array, torch names it is made of)."""
    out = {}
    state = state or {n: t for n, t in model.state_dict().items()}
    for mn, m in model.named_modules():
        if not isinstance(m, (nn.LSTM, nn.GRU)): continue
        pre = mn + "." if mn else ""
        order = (0, 3, 1, 2) if isinstance(m, nn.LSTM) else (1, 0, 2)
        def re(n):
            a = state[pre + n].numpy(); c = np.split(a, len(order), axis=0)
            return np.concatenate([c[i] for i in order], axis=0)
        for l in range(m.num_layers):
            dirs = ["", "_reverse"] if m.bidirectional else [""]
            for kind, names in (("W", ["weight_ih"]), ("R", ["weight_hh"]), ("B", ["bias_ih", "bias_hh"])):
                a = np.stack([np.concatenate([re(f"{n}_l{l}{d}") for n in names], axis=0) for d in dirs])
                out[f"{pre}{kind}_l{l}"] = (a, [f"{pre}{n}_l{l}{d}" for d in dirs for n in names])
    return out


def consumers(mp):
    c = collections.Counter()
    for n in all_nodes(mp.graph):
        for i in n.input: c[i] += 1
    return c


def graph_io(mp):
    f = lambda v: {"name": v.name, "type": onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type).lower(),
                   "shape": [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in v.type.tensor_type.shape.dim]}
    names = {i.name for i in mp.graph.initializer}
    return [f(i) for i in mp.graph.input if i.name not in names], [f(o) for o in mp.graph.output]


class BatchNormalization(onnx.reference.op_run.OpRun):
    """onnx's own reference for BatchNormalization-9 wrongly blends batch statistics in (the attribute
    momentum is never None, so its inference branch is unreachable); this is the inference formula."""
    op_domain = ""
    def _run(self, x, scale, bias, mean, var, epsilon=None, momentum=None, training_mode=None):
        sh = (1, -1) + (1,) * (x.ndim - 2)
        y = scale.reshape(sh) * (x - mean.reshape(sh)) / np.sqrt(var.reshape(sh) + epsilon) + bias.reshape(sh)
        return (y.astype(x.dtype),)


class BatchNormalizationTrain(onnx.reference.op_run.OpRun):
    """Batch statistics, one output: what a trainer does with an eval-mode BatchNormalization node."""
    op_domain = ""
    def _run(self, x, scale, bias, mean, var, epsilon=None, momentum=None, training_mode=None):
        ax = tuple(d for d in range(x.ndim) if d != 1)
        m, v = x.mean(ax), x.var(ax)
        sh = (1, -1) + (1,) * (x.ndim - 2)
        y = scale.reshape(sh) * (x - m.reshape(sh)) / np.sqrt(v.reshape(sh) + epsilon) + bias.reshape(sh)
        return (y.astype(x.dtype),)

BatchNormalizationTrain.__name__ = "BatchNormalization"      # the evaluator goes by the class name


def _sig(x):
    return 1.0 / (1.0 + np.exp(-x))


def _recurrent(X, W, R, B, h0, c0, direction, hidden, gates, step):
    """onnx's reference has no bidirectional LSTM/GRU; these follow the operator text (default
    activations, layout 0, no peepholes, full sequence lengths)."""
    T, N, _ = X.shape; D = W.shape[0]
    ys, hs, cs = np.zeros((T, D, N, hidden), X.dtype), [], []
    for d in range(D):
        rev = direction == "reverse" or d == 1
        h = h0[d] if h0 is not None else np.zeros((N, hidden), X.dtype)
        c = c0[d] if c0 is not None else np.zeros((N, hidden), X.dtype)
        b = B[d] if B is not None else np.zeros(2 * gates * hidden, X.dtype)
        for t in (range(T - 1, -1, -1) if rev else range(T)):
            h, c = step(X[t], h, c, W[d], R[d], b[:gates * hidden], b[gates * hidden:])
            ys[t, d] = h
        hs.append(h); cs.append(c)
    return ys, np.stack(hs), np.stack(cs)


class LSTM(onnx.reference.op_run.OpRun):
    op_domain = ""
    def _run(self, X, W, R, B=None, sequence_lens=None, initial_h=None, initial_c=None, P=None, activation_alpha=None,
             activation_beta=None, activations=None, clip=None, direction=None, hidden_size=None, input_forget=None, layout=None):
        assert not layout and P is None and not clip and not input_forget
        if sequence_lens is not None: assert (sequence_lens == X.shape[0]).all()
        def step(x, h, c, w, r, wb, rb):
            i, o, f, g = np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=1)      # ONNX order: i o f c
            c = _sig(f) * c + _sig(i) * np.tanh(g)
            return _sig(o) * np.tanh(c), c
        return _recurrent(X, W, R, B, initial_h, initial_c, direction, hidden_size, 4, step)


class GRU(onnx.reference.op_run.OpRun):
    op_domain = ""
    def _run(self, X, W, R, B=None, sequence_lens=None, initial_h=None, activation_alpha=None, activation_beta=None,
             activations=None, clip=None, direction=None, hidden_size=None, layout=None, linear_before_reset=None):
        assert not layout and not clip and linear_before_reset == 1
        if sequence_lens is not None: assert (sequence_lens == X.shape[0]).all()
        def step(x, h, c, w, r, wb, rb):
            wz, wr, wh = np.split(x @ w.T + wb, 3, axis=1); rz, rr, rh = np.split(h @ r.T + rb, 3, axis=1)   # z r h
            z, rt = _sig(wz + rz), _sig(wr + rr)
            return (1 - z) * np.tanh(wh + rt * rh) + z * h, c
        return _recurrent(X, W, R, B, initial_h, None, direction, hidden_size, 3, step)[:2]


def directional_check(case, mp, e, data, grads, bn_train):
    """Does the exported graph, run by onnx's reference evaluator, have the golden gradient?  All golden
    parameters are moved together along +-h*G/|G|; the central difference of the loss must be |G|."""
    vec = {}
    for n, x in e["_map"].items():
        g = grads.get(x["torch"])
        if g is not None: vec[n] = apply_transform(x["transform"], g.numpy())
    norm = math.sqrt(sum(float((v ** 2).sum()) for v in vec.values()))
    b = {k: v[:case.batch_size] for k, v in data.items()}
    tb = {k: torch.from_numpy(v) for k, v in b.items()}
    best = None
    for h in (1e-3, 1e-4, 1e-2):  # a long step suffers from curvature and kinks, a short one from rounding
        if best is not None and best["relative_difference"] < 1e-3: break
        ls = []
        for sgn in (1, -1):
            q = onnx.ModelProto(); q.CopyFrom(mp)
            for i in q.graph.initializer:
                if i.name in vec:
                    a = onnx.numpy_helper.to_array(i).astype(np.float64) + sgn * h * vec[i.name] / norm
                    i.CopyFrom(onnx.numpy_helper.from_array(a.astype(np.float32), i.name))
            out = torch.from_numpy(np.asarray(ref_eval(q, b, case.outputs, bn_train)[0])).double()
            ls.append(float(loss_of(case, out, cast(tb, torch.float64))))
        d = (ls[0] - ls[1]) / (2 * h)
        r = {"golden_gradient_norm": norm, "finite_difference": d, "step": h, "relative_difference": abs(d - norm) / norm}
        if best is None or r["relative_difference"] < best["relative_difference"]: best = r
    return best


def ref_eval(mp, feeds, outputs, bn_train=False):
    old_bn = any(o.domain in ("", "ai.onnx") and o.version < 14 for o in mp.opset_import)
    sess = onnx.reference.ReferenceEvaluator(mp, new_ops=[LSTM, GRU] + ([BatchNormalizationTrain] if bn_train else [BatchNormalization] if old_bn else []))
    want = {i.name for i in mp.graph.input}
    return sess.run(None, {k: v for k, v in feeds.items() if k in want})


def max_diff(got, want):
    worst = 0.0
    for g, w in zip(got, want):
        w = w.detach().numpy()
        if tuple(g.shape) != tuple(w.shape):
            return f"shape {g.shape} vs torch {w.shape}"
        if w.size: worst = max(worst, float(np.max(np.abs(g.astype(np.float64) - w.astype(np.float64)))))
    return worst


def check_file(case, mp, info, model0, trained32, data, train_mode):
    """Reference-evaluator checks.  Returns dict of results; errors are recorded as text."""
    r = {}
    try:
        onnx.checker.check_model(mp, full_check=True)
        r["onnx_checker"] = "ok"
    except Exception as e:
        r["onnx_checker"] = f"{type(e).__name__}: {e}"[:600]
    tup = lambda o: o if isinstance(o, (tuple, list)) else (o,)
    nb = min(case.batch_size, 4)
    feeds = {k: v[:nb] for k, v in data.items()}
    xs = [torch.from_numpy(feeds[n]) for n in case.inputs]
    for key, m, sub in (("forward_initial", model0, None), ("forward_trained", trained32, True)):
        m = copy.deepcopy(m)
        m.train() if train_mode else m.eval()
        q = mp
        if sub:
            q = onnx.ModelProto(); q.CopyFrom(mp)
            st = {n: t.numpy() for n, t in trained32.state_dict().items()}
            for i in q.graph.initializer:
                if i.name in info["mapping"]:
                    e = info["mapping"][i.name]
                    i.CopyFrom(onnx.numpy_helper.from_array(
                        apply_transform(e["transform"], st[e["torch"]]).astype(np.float32), i.name))
                elif i.name in info["composites"]:
                    a = recurrent_composites(trained32)[info["composites"][i.name]["onnx_recurrent_tensor"]][0]
                    i.CopyFrom(onnx.numpy_helper.from_array(a.astype(np.float32), i.name))
        try:
            with torch.no_grad():
                want = tup(m(*xs))
            r[key + "_max_abs_diff"] = max_diff(ref_eval(q, feeds, case.outputs), want)
        except Exception as e:
            r[key + "_max_abs_diff"] = f"{type(e).__name__}: {str(e)[:400]}"
    # a second batch size, to see that the batch axis is really dynamic
    try:
        f2 = {k: v[:3] for k, v in data.items()}
        m = copy.deepcopy(model0); m.train() if train_mode else m.eval()
        with torch.no_grad():
            want = tup(m(*[torch.from_numpy(f2[n]) for n in case.inputs]))
        r["batch3_max_abs_diff"] = max_diff(ref_eval(mp, f2, case.outputs), want)
    except Exception as e:
        r["batch3_max_abs_diff"] = f"{type(e).__name__}: {str(e)[:400]}"
    return r


def flags_for(case, file="model.onnx"):
    o = case.optimizer
    fl = [file, "--data", "train.npz", "--loss", case.loss, "--optimizer", o["name"], "--lr", repr(o["lr"])]
    if o.get("momentum"): fl += ["--momentum", repr(o["momentum"])]
    if o.get("nesterov"): fl += ["--nesterov"]
    if "betas" in o: fl += ["--betas", ",".join(map(repr, o["betas"]))]
    if "eps" in o: fl += ["--eps", repr(o["eps"])]
    if o.get("weight_decay"): fl += ["--weight-decay", repr(o["weight_decay"])]
    fl += ["--batch-size", str(case.batch_size), "--steps", str(STEPS), "--shuffle", "none", "--log", "run.jsonl"]
    return fl
