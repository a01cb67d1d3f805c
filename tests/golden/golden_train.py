"""The PyTorch side of the golden cases: what a case is, and training it for 20 steps in float64 or
float32. Nothing here knows about ONNX. Used by golden_lib.py and golden_export.py.
"""
from __future__ import annotations

import contextlib, copy, dataclasses, io, os, sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

torch.set_num_threads(2)
STEPS = 20


# --------------------------------------------------------------------------------------- case type
@dataclasses.dataclass
class Export:
    """One exported file. `exporter` is "dynamo" or "torchscript" (the legacy exporter)."""
    file: str
    exporter: str                     # or "dynamo+safe", see safe_optimize
    opset: int | None = None          # None = the exporter's default
    optimize: bool = True             # dynamo only
    constant_folding: bool = False    # torchscript only
    training: bool = False            # torchscript only: training=TrainingMode.TRAINING
    build: object = None              # alternative model builder with the same parameters
    note: str = ""


@dataclasses.dataclass
class Case:
    name: str
    description: str
    build: object                     # () -> nn.Module, fp32; must be deterministic (seed inside)
    data: object                      # () -> {input name: array, ..., "labels"/"target": array}
    inputs: list                      # graph input names, in forward() order
    loss: str                         # cross_entropy | mse | bce_with_logits | graph
    optimizer: dict                   # {"name": "sgd"|"adam"|"adamw", "lr":..., ...}
    batch_size: int = 32
    class_axis: int = 1               # cross_entropy: which logits axis holds the classes
    outputs: list = dataclasses.field(default_factory=lambda: ["logits"])
    extra: list = dataclasses.field(default_factory=list)      # further Export entries
    ts_opset: int = 17
    ts_build: object = None           # same weights, but code the legacy exporter can trace
    permutable: bool = True           # samples may be reordered inside a batch (loss is a mean)
    notes: list = dataclasses.field(default_factory=list)
    jiggle: bool = True


def jiggle(model, seed=1234):
    """Make every initial tensor distinct: exporters merge initializers that hold equal values
    (all-ones scales, all-zero biases) and drop all-zero biases, which would silently tie or remove
    parameters.  Real users meet that; the golden cases avoid it so that the file and the torch model
    are the same function of the same parameters (see digits_full and the *_defaultinit files for
    the unpleasant real thing)."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.numel() > 1 and bool((p == p.flatten()[0]).all()):
                p.add_(0.05 * torch.randn(p.shape, generator=g))
        for n, b in model.named_buffers():
            if n.endswith("running_mean"):
                b.add_(0.1 * torch.randn(b.shape, generator=g))
            elif n.endswith("running_var"):
                b.mul_(1 + 0.3 * torch.rand(b.shape, generator=g))
    return model


def has_bn(model):
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


# --------------------------------------------------------------------------------- torch trajectory
class Promote64(TorchFunctionMode):
    """Some library models cast to float32 by hand (RMSNorm, rotary, softmax).  In the float64 golden
    run these casts must not throw precision away, so float32 is replaced by float64 everywhere."""
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        sub = lambda a: torch.float64 if a is torch.float32 else a
        return func(*tree_map(sub, args), **tree_map(sub, kwargs))


@contextlib.contextmanager
def quiet():
    """The legacy exporter's C++ side prints whole graphs on failure; keep them off the terminal."""
    sys.stdout.flush(); sys.stderr.flush()
    keep = [os.dup(1), os.dup(2)]; null = os.open(os.devnull, os.O_WRONLY)
    sink = io.StringIO()
    try:
        os.dup2(null, 1); os.dup2(null, 2)
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield
    finally:
        os.dup2(keep[0], 1); os.dup2(keep[1], 2)
        for f in (*keep, null): os.close(f)


@contextlib.contextmanager
def precision(dtype):
    if dtype == torch.float64:
        torch.set_default_dtype(torch.float64)
        try:
            with Promote64():
                yield
        finally:
            torch.set_default_dtype(torch.float32)
    else:
        yield


def make_optimizer(params, o):
    k = {a: b for a, b in o.items() if a not in ("name",)}
    name = o["name"]
    if name == "sgd":
        return torch.optim.SGD(params, **k)
    if name == "adam":
        return torch.optim.Adam(params, **k)
    if name == "adamw":
        return torch.optim.AdamW(params, **k)
    raise ValueError(name)


def loss_of(case, out, batch):
    if isinstance(out, (tuple, list)):
        out = out[0]
    if case.loss == "graph":
        assert out.dim() == 0, out.shape
        return out
    if case.loss == "cross_entropy":
        lab = batch["labels"]
        if case.class_axis in (-1, out.dim() - 1) and out.dim() > 2:
            return F.cross_entropy(out.reshape(-1, out.shape[-1]), lab.reshape(-1))
        return F.cross_entropy(out, lab)
    if case.loss == "mse":
        return F.mse_loss(out, batch["target"])
    if case.loss == "bce_with_logits":
        return F.binary_cross_entropy_with_logits(out, batch["target"])
    raise ValueError(case.loss)


def batch_at(case, data, step, perm=None):
    n = len(next(iter(data.values())))
    assert n % case.batch_size == 0, (case.name, n)
    lo = (step * case.batch_size) % n
    sl = np.arange(lo, lo + case.batch_size)
    if perm is not None:
        sl = sl[perm.permutation(case.batch_size)]
    return {k: torch.from_numpy(np.ascontiguousarray(v[sl])) for k, v in data.items()}


def cast(batch, dtype):
    return {k: (v.to(dtype) if v.is_floating_point() else v) for k, v in batch.items()}


def biased_running_var(model):
    """ONNX's text for training_mode=1 updates running_var with the POPULATION variance; torch uses the
    unbiased one.  Returns a function that, called after a step, turns torch's update into the ONNX
    text's (used as a wrong variant only)."""
    bns = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for m in bns:
        m.register_forward_pre_hook(lambda m, a: setattr(m, "_seen", (a[0].detach(), m.running_var.clone())))
    @torch.no_grad()
    def fix():
        for m in bns:
            x, old = m._seen
            m.running_var.copy_(0.9 * old + 0.1 * x.var([d for d in range(x.dim()) if d != 1], unbiased=False))
    return fix


def train(case, model, data, dtype, opt=None, perm_seed=None, bn_eval=False, bn_momentum=None, bn_biased=False, steps=STEPS):
    """Returns dict(loss=[...], grads={torch name: first-step grad}, state={name: final tensor}, model)."""
    model = copy.deepcopy(model).to(dtype)
    model.train()
    if bn_eval or bn_momentum is not None:
        for m in model.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                if bn_eval: m.eval()
                if bn_momentum is not None: m.momentum = bn_momentum
    after = biased_running_var(model) if bn_biased else None
    perm = np.random.RandomState(perm_seed) if perm_seed is not None else None
    res = {"loss": [], "grads": {}}
    with precision(dtype):
        optim = make_optimizer(model.parameters(), opt or case.optimizer)
        for s in range(steps):
            b = cast(batch_at(case, data, s, perm), dtype)
            optim.zero_grad()
            l = loss_of(case, model(*[b[n] for n in case.inputs]), b)
            assert l.dtype == dtype, (l.dtype, dtype)
            l.backward()
            if s == 0:
                res["grads"] = {n: (p.grad.detach().clone() if p.grad is not None else None)
                                for n, p in model.named_parameters()}
            optim.step()
            if after: after()
            res["loss"].append(float(l.detach()))
    res["loss"] = np.array(res["loss"], dtype=np.float64)
    res["state"] = {n: t.detach().clone() for n, t in model.state_dict().items()}
    res["model"] = model
    return res
