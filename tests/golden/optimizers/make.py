#!/usr/bin/env python3
"""Trajectories of optimizers, schedules, clipping and groups over 50 steps in float64.

    python make.py        writes cases.txt and cases.safetensors (needs torch 2.9 or later, safetensors)

Gradients are given, not computed: the same numbers (exact in float32) at every step of every case.
The witness is PyTorch: torch.optim, its lr_scheduler, clip_grad_norm_, clip_grad_value_. LAMB and
Lion are not in PyTorch: their papers' formulas in numpy. torch.optim.Muon iterates in bfloat16;
here the cast is taken out, the rest is PyTorch's. cases.txt: name, flags; the tensors CASE/PARAM
hold the parameter after steps 5 and 50, CASE/ema/PARAM its average.
"""
import math
import os

import numpy as np
import torch
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, KEPT = 50, (5, 50)
SHAPES = {"conv.weight": (4, 3, 2, 2), "fc.weight": (3, 8), "fc.bias": (5,), "out.weight": (6, 4),
          "scale": (1,)}
VECTORS = {"fc.bias", "scale"}


def zeropower(grad, ns_coefficients, ns_steps, eps):
    """torch.optim._muon._zeropower_via_newtonschulz without its cast to bfloat16."""
    a, b, c = ns_coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


torch.optim._muon._zeropower_via_newtonschulz = zeropower


class Lamb(torch.optim.Optimizer):
    """You et al. 2020 (arXiv 1904.00962v3), algorithm 2, phi the identity."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                x, g = p.numpy(), p.grad.numpy()
                t = s["t"] = s.get("t", 0) + 1
                m = s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
                v = s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
                r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + group["eps"])
                r = r + group["weight_decay"] * x
                size, move = np.sqrt((x * x).sum()), np.sqrt((r * r).sum())
                ratio = size / move if size > 0 and move > 0 else 1
                p.copy_(torch.from_numpy(x - group["lr"] * ratio * r))


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023 (arXiv 2302.06675), algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                x, g = p.numpy(), p.grad.numpy()
                m = s.get("m", np.zeros_like(g))
                update = np.sign(b1 * m + (1 - b1) * g) + group["weight_decay"] * x
                s["m"] = b2 * m + (1 - b2) * g
                p.copy_(torch.from_numpy(x - group["lr"] * update))


OPTIMIZERS = {
    "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop, "lamb": Lamb, "lion": Lion,
    "adafactor": torch.optim.Adafactor, "muon": torch.optim.Muon,
}
sched = torch.optim.lr_scheduler


def warm(steps, then=lambda s: 1.0):
    """Linear warm-up, then a factor of the step."""
    return lambda o: sched.LambdaLR(o, lambda s: (s + 1) / steps if s < steps else then(s))


CASES = []


def case(name, flags, opt, lr=1e-3, schedule=None, norm=0, value=0, ema=0, own=None, **args):
    """own(name, lr, wd) -> (lr, wd) of a parameter."""
    CASES.append(dict(name=name, flags=f"--optimizer {opt} --lr {lr} {flags}".strip(), opt=opt, lr=lr,
                      schedule=schedule, norm=norm, value=value, ema=ema, own=own, args=args))


def no_decay(name, lr, wd):
    return lr, 0 if name in VECTORS else wd


def fill_cases():
    wd = dict(weight_decay=0.1)
    w = "--weight-decay 0.1"
    case("sgd", "", "sgd", 0.1)
    case("sgd_decay", w, "sgd", 0.1, **wd)
    case("sgd_momentum", "--momentum 0.9", "sgd", 0.05, momentum=0.9)
    case("sgd_momentum_decay", f"--momentum 0.9 {w}", "sgd", 0.05, momentum=0.9, **wd)
    case("sgd_dampening", f"--momentum 0.8 --dampening 0.3 {w}", "sgd", 0.05, momentum=0.8,
         dampening=0.3, **wd)
    case("sgd_nesterov", "--momentum 0.9 --nesterov", "sgd", 0.05, momentum=0.9, nesterov=True)
    case("sgd_nesterov_decay", f"--momentum 0.9 --nesterov {w}", "sgd", 0.05, momentum=0.9,
         nesterov=True, **wd)
    case("sgd_no_decay", f"{w} --no-decay norm_bias", "sgd", 0.1, own=no_decay, **wd)

    case("adam", "", "adam", 0.01)
    case("adam_betas", "--betas 0.8,0.95", "adam", 0.01, betas=(0.8, 0.95))
    case("adam_eps", "--eps 0.001", "adam", 0.01, eps=1e-3)
    case("adam_decay", w, "adam", 0.01, **wd)
    case("adam_amsgrad", "--optimizer-args amsgrad=true", "adam", 0.01, amsgrad=True)
    case("adam_amsgrad_decay", f"--optimizer-args amsgrad=true --betas 0.5,0.6 {w}", "adam", 0.01,
         amsgrad=True, betas=(0.5, 0.6), **wd)
    case("adamw", w, "adamw", 0.01, **wd)
    case("adamw_betas", f"--betas 0.85,0.9 --eps 1e-6 {w}", "adamw", 0.01, betas=(0.85, 0.9), eps=1e-6,
         **wd)
    case("adamw_amsgrad", f"--optimizer-args amsgrad=true {w}", "adamw", 0.01, amsgrad=True, **wd)
    case("adamw_no_decay", f"{w} --no-decay norm_bias", "adamw", 0.01, own=no_decay, **wd)
    case("adamw_no_decay_regex", f"{w} --no-decay ^fc,scale", "adamw", 0.01, **wd,
         own=lambda n, lr, wd: (lr, 0 if n.startswith("fc") or n == "scale" else wd))

    case("adagrad", "", "adagrad", 0.05)
    case("adagrad_lr_decay", "--optimizer-args lr_decay=0.1", "adagrad", 0.05, lr_decay=0.1)
    case("adagrad_initial", "--optimizer-args initial_accumulator_value=0.5", "adagrad", 0.05,
         initial_accumulator_value=0.5)
    case("adagrad_eps", "--eps 0.01", "adagrad", 0.05, eps=0.01)
    case("adagrad_decay", w, "adagrad", 0.05, **wd)
    case("adagrad_all", f"--optimizer-args lr_decay=0.2,initial_accumulator_value=1 --eps 1e-4 {w}",
         "adagrad", 0.05, lr_decay=0.2, initial_accumulator_value=1, eps=1e-4, **wd)

    case("rmsprop", "", "rmsprop", 0.01)
    case("rmsprop_alpha", "--optimizer-args alpha=0.8", "rmsprop", 0.01, alpha=0.8)
    case("rmsprop_centered", "--optimizer-args centered=true", "rmsprop", 0.01, centered=True)
    case("rmsprop_momentum", "--momentum 0.9", "rmsprop", 0.003, momentum=0.9)
    case("rmsprop_centered_momentum", "--momentum 0.5 --optimizer-args centered=true,alpha=0.9",
         "rmsprop", 0.003, momentum=0.5, centered=True, alpha=0.9)
    case("rmsprop_decay", w, "rmsprop", 0.01, **wd)
    case("rmsprop_eps", "--eps 0.01", "rmsprop", 0.01, eps=0.01)

    case("lamb", "", "lamb", 0.01)
    case("lamb_decay", w, "lamb", 0.01, **wd)
    case("lamb_betas", "--betas 0.8,0.9 --eps 1e-3", "lamb", 0.01, betas=(0.8, 0.9), eps=1e-3)
    case("lamb_no_decay", f"{w} --no-decay norm_bias", "lamb", 0.01, own=no_decay, **wd)
    case("lion", "", "lion", 0.003)
    case("lion_decay", w, "lion", 0.003, **wd)
    case("lion_betas", f"--betas 0.95,0.98 {w}", "lion", 0.003, betas=(0.95, 0.98), **wd)

    case("adafactor", "", "adafactor", 0.01)
    case("adafactor_decay", w, "adafactor", 0.01, **wd)
    case("adafactor_large_lr", "", "adafactor", 0.9)
    case("adafactor_beta2", "--optimizer-args beta2_decay=-0.5", "adafactor", 0.01, beta2_decay=-0.5)
    case("adafactor_eps", "--optimizer-args eps1=0.01,eps2=2", "adafactor", 0.01, eps=(0.01, 2.0))
    case("adafactor_d", f"--optimizer-args d=2 {w}", "adafactor", 0.05, d=2.0, **wd)

    mu = dict(adjust_lr_fn="match_rms_adamw", weight_decay=0)
    case("muon", "", "muon", 0.01, **mu)
    case("muon_decay", w, "muon", 0.01, **{**mu, **wd})
    case("muon_plain", "--nesterov=false", "muon", 0.01, nesterov=False, **mu)
    case("muon_momentum", "--momentum 0.8", "muon", 0.01, momentum=0.8, **mu)
    case("muon_original", "--optimizer-args adjust_lr_fn=original", "muon", 0.01,
         adjust_lr_fn="original", weight_decay=0)
    case("muon_spectral", "--optimizer-args adjust_lr_fn=spectral_unclamped", "muon", 0.01,
         adjust_lr_fn="spectral_unclamped", weight_decay=0)
    case("muon_steps", "--optimizer-args ns_steps=3", "muon", 0.01, ns_steps=3, **mu)

    cosine = lambda o: sched.CosineAnnealingLR(o, STEPS)
    case("constant_warmup", "--warmup 10", "sgd", 0.1, warm(10))
    case("linear", "--schedule linear", "adamw", 0.01, lambda o: sched.LinearLR(o, 1, 0, STEPS),
         weight_decay=0)
    case("linear_warmup", "--schedule linear --warmup 8 --min-lr 0.01", "sgd", 0.1,
         warm(8, lambda s: 1 - 0.9 * (s - 8) / 42))
    case("cosine", "--schedule cosine", "sgd", 0.1, cosine)
    case("cosine_min", "--schedule cosine --min-lr 0.02", "sgd", 0.1,
         lambda o: sched.CosineAnnealingLR(o, STEPS, eta_min=0.02))
    case("cosine_warmup", f"--schedule cosine --warmup 5 {w}", "adamw", 0.01,
         warm(5, lambda s: (1 + math.cos(math.pi * (s - 5) / 45)) / 2), **wd)
    case("polynomial", "--schedule polynomial --schedule-args power=2", "sgd", 0.1,
         lambda o: sched.PolynomialLR(o, STEPS, power=2))
    case("polynomial_min", "--schedule polynomial --schedule-args power=0.5 --warmup 4 --min-lr 0.03",
         "sgd", 0.1, warm(4, lambda s: 0.3 + 0.7 * (1 - (s - 4) / 46) ** 0.5))
    case("step", "--schedule step --schedule-args step_size=15", "sgd", 0.1,
         lambda o: sched.StepLR(o, 15))
    case("step_gamma", "--schedule step --schedule-args step_size=7,gamma=0.7", "adamw", 0.01,
         lambda o: sched.StepLR(o, 7, gamma=0.7), weight_decay=0)
    case("step_warmup", "--schedule step --schedule-args step_size=10,gamma=0.5 --warmup 5", "sgd", 0.1,
         warm(5, lambda s: 0.5 ** ((s - 5) // 10)))
    case("one_cycle", "--schedule one_cycle", "sgd", 0.1,
         lambda o: sched.OneCycleLR(o, 0.1, total_steps=STEPS, cycle_momentum=False))
    case("one_cycle_args",
         "--schedule one_cycle --schedule-args pct_start=0.5,div_factor=10,final_div_factor=100",
         "adamw", 0.01, lambda o: sched.OneCycleLR(o, 0.01, total_steps=STEPS, cycle_momentum=False,
                                                   pct_start=0.5, div_factor=10, final_div_factor=100),
         weight_decay=0)
    case("inverse_sqrt", "--schedule inverse_sqrt --warmup 10", "adam", 0.01,
         warm(10, lambda s: math.sqrt(10 / (s + 1))))
    case("inverse_sqrt_plain", "--schedule inverse_sqrt", "sgd", 0.1,
         lambda o: sched.LambdaLR(o, lambda s: 1 / math.sqrt(s + 1)))
    case("adafactor_cosine", f"--schedule cosine {w}", "adafactor", 0.05, cosine, **wd)
    case("muon_cosine", f"--schedule cosine {w}", "muon", 0.01, cosine, **{**mu, **wd})

    case("clip_norm_sgd", "--clip-norm 1", "sgd", 0.1, norm=1)
    case("clip_norm_adamw", f"--clip-norm 2 {w}", "adamw", 0.01, norm=2, **wd)
    case("clip_norm_muon", "--clip-norm 2", "muon", 0.01, norm=2, **mu)
    case("clip_value_sgd", "--clip-value 0.5 --momentum 0.9", "sgd", 0.05, value=0.5, momentum=0.9)
    case("clip_value_adam", f"--clip-value 0.3 {w}", "adam", 0.01, value=0.3, **wd)
    case("clip_value_rmsprop", "--clip-value 0.3", "rmsprop", 0.01, value=0.3)
    case("clip_value_lion", "--clip-value 0.3", "lion", 0.003, value=0.3)
    case("clip_value_lamb", "--clip-value 0.3", "lamb", 0.01, value=0.3)
    case("clip_value_adafactor", "--clip-value 0.3", "adafactor", 0.01, value=0.3)
    case("clip_value_muon", "--clip-value 0.3", "muon", 0.01, value=0.3, **mu)
    case("clip_norm_value", "--clip-norm 3 --clip-value 0.2", "sgd", 0.1, norm=3, value=0.2)

    case("group_lr", f"{w} --group ^fc:lr=0.002", "adamw", 0.01, **wd,
         own=lambda n, lr, wd: (0.002 if n.startswith("fc") else lr, wd))
    case("group_factor", f"{w} --group weight$:lr-factor=0.1,weight-decay=0.3", "adam", 0.01, **wd,
         own=lambda n, lr, wd: (lr * 0.1, 0.3) if n.endswith("weight") else (lr, wd))
    case("group_two", f"{w} --group ^fc:lr=0.02 --group weight$:weight-decay=0,lr-factor=2", "sgd", 0.1,
         **wd, own=lambda n, lr, wd: (0.02, wd) if n.startswith("fc") else
         (lr * 2, 0) if n.endswith("weight") else (lr, wd))
    case("group_no_decay", f"--no-decay norm_bias --group ^fc:weight-decay=0.2 {w}", "lion", 0.003,
         **wd, own=lambda n, lr, wd: (lr, 0 if n in VECTORS else 0.2 if n.startswith("fc") else wd))
    case("group_frozen", "--group ^out:lr=0", "sgd", 0.1,
         own=lambda n, lr, wd: (0 if n.startswith("out") else lr, wd))
    half = lambda n, lr, wd: (lr * 0.5, 0.05) if n.startswith("out") else (lr, wd)
    g = "--group ^out:lr-factor=0.5,weight-decay=0.05"
    case("group_lamb", f"{w} {g}", "lamb", 0.01, own=half, **wd)
    case("group_adafactor", f"{w} {g}", "adafactor", 0.05, own=half, **wd)
    case("group_muon", f"{w} {g}", "muon", 0.01, own=half, **{**mu, **wd})
    case("group_rmsprop", f"{w} {g} --momentum 0.3", "rmsprop", 0.01, own=half, momentum=0.3, **wd)
    case("group_adagrad", f"{w} {g}", "adagrad", 0.05, own=half, **wd)
    case("group_schedule", f"{w} {g} --schedule cosine --warmup 5", "adamw", 0.01,
         warm(5, lambda s: (1 + math.cos(math.pi * (s - 5) / 45)) / 2), own=half, **wd)
    case("layer_decay", "--layer-lr-decay 0.5", "sgd", 0.1, own=lambda n, lr, wd: (
        lr * {"conv.weight": 0.25, "fc.weight": 0.5}.get(n, 1), wd))

    case("ema", "--ema 0.9 --momentum 0.9", "sgd", 0.05, ema=0.9, momentum=0.9)
    case("ema_long", f"--ema 0.999 {w} --schedule cosine", "adamw", 0.01, cosine, ema=0.999, **wd)
    case("ema_muon", "--ema 0.95", "muon", 0.01, ema=0.95, **mu)


def run(c, start, grads):
    params = {n: torch.nn.Parameter(torch.from_numpy(x.copy())) for n, x in start.items()}
    wd = c["args"].get("weight_decay", 0)
    own = c["own"] or (lambda n, lr, wd: (lr, wd))
    groups = {"main": [], "other": []}
    for n, p in params.items():
        lr, decay = own(n, c["lr"], wd)
        where = "other" if c["opt"] == "muon" and p.ndim != 2 else "main"
        groups[where].append(dict(params=[p], lr=lr, weight_decay=decay))
    optimizers = [OPTIMIZERS[c["opt"]](groups["main"], lr=c["lr"], **c["args"])]
    if groups["other"]:
        optimizers.append(torch.optim.AdamW(groups["other"], lr=c["lr"]))
    schedules = [c["schedule"](o) for o in optimizers] if c["schedule"] else []
    averages = {n: p.detach().clone() for n, p in params.items()}
    kept, kept_ema = {n: [] for n in params}, {n: [] for n in params}
    for t in range(STEPS):
        for n, p in params.items():
            p.grad = torch.from_numpy(grads[n][t].copy())
        if c["norm"]:
            torch.nn.utils.clip_grad_norm_(params.values(), c["norm"])
        if c["value"]:
            torch.nn.utils.clip_grad_value_(params.values(), c["value"])
        for o in optimizers:
            o.step()
        for s in schedules:
            s.step()
        decay = min(c["ema"], (1 + t) / (10 + t))
        for n, p in params.items():
            averages[n].lerp_(p.detach(), 1 - decay)
            if t + 1 in KEPT:
                kept[n].append(p.detach().numpy().copy())
                kept_ema[n].append(averages[n].numpy().copy())
    return kept, kept_ema if c["ema"] else {}


def main():
    rng = np.random.default_rng(5)
    exact = lambda x: np.asarray(x, dtype=np.float32).astype(np.float64)
    start = {n: exact(rng.normal(size=s)) for n, s in SHAPES.items()}
    # A drift per element, noise, and a few exact zeros.
    grads = {n: exact(rng.normal(size=(1, *s)) * 0.5 + rng.normal(size=(STEPS, *s)))
             for n, s in SHAPES.items()}
    grads["fc.bias"][:, 2] = 0
    grads["out.weight"][:3, 1] = 0
    fill_cases()
    out = {f"start/{n}": x for n, x in start.items()}
    out.update({f"grads/{n}": x.astype(np.float32) for n, x in grads.items()})
    for c in CASES:
        kept, kept_ema = run(c, start, grads)
        for n in SHAPES:
            out[f"{c['name']}/{n}"] = np.stack(kept[n])
            if kept_ema:
                out[f"{c['name']}/ema/{n}"] = np.stack(kept_ema[n])
    assert all(np.isfinite(x).all() for x in out.values())
    save_file(out, os.path.join(HERE, "cases.safetensors"))
    with open(os.path.join(HERE, "cases.txt"), "w") as f:
        for c in CASES:
            f.write(f"{c['name']} {c['flags']}\n")
    print(len(CASES), "cases")


if __name__ == "__main__":
    main()
