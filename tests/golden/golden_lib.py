"""Builds a golden case. A case is a small PyTorch model + a data set + an optimizer setting; this file
  1. exports the model, with its INITIAL weights inside, through the two PyTorch ONNX exporters,
  2. trains the PyTorch model for 20 steps in float64 (the golden run) and in float32 (to measure
     how far honest float32 arithmetic may drift from it),
  3. checks every exported file (onnx.checker, and onnx.reference.ReferenceEvaluator against torch,
     with the initial weights AND with the trained weights put into the file's initializers),
  4. writes model files, train.npz, golden.npz and case.json.
See README.md for the file formats. Nothing here needs a GPU or onnxruntime.
"""
from __future__ import annotations

import argparse, copy, json, math, os, shutil, sys, time, traceback, warnings

warnings.filterwarnings("ignore")
import numpy as np
import onnx
import torch
import torch.nn as nn

import golden_check
from golden_export import (all_nodes, analyse, apply_transform, check_file, consumers, directional_check, export_one, flags_for,
                           graph_io, recurrent_composites)
from golden_train import STEPS, Case, Export, has_bn, jiggle, train


# --------------------------------------------------------------------------- tolerances and variants
def rel_max(a, ref):
    d = np.max(np.abs(ref)) if ref.size else 0.0
    return float(np.max(np.abs(a - ref)) / d) if d > 0 else (0.0 if not np.any(a) else math.inf)


def upd_rel(after, ref_after, before):
    d = np.linalg.norm((ref_after - before).ravel())
    e = np.linalg.norm((after - ref_after).ravel())
    return float(e / d) if d > 0 else (0.0 if e == 0 else math.inf)


def wrong_variants(case, model, data, g64):
    """Typical mistakes, trained in float64: how far do they move the numbers?  (A tolerance is only
    worth something if it is smaller than that.)"""
    o = case.optimizer
    v = {"lr +1%": dict(opt={**o, "lr": o["lr"] * 1.01})}
    if o.get("weight_decay"): v["no weight decay"] = dict(opt={**o, "weight_decay": 0.0})
    if o.get("momentum"):
        v["no momentum"] = dict(opt={**o, "momentum": 0.0, "nesterov": False})
        v["nesterov flipped"] = dict(opt={**o, "nesterov": not o.get("nesterov", False)})
    if o["name"] == "adam" and o.get("weight_decay"): v["decoupled instead of L2 decay"] = dict(opt={**o, "name": "adamw"})
    if o["name"] == "adamw" and o.get("weight_decay"): v["L2 instead of decoupled decay"] = dict(opt={**o, "name": "adam"})
    if has_bn(model):
        v["BN uses running statistics"] = dict(bn_eval=True)
        v["BN momentum 0.9 instead of 0.1"] = dict(bn_momentum=0.9)
        v["BN running variance biased (the ONNX text)"] = dict(bn_biased=True)
    return {k: train(case, model, data, torch.float64, **kw) for k, kw in v.items()}


# ------------------------------------------------------------------------------------------ build it
def jsonable(x):
    if isinstance(x, dict): return {k: jsonable(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)): return [jsonable(v) for v in x]
    if isinstance(x, (np.floating,)): return float(x)
    if isinstance(x, (np.integer,)): return int(x)
    if isinstance(x, float) and not math.isfinite(x): return repr(x)
    return x


def export_and_check(case, spec, out, model0, trained32, data, example):
    spec.path = os.path.join(out, spec.file)
    e = {"exporter": spec.exporter}
    if spec.exporter == "dynamo": e["optimize"] = spec.optimize
    elif spec.exporter == "dynamo+safe": e["note"] = "optimize=False, then onnxscript's optimizer with the parameters disguised as graph inputs (safe_optimize in golden_lib.py)"
    else: e.update(do_constant_folding=spec.constant_folding, training=spec.training)
    if spec.note: e["note"] = spec.note + ("; " + e["note"] if "note" in e else "")
    if os.path.exists(spec.path): os.remove(spec.path)
    try:
        export_one(case, spec, model0, example)
    except Exception as ex:
        if os.path.exists(spec.path): os.remove(spec.path)
        e["failed"] = f"{type(ex).__name__}: {str(ex).strip()[:1500]}"
        return e, None
    mp = onnx.load(spec.path)
    info = analyse(mp, model0)
    for c in list(info["missing"]):
        if case._unused and c in case._unused: info["missing"].remove(c)
    ins, outs = graph_io(mp)
    e.update(opset={o.domain or "ai.onnx": o.version for o in mp.opset_import}, ir_version=mp.ir_version,
             inputs=ins, outputs=outs, nodes=sum(info["ops"].values()), ops=info["ops"],
             functions=[f.name for f in mp.functions], initializers=len(mp.graph.initializer))
    e["checks"] = check_file(case, mp, info, model0, trained32, data, spec.training)
    problems = []
    if info["missing"]: problems.append("parameters without an initializer of their own: " + ", ".join(info["missing"]))
    if case._bn and info["missing_buffers"]: problems.append("running statistics missing: " + ", ".join(info["missing_buffers"]))
    nbn = info["ops"].get("BatchNormalization", 0)
    if nbn < case._bn: problems.append(f"BatchNormalization nodes: {nbn} of {case._bn} (folded into Conv weights)")
    if info["multi"]: problems.append("one torch tensor became several initializers (a tie is lost): " + json.dumps(info["multi"]))
    for k in ("forward_initial_max_abs_diff", "forward_trained_max_abs_diff"):
        v = e["checks"][k]
        if not isinstance(v, str) and v > 1e-3: problems.append(f"{k} = {v:.3g}")
    e["golden_applies"] = not problems
    if problems: e["problems"] = problems
    if info["params_inside_Constant_nodes"]: e["params_inside_Constant_nodes"] = info["params_inside_Constant_nodes"]
    if info["identity_of_initializer"]: e["identity_of_initializer"] = info["identity_of_initializer"]
    if info["float_constants"]: e["float_constant_initializers"] = info["float_constants"]
    e["_map"] = info["mapping"]
    if info["composites"]: e["recurrent_composites"] = info["composites"]
    used = consumers(mp)
    e["_multi_use"] = {n: used[n] for n in info["mapping"] if used[n] > 1}
    return e, mp


def build_case(case, root):
    t0 = time.time()
    out = os.path.join(root, case.name)
    shutil.rmtree(out, ignore_errors=True); os.makedirs(out)
    model = case.build()
    if case.jiggle: jiggle(model)
    data = case.data()
    for k, v in data.items():
        assert v.dtype in (np.float32, np.int64, np.bool_), (k, v.dtype)
    np.savez(os.path.join(out, "train.npz"), **data)

    # --- golden runs
    g64 = train(case, model, data, torch.float64)
    runs32 = [train(case, model, data, torch.float32)]
    if case.permutable:       # other rounding orders of the same mathematics
        runs32 += [train(case, model, data, torch.float32, perm_seed=s) for s in (1, 2)]
    case._unused = sorted(n for n, g in g64["grads"].items() if g is None)
    case._bn = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())

    # --- exports: take the exporter's default (optimize=True) if it keeps every parameter intact,
    #     otherwise optimize=False; the other one is written too, under a telling name.
    example = tuple(torch.from_numpy(data[n][:4].copy()) for n in case.inputs)
    model0 = copy.deepcopy(model).eval()
    trained32 = copy.deepcopy(model)
    trained32.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in g64["state"].items()})
    files = {}
    opt_e, _ = export_and_check(case, Export("model_opt.onnx", "dynamo", optimize=True), out, model0, trained32, data, example)
    raw_e, _ = export_and_check(case, Export("model_noopt.onnx", "dynamo", optimize=False), out, model0, trained32, data, example)
    def ren(a, b):
        if os.path.exists(os.path.join(out, a)): os.replace(os.path.join(out, a), os.path.join(out, b))
    if opt_e.get("golden_applies") and not opt_e.get("recurrent_composites"):
        ren("model_opt.onnx", "model.onnx"); files["model.onnx"] = opt_e; files["model_noopt.onnx"] = raw_e
    elif "failed" not in raw_e:
        ren("model_noopt.onnx", "model.onnx"); files["model.onnx"] = raw_e; files["model_opt.onnx"] = opt_e
    else:
        files["model_opt.onnx"] = opt_e; files["model_noopt.onnx"] = raw_e
    files["model_ts.onnx"], _ = export_and_check(
        case, Export("model_ts.onnx", "torchscript", opset=case.ts_opset, build=case.ts_build), out, model0, trained32, data, example)
    files["model_safe.onnx"], _ = export_and_check(case, Export("model_safe.onnx", "dynamo+safe"), out, model0, trained32, data, example)
    for sp in case.extra:
        files[sp.file], _ = export_and_check(case, sp, out, model0, trained32, data, example)

    primary = next((f for f in ("model.onnx", "model_ts.onnx", "model_opt.onnx", "model_noopt.onnx")
                    if files.get(f, {}).get("golden_applies")), None)
    if primary is None:
        primary = next(f for f in files if "_map" in files[f])
    pmap = files[primary]["_map"]
    try:
        dcheck = directional_check(case, onnx.load(os.path.join(out, primary)), files[primary], data, g64["grads"], bool(case._bn))
    except Exception as ex:
        dcheck = {"error": f"{type(ex).__name__}: {str(ex)[:400]}"}
    t2p = {}
    for n, e in pmap.items(): t2p.setdefault(e["torch"], n)

    # --- golden.npz, keyed by the primary file's initializer names, in that initializer's layout
    init = {n: t.detach().numpy().astype(np.float64) for n, t in model.state_dict().items() if t.is_floating_point()}
    fin = {n: t.numpy() for n, t in g64["state"].items() if t.is_floating_point()}
    trainable = [n for n, p in model.named_parameters() if p.requires_grad and n not in case._unused]
    gold = {"loss": g64["loss"], "loss_f32": runs32[0]["loss"]}
    per, left_out = {}, []
    gscale = max(float(g.abs().max()) for g in g64["grads"].values() if g is not None)
    loss_err = max(float(np.max(np.abs(r["loss"] - g64["loss"]) / np.abs(g64["loss"]))) for r in runs32)
    for n in trainable + [b for b in init if b.rsplit(".", 1)[-1] in ("running_mean", "running_var")]:
        if n not in t2p: left_out.append(n); continue
        key, tr = t2p[n], pmap[t2p[n]]["transform"]
        rec = {}
        if n in trainable:
            g = g64["grads"][n].numpy()
            gold["grad/" + key] = apply_transform(tr, g).astype(np.float32)
            ge = max(rel_max(r["grads"][n].numpy().astype(np.float64), g) for r in runs32)
            rec["grad_max"] = float(np.max(np.abs(g))); rec["grad_err_f32"] = ge
            if rec["grad_max"] < 1e-9 * gscale or ge > 0.05:
                rec["grad_check"] = "absolute"; rec["grad_atol"] = max(1e-6 * gscale, 10 * ge * rec["grad_max"] if math.isfinite(ge) else 0)
            else:
                rec["grad_check"] = "relative"; rec["grad_rtol"] = max(1e-4, 10 * ge)
        gold["param_after/" + key] = apply_transform(tr, fin[n]).astype(np.float32)
        ue = max(upd_rel(r["state"][n].numpy().astype(np.float64), fin[n], init[n]) for r in runs32)
        rec["update_err_f32"] = ue
        rec["update_norm"] = float(np.linalg.norm((fin[n] - init[n]).ravel()))
        if ue > 0.03: rec["update_check"] = False
        else: rec["update_check"] = True; rec["update_rtol"] = max(5e-4 if n in trainable else 1e-4, 10 * ue)
        per[key] = rec
    np.savez(os.path.join(out, "golden.npz"), **gold)
    for f, e in files.items():
        if e.get("recurrent_composites") and e["golden_applies"] and f != primary:
            extra = {"loss": g64["loss"], "loss_f32": runs32[0]["loss"]}
            gst = {n: g for n, g in g64["grads"].items() if g is not None}
            cg, cp = recurrent_composites(model, gst), recurrent_composites(model, g64["state"])
            for name, c in e["recurrent_composites"].items():
                extra["grad/" + name] = cg[c["onnx_recurrent_tensor"]][0].astype(np.float32)
                extra["param_after/" + name] = cp[c["onnx_recurrent_tensor"]][0].astype(np.float32)
            for name, x in e["_map"].items():
                if x["torch"] in gst: extra["grad/" + name] = apply_transform(x["transform"], gst[x["torch"]].numpy()).astype(np.float32)
                extra["param_after/" + name] = apply_transform(x["transform"], fin[x["torch"]]).astype(np.float32)
            # a rearranged tensor is held to the loosest tolerance of the tensors it is made of
            e["per_tensor"] = {}
            for name, c in e["recurrent_composites"].items():
                ps = [per[t2p[q]] for q in c["torch_parts"]]
                e["per_tensor"][name] = {
                    "grad_check": "relative", "grad_rtol": max(q.get("grad_rtol", 0) for q in ps), "update_check": all(q["update_check"] for q in ps),
                    "update_rtol": max(q.get("update_rtol", 0) for q in ps), "update_norm": math.sqrt(sum(q["update_norm"] ** 2 for q in ps))}
            e["golden_file"] = "golden." + f.replace(".onnx", ".npz")
            np.savez(os.path.join(out, e["golden_file"]), **extra)
    loss_rtol = max(1e-5, 10 * loss_err)

    # --- sensitivity to typical mistakes
    variants = {}
    for k, r in wrong_variants(case, model, data, g64).items():
        dl = float(np.max(np.abs(r["loss"] - g64["loss"]) / np.abs(g64["loss"])))
        worst, who = 0.0, None
        for key, rec in per.items():
            if rec["update_check"]:
                n = pmap[key]["torch"]
                ratio = upd_rel(r["state"][n].numpy(), fin[n], init[n]) / rec["update_rtol"]
                if ratio > worst: worst, who = ratio, key
        variants[k] = {"loss_max_rel_diff": dl, "loss_catches": bool(dl > loss_rtol),
                       "update_worst_ratio_to_tolerance": worst, "tensor": who, "caught": bool(dl > loss_rtol or worst > 1)}

    # --- names in the other files
    fjson = {}
    for f, e in files.items():
        e = dict(e); m = e.pop("_map", None); mu = e.pop("_multi_use", {})
        if m is not None:
            im = {}
            for name, x in m.items():
                gk = t2p.get(x["torch"])
                im[name] = gk if x["transform"] == "identity" and pmap.get(gk, {}).get("transform") == "identity" \
                    else {"golden": gk, "torch": x["torch"], "torch_to_initializer": x["transform"],
                          "golden_layout": pmap.get(gk, {}).get("transform"), "torch_shape": list(init[x["torch"]].shape)}
            if f == primary:
                e["initializer_names"] = "these are the golden names"
                tr = {n: x["transform"] for n, x in m.items() if x["transform"] != "identity"}
                if tr: e["torch_to_initializer"] = tr
                ren_ = {n: x["torch"] for n, x in m.items() if x["torch"] != n}
                if ren_: e["torch_names_that_differ"] = ren_
            elif all(k == v for k, v in im.items()) and set(im.values()) >= {k for k in per}:
                e["initializer_names"] = "same as the golden names"
            else:
                e["initializer_map"] = im
            if mu: e["parameters_used_by_several_nodes"] = mu
        fjson[f] = e
    nparams = sum(p.numel() for p in model.parameters())
    cj = {
        "case": case.name, "description": case.description, "golden_from": primary,
        "flags": flags_for(case, primary), "loss": case.loss,
        "loss_detail": {"cross_entropy": f"mean over all label positions; logits class axis = {case.class_axis}",
                        "mse": "mean over all elements; array `target`", "bce_with_logits": "mean over all elements; array `target` in {0,1} (float)",
                        "graph": f"the graph's first output `{case.outputs[0]}` is the scalar loss"}[case.loss],
        **({"class_axis": case.class_axis} if case.loss == "cross_entropy" else {}),
        "optimizer": case.optimizer, "steps": STEPS, "batch_size": case.batch_size,
        "samples": len(next(iter(data.values()))), "shuffle": "none",
        "arrays": {k: {"dtype": str(v.dtype), "shape": list(v.shape)} for k, v in data.items()},
        "batchnorm": {"present": bool(case._bn), "training_mode": bool(case._bn),
                      "detail": "batch statistics (biased variance) normalise; running = 0.9*running + 0.1*batch, with the UNBIASED batch variance; ONNX attribute momentum is 0.9"} if case._bn else {"present": False, "training_mode": False},
        "dropout": "p = 0 everywhere", "parameters": nparams,
        "aliases": analyse_alias(model), "unused_parameters": case._unused, "trainable": [t2p[n] for n in trainable if n in t2p],
        "left_out_of_golden": left_out,
        "tolerances": {
            "loss_rtol": loss_rtol, "loss_max_rel_err_f32": loss_err,
            "how": f"max over {len(runs32)} float32 torch runs (file order" + (" and two reorderings inside each batch" if case.permutable else "") +
                   ") of the distance to the float64 run, times 10, never below: loss 1e-5, grad 1e-4, update 5e-4 (running statistics 1e-4)",
            "grad": "relative: max|g-ref| <= grad_rtol*max|ref|; absolute: max|g-ref| <= grad_atol (true gradient is zero or lost in rounding)",
            "update": "||p_after-ref_after||_2 <= update_rtol*||ref_after-p_initial||_2, skipped where update_check is false (float32 rounding decides the direction there)",
            "per_tensor": per},
        "directional_derivative_check": dcheck, "wrong_variants": variants,
        "notes": case.notes, "files": fjson,
        "versions": {"torch": torch.__version__, "onnx": onnx.__version__},
    }
    with open(os.path.join(out, "case.json"), "w") as f:
        json.dump(jsonable(cj), f, indent=1)
    self_test(out, files, runs32[0], model)
    print(f"[{case.name}] primary={primary} params={nparams} loss {g64['loss'][0]:.4f}->{g64['loss'][-1]:.4f} "
          f"f32err={loss_err:.2e} dirderiv={dcheck.get('relative_difference', dcheck)} uncaught={[k for k, v in variants.items() if not v['caught']]} {time.time()-t0:.1f}s", flush=True)
    for f, e in fjson.items():
        if "failed" in e: print(f"    {f}: FAILED {e['failed'][:200]}")
        else:
            c = e["checks"]
            print(f"    {f}: golden={e['golden_applies']} nodes={e['nodes']} opset={e['opset']} checker={c['onnx_checker'][:80]} "
                  f"fwd={c['forward_initial_max_abs_diff']} trained={c['forward_trained_max_abs_diff']} b3={c['batch3_max_abs_diff']} {e.get('problems', '')}")
    return cj


def self_test(out, files, run, model):
    """golden_check.py must accept torch's own float32 run under every file's names and layouts, and must
    reject parameters that never moved."""
    gst = {n: g for n, g in run["grads"].items() if g is not None}
    for f, e in files.items():
        if not e.get("golden_applies"): continue
        def arrays(src):
            d = {n: apply_transform(x["transform"], src[x["torch"]].numpy()) for n, x in e["_map"].items() if x["torch"] in src}
            if e.get("recurrent_composites"):
                c = recurrent_composites(model, src)
                d.update({n: c[x["onnx_recurrent_tensor"]][0] for n, x in e["recurrent_composites"].items()})
            return d
        r = golden_check.compare(out, f, run["loss"], arrays(gst), arrays(run["state"]))
        bad = [x for x in r if not x[3]]
        assert r and not bad, (f, bad[:5])
        still = golden_check.compare(out, f, None, None, arrays(model.state_dict()))
        assert not any(x[3] for x in still), (f, [x for x in still if x[3]][:5])


def analyse_alias(model):
    seen, al = {}, {}
    for n, t in model.state_dict(keep_vars=True).items():
        if isinstance(t, nn.Parameter):
            if t.data_ptr() in seen: al[n] = seen[t.data_ptr()]
            else: seen[t.data_ptr()] = n
    return al


def main(cases, doc, extra_steps=None):
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out_dir"); ap.add_argument("--only", action="append", default=[])
    a = ap.parse_args()
    os.makedirs(a.out_dir, exist_ok=True)
    names = [c.name for c in cases] + list(extra_steps or {})
    for n in a.only: assert n in names, f"unknown case {n}; have {names}"
    bad = []
    for c in cases:
        if a.only and c.name not in a.only: continue
        try: build_case(c, a.out_dir)
        except Exception: traceback.print_exc(); bad.append(c.name)
    for n, fn in (extra_steps or {}).items():
        if a.only and n not in a.only: continue
        try: fn(a.out_dir)
        except Exception: traceback.print_exc(); bad.append(n)
    if bad: print("FAILED:", bad); sys.exit(1)
