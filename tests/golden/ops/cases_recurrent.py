"""RNN, GRU, LSTM: cells written out step by step in torch (gate orders of ONNX: GRU zrh, LSTM iofc)."""
import torch
import torch.nn.functional as F

from make_ops import case, const, data, f32, fixed, v, x

ACT = {"Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Relu": F.relu, "Softsign": F.softsign, "Softplus": F.softplus,
       "LeakyRelu": lambda t, a=f32(0.01), b=0: F.leaky_relu(t, a), "Affine": lambda t, a=1.0, b=0.0: a * t + b,
       "ScaledTanh": lambda t, a=1.0, b=1.0: a * torch.tanh(b * t), "Elu": lambda t, a=1.0, b=0: F.elu(t, a),
       "ThresholdedRelu": lambda t, a=1.0, b=0: F.threshold(t, a, 0.0),
       "HardSigmoid": lambda t, a=f32(0.2), b=0.5: torch.clamp(a * t + b, 0, 1)}


def rnn_cell(h, c, gates, r, rb, p, f, clip, before):
    return f[0](clip(gates + h @ r.T + rb)), None


def gru_cell(h, c, gates, r, rb, p, f, clip, before):
    wz, wr, wh = gates.chunk(3, -1)
    rz, rr, rh = r.chunk(3, 0)
    bz, br, bh = rb.chunk(3, -1)
    z = f[0](clip(wz + h @ rz.T + bz))
    g = f[0](clip(wr + h @ rr.T + br))
    n = f[1](clip(wh + (g * (h @ rh.T + bh) if before else (g * h) @ rh.T + bh)))
    return (1 - z) * n + z * h, None


def lstm_cell(h, c, gates, r, rb, p, f, clip, before):
    i, o, g, n = (gates + h @ r.T + rb).chunk(4, -1)
    pi, po, pf = p.chunk(3, -1) if p is not None else (0, 0, 0)
    i, g = f[0](clip(i + pi * c)), f[0](clip(g + pf * c))
    c = g * c + i * f[1](clip(n))
    o = f[0](clip(o + po * c))
    return o * f[2](clip(c)), c


def run(kind, t, w, r, b=None, lens=None, h0=None, c0=None, p=None, direction="forward", acts=None, clip=None, before=0,
        layout=0):
    cell, n_gates, default = {"RNN": (rnn_cell, 1, ["Tanh"]), "GRU": (gru_cell, 3, ["Sigmoid", "Tanh"]),
                              "LSTM": (lstm_cell, 4, ["Sigmoid", "Tanh", "Tanh"])}[kind]
    if layout:
        t = t.transpose(0, 1)
        h0, c0 = (None if s is None else s.transpose(0, 1) for s in (h0, c0))
    steps, batch, _ = t.shape
    hidden = r.shape[-1]
    lens = [steps] * batch if lens is None else lens.tolist()
    cut = (lambda u: torch.clamp(u, -clip, clip)) if clip else (lambda u: u)
    ys, hs, cs = [], [], []
    for d, back in enumerate({"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]):
        f = (acts[d] if acts and isinstance(acts[0], list) else acts) or [ACT[n] for n in default]
        wb, rb = b[d].chunk(2) if b is not None else (0, torch.zeros(n_gates * hidden, dtype=torch.float64))
        rows_y, rows_h, rows_c = [], [], []
        for k in range(batch):  # one sequence at a time: nothing else can leak in
            h = h0[d, k] if h0 is not None else torch.zeros(hidden, dtype=torch.float64)
            c = c0[d, k] if c0 is not None else torch.zeros(hidden, dtype=torch.float64)
            out = [torch.zeros(hidden, dtype=torch.float64)] * steps
            for s in (reversed(range(lens[k])) if back else range(lens[k])):
                h, c = cell(h, c, t[s, k] @ w[d].T + wb, r[d], rb, None if p is None else p[d], f, cut, before)
                out[s] = h
            rows_y.append(torch.stack(out))
            rows_h.append(h)
            rows_c.append(c)
        ys.append(torch.stack(rows_y, 1))
        hs.append(torch.stack(rows_h))
        if kind == "LSTM":
            cs.append(torch.stack(rows_c))
    y, h = torch.stack(ys, 1), torch.stack(hs)  # [steps, dirs, batch, hidden], [dirs, batch, hidden]
    c = torch.stack(cs) if cs else None
    if layout:
        y, h = y.permute(2, 0, 1, 3), h.transpose(0, 1)
        c = None if c is None else c.transpose(0, 1)
    return [o.contiguous() for o in (y, h, c) if o is not None]


T, B, I, H = 3, 2, 2, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
REF = "takes one direction, no lengths, no clip, one activation"
SIMPLE = ("plain", "bias", "initial", "one_step")


def recurrent(kind, form, ins=(), dirs=1, layout=0, attrs=None, time=T, opset=None, **kw):
    """ins: names among b, lens, h0, c0, p."""
    g = GATES[kind]
    outputs = 3 if kind == "LSTM" and form not in SIMPLE else 2  # the reference evaluator has no Y_c
    order = ["b", "lens", "h0"] + (["c0", "p"] if kind == "LSTM" else [])
    state = (B, dirs, H) if layout else (dirs, B, H)
    make = {"b": lambda: x(dirs, 2 * g * H, lo=-1, hi=1), "lens": lambda: data([2, time], "int32"),
            "h0": lambda: x(*state, lo=-1, hi=1), "c0": lambda: x(*state, lo=-1, hi=1),
            "p": lambda: x(dirs, 3 * H, lo=-1, hi=1)}
    inputs = [x(B, time, I) if layout else x(time, B, I), x(dirs, g * H, I, lo=-1, hi=1), x(dirs, g * H, H, lo=-1, hi=1)]
    inputs += [make[n]() if n in ins else None for n in order]
    case(kind, form, inputs,
         lambda t, w, r, *rest: run(kind, t, w, r, layout=layout, **dict(zip(order, rest)), **kw)[:outputs],
         ref=form in SIMPLE or REF, hidden_size=H, opset=opset,
         **({"layout": 1} if layout else {}), **(attrs or {}))


for kind in ("RNN", "GRU", "LSTM"):
    cell = ["c0"] if kind == "LSTM" else []
    before = {"linear_before_reset": 1} if kind == "GRU" else {}
    ba = {"before": 1} if kind == "GRU" else {}
    recurrent(kind, "plain")
    recurrent(kind, "bias", ["b"])
    recurrent(kind, "initial", ["b", "h0"] + cell)
    recurrent(kind, "reverse", ["b", "h0"] + cell, direction="reverse", attrs={"direction": "reverse"})
    recurrent(kind, "bidirectional", ["b", "h0"] + cell, dirs=2, direction="bidirectional",
              attrs={"direction": "bidirectional"})
    recurrent(kind, "lens", ["b", "lens", "h0"] + cell)
    recurrent(kind, "lens_bidirectional", ["b", "lens"], dirs=2, direction="bidirectional",
              attrs={"direction": "bidirectional"})
    recurrent(kind, "clip", ["b"], clip=0.5, attrs={"clip": 0.5})
    recurrent(kind, "batchwise", ["b", "h0"] + cell, layout=1)
    recurrent(kind, "one_step", ["b"], time=1)
    recurrent(kind, "opset7", ["b"], opset=7)
    if kind == "GRU":
        recurrent(kind, "linear_before_reset", ["b", "h0"], before=1, attrs=before)
        recurrent(kind, "linear_before_reset_bidirectional", ["b", "lens"], dirs=2, direction="bidirectional", before=1,
                  attrs={**before, "direction": "bidirectional"})
recurrent("LSTM", "peepholes", ["b", "h0", "c0", "p"])
recurrent("LSTM", "peepholes_clip_reverse", ["b", "p"], direction="reverse", clip=0.75,
          attrs={"direction": "reverse", "clip": 0.75})
recurrent("RNN", "relu", ["b"], acts=[ACT["Relu"]], attrs={"activations": ["Relu"]})
recurrent("RNN", "affine", ["b"], acts=[lambda t: 0.5 * t + 0.25],
          attrs={"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.25]})
recurrent("RNN", "leaky", ["b"], acts=[lambda t: F.leaky_relu(t, 0.25)],
          attrs={"activations": ["LeakyRelu"], "activation_alpha": [0.25]})
recurrent("RNN", "scaled_tanh", ["b"], acts=[lambda t: 1.5 * torch.tanh(0.5 * t)],
          attrs={"activations": ["ScaledTanh"], "activation_alpha": [1.5], "activation_beta": [0.5]})
recurrent("RNN", "elu", ["b"], acts=[lambda t: F.elu(t, 0.5)],
          attrs={"activations": ["Elu"], "activation_alpha": [0.5]})
recurrent("GRU", "softsign_softplus", ["b"], acts=[ACT["Softsign"], ACT["Softplus"]],
          attrs={"activations": ["Softsign", "Softplus"]})
recurrent("LSTM", "hard_sigmoid", ["b"], acts=[lambda t: torch.clamp(0.25 * t + 0.5, 0, 1), torch.tanh, ACT["Relu"]],
          attrs={"activations": ["HardSigmoid", "Tanh", "Relu"], "activation_alpha": [0.25], "activation_beta": [0.5]})
recurrent("LSTM", "two_kinds", ["b"], dirs=2, direction="bidirectional",
          acts=[[torch.sigmoid, torch.tanh, F.relu], [F.softsign, F.relu, torch.tanh]],
          attrs={"direction": "bidirectional",
                 "activations": ["Sigmoid", "Tanh", "Relu", "Softsign", "Relu", "Tanh"]})
