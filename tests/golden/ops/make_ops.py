#!/usr/bin/env python3
"""PyTorch's gradients of single ONNX operators, in double precision: the outside witness of every
gradient formula in ops/.

    python make_ops.py [OUT_DIR]        writes OUT_DIR/manifest.json and OUT_DIR/cases.safetensors

Needs torch, torchvision, onnx, numpy; CPU only, under a minute. A second run writes the same bytes.
A case is a tiny ONNX model, inputs, outputs, cotangents dy and the gradients that torch autograd gives
of sum(y * dy). Its formula is written in torch beside it (cases_*.py; torch.nn.functional where that has
it), never taken from ONNX or from ortrain. Each formula is also run against onnx's reference evaluator;
where that cannot serve as a witness the case says why (`ref`). Read by tests/ops/torch_gradient_test.cc.
"""
import importlib, json, os, struct, sys, warnings, zlib

import numpy as np
import onnx
import onnx.parser
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = ["elementwise", "reduce", "norm", "shape", "index", "conv", "sample", "recurrent", "attention",
            "flow", "microsoft"]
CASES = []  # of Case, in the order of the files


# ---- inputs ------------------------------------------------------------------------------------
class In:
    """One input. `grad`: a gradient is wanted; `const`: known before training (an initializer)."""

    def __init__(self, make, grad=False, const=False):
        self.make, self.grad, self.const = make, grad, const


def grid(rng, shape, lo, hi):
    """Distinct multiples of 1/1024 in [lo, hi): exact in float32, no accidental ties."""
    n = int(np.prod(shape, dtype=np.int64))
    steps = int((hi - lo) * 1024)
    picks = rng.permutation(max(steps, n))[:n] % max(steps, 1)
    return (lo + picks / 1024.0).reshape(shape).astype(np.float64)


def x(*shape, lo=-2, hi=2):
    """Random floats that want a gradient."""
    return In(lambda rng: grid(rng, shape, lo, hi), grad=True)


def v(values):
    """The given floats, wanting a gradient: ties, kinks, edge values."""
    return In(lambda rng: np.asarray(values, dtype=np.float64), grad=True)


def fixed(values):
    """Float data without a gradient."""
    return In(lambda rng: np.asarray(values, dtype=np.float64), const=True)


def const(values, dtype=np.int64):
    """Shapes, axes and the like: known before training."""
    return In(lambda rng: np.asarray(values, dtype=dtype), const=True)


def data(values, dtype=np.int64):
    """Integers or truth values that arrive with the batch."""
    return In(lambda rng: np.asarray(values, dtype=dtype))


# ---- cases -------------------------------------------------------------------------------------
class Case:
    def __init__(self, op, form, inputs, fn, opset, domain, nodes, outputs, attrs, ref, train):
        self.op, self.form, self.inputs, self.fn = op, form, inputs, fn
        self.domain, self.nodes, self.outputs, self.attrs = domain, nodes, outputs, attrs
        self.ref, self.train = ref, train
        self.opset = opset or (max(22, onnx.defs.get_schema(op).since_version) if not domain else 22)
        self.name = f"{domain + '.' if domain else ''}{op}/{form}"


def case(op, form, inputs, fn, opset=None, domain="", nodes=None, outputs=1, ref=True, train=False, **attrs):
    """One case. `nodes`: ONNX text of several nodes instead of one; `outputs`: how many the node has;
    `ref`: True, or why onnx's reference evaluator is no witness; `train`: the operator behaves
    otherwise in prediction, so only loss and gradients are compared."""
    CASES.append(Case(op, form, inputs, fn, opset, domain, nodes, outputs, attrs, ref, train))


def f32(value):
    """An attribute as a file holds it."""
    return float(np.float32(value))


ONNX_TYPES = {"float64": TensorProto.DOUBLE, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
              "bool": TensorProto.BOOL, "float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8,
              "int8": TensorProto.INT8}


def input_name(i, given):
    return f"{'x' if given.grad else 'c' if given.const else 'i'}{i}"


def build_model(c, arrays, results):
    names = ["" if a is None else input_name(i, c.inputs[i]) for i, a in enumerate(arrays)]
    outs = [f"y{i}" for i in range(len(results))]
    if c.nodes:
        text = f"g () => () {{ {c.nodes} }}"
        nodes = list(onnx.parser.parse_graph(text).node)
    else:
        node_outs = ["" if r is None else o for o, r in zip(outs, results)]
        while names and not names[-1]:
            names.pop()
        nodes = [helper.make_node(c.op, names, node_outs, name="node", domain=c.domain, **c.attrs)]
    typed = lambda n, a: helper.make_tensor_value_info(n, ONNX_TYPES[str(a.dtype)], a.shape)
    given = [(n, a, c.inputs[i]) for i, (n, a) in enumerate(zip(names, arrays)) if a is not None]
    graph = helper.make_graph(
        nodes, "case", [typed(n, a) for n, a, g in given if not g.const],
        [typed(o, r) for o, r in zip(outs, results) if r is not None],
        [numpy_helper.from_array(a, n) for n, a, g in given if g.const])
    imports = [helper.make_opsetid("", c.opset)]
    if c.domain:
        imports.append(helper.make_opsetid(c.domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10 if c.opset < 24 else 13,
                             producer_name="make_ops.py")


def torch_input(array, grad):
    if array is None:
        return None
    t = torch.from_numpy(np.array(array, copy=True))
    return t.requires_grad_(True) if grad else t


def compute(c):
    """The case's arrays by tensor name, its model, and its line of the manifest."""
    rng = np.random.RandomState(zlib.crc32(c.name.encode()) & 0x7fffffff)
    arrays = [None if g is None else g.make(rng) for g in c.inputs]
    inputs = [torch_input(a, g is not None and g.grad) for a, g in zip(arrays, c.inputs)]
    torch.manual_seed(0)
    got = c.fn(*inputs)
    got = list(got) if isinstance(got, (tuple, list)) else [got]
    results = [None if r is None else r.detach().numpy() for r in got]
    out = {}
    for i, (a, g) in enumerate(zip(arrays, c.inputs)):
        if a is not None and not g.const:
            out[input_name(i, g)] = a
    loss = None
    for i, r in enumerate(got):
        if r is None:
            continue
        out[f"y{i}"] = results[i]
        if r.is_floating_point():
            dy = grid(rng, r.shape, -1, 1)
            out[f"dy{i}"] = dy
            if r.requires_grad:
                term = (r * torch.from_numpy(dy)).sum()
                loss = term if loss is None else loss + term
    wanted = [i for i, g in enumerate(c.inputs) if g is not None and g.grad]
    grads = [None] * len(wanted)
    if loss is not None and wanted:
        grads = torch.autograd.grad(loss, [inputs[i] for i in wanted], allow_unused=True)
    for i, g in zip(wanted, grads):
        out[f"d{input_name(i, c.inputs[i])}"] = np.zeros_like(arrays[i]) if g is None else g.numpy()
    model = build_model(c, arrays, results)
    if not c.domain and not (c.op == "GroupNormalization" and c.opset < 21):  # deprecated, says the checker
        onnx.checker.check_model(model)
    line = {"case": c.name, "op": (c.domain + "." if c.domain else "") + c.op, "opset": c.opset,
            "attributes": " ".join(f"{k}={v}" for k, v in sorted(c.attrs.items())),
            "gradients": [input_name(i, c.inputs[i]) for i in wanted]}
    if c.train:
        line["train"] = True
    return out, model, line


def reference_difference(c, model, arrays):
    """What onnx's reference evaluator computes otherwise, or ""."""
    feeds = {i.name: arrays[i.name] for i in model.graph.input}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        got = ReferenceEvaluator(model).run(None, feeds)
    for o, a in zip(model.graph.output, got):
        want = arrays[o.name]
        a = np.asarray(a)
        if tuple(a.shape) != tuple(want.shape):
            return f"{o.name}: shape {a.shape}, torch {want.shape}"
        if not np.allclose(a.astype(np.float64), want.astype(np.float64), rtol=2e-5, atol=2e-6, equal_nan=True):
            return f"{o.name}: differs by {np.max(np.abs(a.astype(np.float64) - want.astype(np.float64)))}"
    return ""


# ---- files -------------------------------------------------------------------------------------
SAFE_TYPES = {"float64": "F64", "int64": "I64", "int32": "I32", "bool": "BOOL", "uint8": "U8", "float32": "F32",
              "int8": "I8"}


def write_safetensors(path, tensors):
    """Names sorted by falling element size, so that everything is aligned; nothing but the tensors."""
    order = sorted(tensors.items(), key=lambda kv: (-kv[1].dtype.itemsize, kv[0]))
    header, at = {}, 0
    for name, a in order:
        header[name] = {"dtype": SAFE_TYPES[str(a.dtype)], "shape": list(a.shape),
                        "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, a in order:
            f.write(np.ascontiguousarray(a).tobytes())


def main():
    out_dir = sys.argv[1] if len(sys.argv) > 1 else HERE
    torch.set_num_threads(1)
    sys.modules["make_ops"] = sys.modules["__main__"]  # the case files import this one
    sys.path.insert(0, HERE)
    for family in FAMILIES:
        if os.path.exists(os.path.join(HERE, f"cases_{family}.py")):
            importlib.import_module(f"cases_{family}")
    tensors, lines, wrong = {}, [], []
    for c in CASES:
        try:
            arrays, model, line = compute(c)
        except Exception as e:  # name the case, go on, fail at the end
            wrong.append(f"{c.name}: {type(e).__name__}: {e}")
            continue
        if c.name in {l["case"] for l in lines}:
            wrong.append(f"{c.name}: named twice")
        if c.ref is True and not c.domain:
            try:
                difference = reference_difference(c, model, arrays)
            except Exception as e:
                difference = f"{type(e).__name__}: {str(e)[:200]}"
            if difference:
                wrong.append(f"{c.name}: onnx reference: {difference}")
        tensors[f"{c.name}:model"] = np.frombuffer(model.SerializeToString(deterministic=True), dtype=np.uint8)
        for name, a in arrays.items():
            tensors[f"{c.name}:{name}"] = a
        lines.append(line)
    for w in wrong:
        print("WRONG", w)
    write_safetensors(os.path.join(out_dir, "cases.safetensors"), tensors)
    with open(os.path.join(out_dir, "manifest.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(l) for l in lines) + "\n]\n")
    ops = {l["op"] for l in lines}
    size = os.path.getsize(os.path.join(out_dir, "cases.safetensors"))
    print(f"{len(ops)} operators ({len([o for o in ops if '.' not in o])} of ai.onnx), {len(lines)} cases, "
          f"{size} bytes, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
