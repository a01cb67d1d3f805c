#!/usr/bin/env python
"""Golden training fixtures.

    python make_golden.py OUT_DIR [--only CASE ...]     (re)build all cases, or only the named ones

Needs torch, transformers, scikit-learn, onnx, onnxscript; CPU only, about six minutes in all
(most of it onnx's reference evaluator).
Everything is seeded: a second run with the same package versions writes the same numbers.
How a case is built, checked and stored is in golden_lib.py; the file formats are in README.md.
"""
import copy, dataclasses, json, os, shutil, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import golden_lib as fl
import golden_train
from golden_lib import Case, Export

HERE = os.path.dirname(os.path.abspath(__file__))


def seeded(fn, seed=0):
    def build(*a, **k):
        torch.manual_seed(seed)
        return fn(*a, **k)
    return build


# ------------------------------------------------------------------------------------------- digits
_digits = None
def digits():
    """scikit-learn's 1797 real 8x8 digits, scaled to 0..1, in a fixed shuffled order."""
    global _digits
    if _digits is None:
        from sklearn.datasets import load_digits
        d = load_digits()
        p = np.random.RandomState(0).permutation(len(d.target))
        _digits = (d.images[p] / 16.0).astype(np.float32), d.target[p].astype(np.int64)
    return _digits


class MLP(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1 = nn.Linear(64, 64); s.fc2 = nn.Linear(64, 10)
    def forward(s, x):
        return s.fc2(F.relu(s.fc1(x)))

def mlp_data():
    x, y = digits()
    return {"x": x[:640].reshape(-1, 64).copy(), "labels": y[:640].copy()}


class CNN(nn.Module):
    """LeNet-like; the first convolution keeps its (useless) bias in front of BatchNorm, as many user
    models do: its true gradient is zero.  Dropout is present with p = 0."""
    def __init__(s, c1=8, c2=16, hid=32):
        super().__init__()
        s.conv1 = nn.Conv2d(1, c1, 3, padding=1); s.bn1 = nn.BatchNorm2d(c1)
        s.conv2 = nn.Conv2d(c1, c2, 3, padding=1, bias=False); s.bn2 = nn.BatchNorm2d(c2)
        s.pool = nn.MaxPool2d(2); s.drop = nn.Dropout(0.0)
        s.fc1 = nn.Linear(c2 * 4, hid); s.fc2 = nn.Linear(hid, 10)
    def forward(s, x):
        x = s.pool(F.relu(s.bn1(s.conv1(x))))
        x = s.pool(F.relu(s.bn2(s.conv2(x))))
        return s.fc2(s.drop(F.relu(s.fc1(torch.flatten(x, 1)))))

def cnn_data():
    x, y = digits()
    return {"x": x[:320, None].copy(), "labels": y[:320].copy()}


# ------------------------------------------------------------------------------------------- resnet
class Block(nn.Module):
    def __init__(s, cin, cout, stride):
        super().__init__()
        s.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False); s.bn1 = nn.BatchNorm2d(cout)
        s.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False); s.bn2 = nn.BatchNorm2d(cout)
        s.down = None
        if stride != 1 or cin != cout:
            s.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
    def forward(s, x):
        y = s.bn2(s.conv2(F.relu(s.bn1(s.conv1(x)))))
        return F.relu(y + (x if s.down is None else s.down(x)))

class ResNetTiny(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False); s.bn = nn.BatchNorm2d(8)
        s.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2))
        s.fc = nn.Linear(32, 5)
    def forward(s, x):
        x = s.layers(F.relu(s.bn(s.stem(x))))
        return s.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))

def template_images(n, classes, c=3, hw=16, seed=0, noise=0.7):
    """Random but learnable: one smooth template per class plus noise."""
    r = np.random.RandomState(seed)
    t = np.kron(r.randn(classes, c, hw // 4, hw // 4), np.ones((1, 1, 4, 4)))
    y = r.randint(0, classes, n)
    return (t[y] + noise * r.randn(n, c, hw, hw)).astype(np.float32), y.astype(np.int64)

def resnet_data():
    x, y = template_images(160, 5)
    return {"x": x, "labels": y}


# ---------------------------------------------------------------------------------------------- gpt
def text():
    return open(os.path.join(HERE, "gpt_text.txt")).read()

CHARS = sorted(set(text()))
T_GPT = 32

class SelfAttention(nn.Module):
    """As in nanoGPT: sdpa=True uses F.scaled_dot_product_attention, False the written-out form with
    a lower-triangular mask buffer, masked_fill(-inf) and softmax.  Same function, same parameters."""
    def __init__(s, c, h, t, sdpa):
        super().__init__()
        s.h, s.sdpa = h, sdpa
        s.c_attn = nn.Linear(c, 3 * c); s.c_proj = nn.Linear(c, c)
        if not sdpa:
            s.register_buffer("mask", torch.tril(torch.ones(t, t)).view(1, 1, t, t), persistent=False)
    def forward(s, x):
        B, T, C = x.size()
        q, k, v = s.c_attn(x).split(C, dim=2)
        q, k, v = (z.view(B, T, s.h, C // s.h).transpose(1, 2) for z in (q, k, v))
        if s.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / (k.size(-1) ** 0.5))
            att = att.masked_fill(s.mask[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        return s.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

class GPTBlock(nn.Module):
    def __init__(s, c, h, t, sdpa):
        super().__init__()
        s.ln_1 = nn.LayerNorm(c); s.attn = SelfAttention(c, h, t, sdpa)
        s.ln_2 = nn.LayerNorm(c); s.c_fc = nn.Linear(c, 4 * c); s.c_proj = nn.Linear(4 * c, c)
    def forward(s, x):
        x = x + s.attn(s.ln_1(x))
        return x + s.c_proj(F.gelu(s.c_fc(s.ln_2(x))))

class GPT(nn.Module):
    def __init__(s, sdpa=True, c=32, h=2, layers=2, t=T_GPT, zero_bias=False):
        super().__init__()
        s.wte = nn.Embedding(len(CHARS), c); s.wpe = nn.Embedding(t, c)
        s.h = nn.ModuleList(GPTBlock(c, h, t, sdpa) for _ in range(layers))
        s.ln_f = nn.LayerNorm(c)
        s.lm_head = nn.Linear(c, len(CHARS), bias=False)
        nn.init.normal_(s.wte.weight, std=0.1); nn.init.normal_(s.wpe.weight, std=0.1)
        s.lm_head.weight = s.wte.weight          # tied
        if zero_bias:                            # nanoGPT's own initialisation
            for m in s.modules():
                if isinstance(m, nn.Linear) and m.bias is not None: nn.init.zeros_(m.bias)
    def forward(s, idx):
        x = s.wte(idx) + s.wpe(torch.arange(idx.size(1), device=idx.device))
        for b in s.h:
            x = b(x)
        return s.lm_head(s.ln_f(x))

def gpt_data():
    ids = np.array([CHARS.index(c) for c in text()], dtype=np.int64)
    r = np.random.RandomState(0)
    st = r.permutation(np.linspace(0, len(ids) - T_GPT - 2, 160).astype(int))
    return {"idx": np.stack([ids[i:i + T_GPT] for i in st]), "labels": np.stack([ids[i + 1:i + 1 + T_GPT] for i in st])}


# --------------------------------------------------------------------------------------------- bert
class Bert(nn.Module):
    def __init__(s, attn="sdpa"):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification
        s.bert_cls = BertForSequenceClassification(BertConfig(
            vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
            max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            num_labels=3, attn_implementation=attn))
    def forward(s, input_ids, attention_mask):
        return s.bert_cls(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]

def bert_data(n=160, t=16):
    """Random tokens 10..95; one marker token (1, 2 or 3) somewhere among the unpadded positions gives
    the class.  Token 0 pads; attention_mask is 0 there."""
    r = np.random.RandomState(1)
    ids, mask, y = r.randint(10, 96, (n, t)), np.zeros((n, t), int), r.randint(0, 3, n)
    for i in range(n):
        L = r.randint(t // 2, t + 1)
        mask[i, :L] = 1; ids[i, L:] = 0
        ids[i, r.randint(0, L)] = 1 + y[i]
    return {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64), "labels": y.astype(np.int64)}


# --------------------------------------------------------------------------------------------- lstm
class LSTMTags(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(40, 16); s.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True); s.fc = nn.Linear(32, 7)
    def forward(s, tokens):
        return s.fc(s.lstm(s.emb(tokens))[0])

def lstm_data(n=160, t=12):
    """Tag of a position = (token + previous token) mod 7, so the recurrence is needed."""
    r = np.random.RandomState(2)
    x = r.randint(0, 40, (n, t)); p = np.pad(x[:, :-1], ((0, 0), (1, 0)))
    return {"tokens": x.astype(np.int64), "labels": ((x + p) % 7).astype(np.int64)}


# -------------------------------------------------------------------------------------- autoencoder
class AutoEncoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.e1 = nn.Conv2d(1, 8, 3, 2, 1); s.e2 = nn.Conv2d(8, 16, 3, 2, 1)
        s.d1 = nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1); s.up = nn.Upsample(scale_factor=2, mode="nearest")
        s.d2 = nn.Conv2d(8, 1, 3, 1, 1)
    def forward(s, x):
        z = torch.tanh(s.e2(F.leaky_relu(s.e1(x), 0.1)))
        return torch.sigmoid(s.d2(s.up(F.relu(s.d1(z)))))

def ae_data():
    x, _ = digits()
    x = x[:320, None].copy()
    return {"x": x, "target": x.copy()}


# --------------------------------------------------------------------------------------- regression
class RegressionMulti(nn.Module):
    def __init__(s):
        super().__init__()
        s.fa = nn.Linear(6, 16); s.fb = nn.Linear(4, 8); s.f1 = nn.Linear(24, 16); s.f2 = nn.Linear(16, 2)
    def forward(s, a, b):
        h = torch.cat([torch.tanh(s.fa(a)), F.elu(s.fb(b))], dim=1)
        return s.f2(F.softplus(s.f1(h)))

def reg_data(n=320):
    r = np.random.RandomState(3)
    a, b = r.randn(n, 6), r.randn(n, 4)
    t = np.stack([np.sin(a[:, 0]) + b[:, 0] * a[:, 1], np.abs(b[:, 1]) - 0.5 * a[:, 2:4].sum(1)], 1) + 0.05 * r.randn(n, 2)
    return {"a": a.astype(np.float32), "b": b.astype(np.float32), "target": t.astype(np.float32)}


# -------------------------------------------------------------------------------------------- cases
def op_files():
    """Older and newer opsets: the legacy exporter up to 17 and once at its maximum 20, dynamo from 18."""
    return [Export("model_op13.onnx", "torchscript", 13), Export("model_op15.onnx", "torchscript", 15),
            Export("model_op18.onnx", "dynamo", 18, optimize=False), Export("model_op20.onnx", "dynamo", 20, optimize=False),
            Export("model_op20_ts.onnx", "torchscript", 20)]

def bert_op_files():
    eager = seeded(lambda: Bert("eager"))
    return [Export("model_op13.onnx", "torchscript", 13, build=eager, note="attn_implementation=eager"),
            Export("model_op15.onnx", "torchscript", 15), Export("model_op18.onnx", "dynamo+safe", 18), Export("model_op20.onnx", "dynamo+safe", 20),
            Export("model_op20_ts.onnx", "torchscript", 20), Export("model_eager.onnx", "dynamo+safe", build=eager, note="attn_implementation=eager"),
            Export("model_ts_folded.onnx", "torchscript", 17, constant_folding=True, note="the legacy exporter's own default: do_constant_folding=True")]

CASES = [
    Case("mlp_digits", "MLP 64-64-10 with ReLU on real 8x8 digits.", seeded(MLP), mlp_data, ["x"], "cross_entropy",
         dict(name="sgd", lr=0.05, momentum=0.9), 32,
         extra=[Export("model_ts_folded.onnx", "torchscript", 17, constant_folding=True)]),
    Case("cnn_digits", "LeNet-like: 2x(Conv3x3, BatchNorm, ReLU, MaxPool), Dropout p=0, two Linear; real 8x8 digits. 320 samples: batches wrap around after 10 steps.",
         seeded(CNN), cnn_data, ["x"], "cross_entropy", dict(name="sgd", lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01), 32,
         extra=op_files() + [Export("model_trainmode.onnx", "torchscript", 17, training=True,
                                    note="training=TrainingMode.TRAINING: BatchNormalization training_mode=1 with 3 outputs, Dropout kept")],
         notes=["conv1.bias stands before BatchNorm: its true gradient is 0, only rounding noise is left (see per_tensor)."]),
    Case("resnet_tiny", "Three basic residual blocks (stride 1, 2, 2; 1x1 projections), BatchNorm, global average pool; 3x16x16 images made from class templates plus noise.",
         seeded(ResNetTiny), resnet_data, ["x"], "cross_entropy", dict(name="sgd", lr=0.05, momentum=0.9, weight_decay=0.01), 16),
    Case("gpt_tiny", "nanoGPT-like, 2 layers, 2 heads, width 32, causal attention through F.scaled_dot_product_attention, LayerNorm, exact GELU, head tied to the token embedding; characters of gpt_text.txt.",
         seeded(GPT), gpt_data, ["idx"], "cross_entropy", dict(name="adamw", lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), 8, class_axis=-1,
         extra=[Export("model_manual.onnx", "dynamo+safe", build=seeded(lambda: GPT(False)), note="attention written out with mask buffer, masked_fill(-inf), softmax: same function, same golden"),
                Export("model_manual_ts.onnx", "torchscript", 17, build=seeded(lambda: GPT(False)), note="the same through the legacy exporter"),
                Export("model_op23.onnx", "dynamo+safe", 23, note="from opset 23 the exporter uses the Attention operator"),
                Export("model_ts_folded.onnx", "torchscript", 17, constant_folding=True, note="the legacy exporter's own default: do_constant_folding=True")],
         notes=["wte.weight is used twice: Gather at the input, (transposed) MatMul at the output; its gradient is the sum of both uses."]),
    Case("bert_tiny", "transformers BertForSequenceClassification, 2 layers, width 64, 2 heads, dropout 0, padding through attention_mask; the class is given by a marker token.",
         seeded(Bert), bert_data, ["input_ids", "attention_mask"], "cross_entropy",
         dict(name="adamw", lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05), 16, extra=bert_op_files(),
         notes=["key biases have a true gradient of 0 (softmax does not see a constant shift): with Adam their float32 noise is amplified, see per_tensor."]),
    Case("lstm_tags", "Embedding, bidirectional LSTM, Linear per position; tag = (token + previous token) mod 7.",
         seeded(LSTMTags), lstm_data, ["tokens"], "cross_entropy", dict(name="adam", lr=0.03, betas=(0.9, 0.999), eps=1e-8), 16, class_axis=-1),
    Case("autoencoder_conv", "Conv stride 2 twice, ConvTranspose, nearest Upsample, Conv, Sigmoid; reconstructs real digits, mse. Adam with L2 weight decay.",
         seeded(AutoEncoder), ae_data, ["x"], "mse", dict(name="adam", lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01), 32, outputs=["recon"]),
    Case("regression_multi", "Two inputs, each through its own Linear, Concat, two more Linear; tanh, ELU, Softplus; two targets, mse; plain SGD with weight decay.",
         seeded(RegressionMulti), reg_data, ["a", "b"], "mse", dict(name="sgd", lr=0.05, weight_decay=0.01), 32, outputs=["pred"]),
]

# The same models with untouched default initial values (scales 1, biases 0, running statistics 0/1).
# Both exporters then merge equal tensors, and dynamo's optimizer drops all-zero biases: see `problems`.
_cnn = next(c for c in CASES if c.name == "cnn_digits")
_gpt = next(c for c in CASES if c.name == "gpt_tiny")
CASES += [
    dataclasses.replace(_cnn, name="cnn_digits_defaultinit", jiggle=False, extra=[
        Export("model_trainmode.onnx", "torchscript", 17, training=True)],
        description="cnn_digits with PyTorch's untouched initial values. TRAP: in model_ts.onnx the legacy exporter has merged tensors that hold equal "
        "values (a BatchNorm scale and its running variance, its bias and its running mean) through Identity nodes. The golden run is torch's, where they are separate."),
    dataclasses.replace(_gpt, name="gpt_tiny_defaultinit", jiggle=False, build=seeded(lambda: GPT(zero_bias=True)), extra=[],
        description="gpt_tiny with nanoGPT's initial values (Linear biases 0, LayerNorm scale 1, bias 0). TRAP: model_opt.onnx, the dynamo exporter's "
        "default output, lets all LayerNorms share one scale and has lost biases; model_ts.onnx has merged equal tensors through Identity nodes. The golden run is torch's, where they are separate.", notes=[]),
]


# ------------------------------------------------------------------------------------- digits, full
def digits_full(root):
    """Fixed stratified split of all 1797 digits, a CNN of realistic size with PyTorch's own initial
    values, and the accuracy torch reaches."""
    from sklearn.model_selection import train_test_split
    out = os.path.join(root, "digits_full")
    shutil.rmtree(out, ignore_errors=True); os.makedirs(out)
    x, y = digits()
    tr, te = train_test_split(np.arange(len(y)), test_size=360, random_state=0, stratify=y)
    D = {"train": {"x": x[tr, None], "labels": y[tr]}, "test": {"x": x[te, None], "labels": y[te]}}
    for k, d in D.items():
        np.savez(os.path.join(out, k + ".npz"), **d)
    model = seeded(lambda: CNN(32, 64, 128))()
    o = dict(name="adamw", lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    case = Case("digits_full", "", None, None, ["x"], "cross_entropy", o, 32, jiggle=False)
    case._unused, case._bn = [], 2
    ex = (torch.from_numpy(D["train"]["x"][:4]),)
    files = {}
    for sp in (Export("model.onnx", "dynamo", optimize=False), Export("model_opt.onnx", "dynamo"), Export("model_safe.onnx", "dynamo+safe"), Export("model_ts.onnx", "torchscript", 17),
               Export("model_trainmode.onnx", "torchscript", 17, training=True)):
        e, _ = fl.export_and_check(case, sp, out, copy.deepcopy(model).eval(), model, D["test"], ex)
        for k in ("_map", "_multi_use"): e.pop(k, None)
        e.get("checks", {}).pop("forward_trained_max_abs_diff", None)
        files[sp.file] = e
    xt, yt = torch.from_numpy(D["train"]["x"]), torch.from_numpy(D["train"]["labels"])
    xe, ye = torch.from_numpy(D["test"]["x"]), torch.from_numpy(D["test"]["labels"])
    runs = []
    for seed in (0, 1, 2):
        m = copy.deepcopy(model); opt = golden_train.make_optimizer(m.parameters(), o); g = torch.Generator().manual_seed(seed)
        r = {"shuffle_seed": seed, "epoch_mean_train_loss": [], "epoch_test_accuracy": []}
        for ep in range(10):
            m.train(); tot = 0.0
            for idx in torch.randperm(len(yt), generator=g).split(32):     # 45 batches, the last has 29
                opt.zero_grad(); l = F.cross_entropy(m(xt[idx]), yt[idx]); l.backward(); opt.step(); tot += float(l.detach()) * len(idx)
            m.eval()
            with torch.no_grad(): acc = float((m(xe).argmax(1) == ye).double().mean())
            r["epoch_mean_train_loss"].append(tot / len(yt)); r["epoch_test_accuracy"].append(acc)
        runs.append(r)
    acc = [r["epoch_test_accuracy"][-1] for r in runs]
    g64 = golden_train.train(case, model, {k: v[:640] for k, v in D["train"].items()}, torch.float64)
    cj = {"case": "digits_full", "description": "All 1797 real digits: train.npz 1437, test.npz 360, stratified fixed split; CNN 32/64/128 with BatchNorm, PyTorch default initial values inside every file.",
          "flags": ["model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--optimizer", "adamw", "--lr", "0.001", "--weight-decay", "0.01", "--batch-size", "32", "--epochs", "10"],
          "optimizer": o, "batch_size": 32, "epochs": 10, "last_batch": "kept (29 samples)", "batchnorm": {"present": True, "training_mode": True},
          "parameters": sum(p.numel() for p in model.parameters()),
          "torch_accuracy_after_10_epochs": acc, "torch_accuracy_mean": float(np.mean(acc)), "torch_accuracy_min": min(acc), "runs": runs,
          "suggested_pass": "test accuracy >= torch_accuracy_min - 0.01 for every seed",
          "loss_first20_shuffle_none_f64": list(map(float, g64["loss"])),
          "note": "loss_first20_shuffle_none_f64: file order, first 640 training samples, same AdamW, float64 torch.  The seeds shuffle the data only; the initial weights are those in the file.",
          "files": files}
    json.dump(fl.jsonable(cj), open(os.path.join(out, "case.json"), "w"), indent=1)
    print(f"[digits_full] params={cj['parameters']} accuracy={acc}")
    for f, e in files.items(): print("   ", f, e.get("failed") or (e["golden_applies"], e.get("problems"), e.get("identity_of_initializer"), e["checks"]))


if __name__ == "__main__":
    fl.main(CASES, __doc__, {"digits_full": digits_full})
