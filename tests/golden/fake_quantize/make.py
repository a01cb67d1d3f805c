# Writes values.txt: PyTorch's fake quantization and its gradients, for tests/ops/fake_quantize_test.cc.
# A case is a line "case NAME TYPE AXIS DIMS..." and one line per array: x dy scale zero y dx dscale.
# dx is from torch.fake_quantize_per_*_affine, dscale from torch._fake_quantize_learnable_per_*_affine
# with a gradient factor of 1 (their dx must agree, which is checked here).
import torch

torch.manual_seed(1)
TYPES = {"u8": (0, 255), "i8": (-128, 127), "u4": (0, 15), "i4": (-8, 7)}

with open("values.txt", "w") as out:
    def array(name, t):
        print(name, *(repr(float(v)) for v in t.flatten()), file=out)

    for name, kind, axis, dims, scales, zeros in [
        ("tensor_u8", "u8", None, (4, 25), [0.02], [100]),
        ("tensor_i8", "i8", None, (4, 25), [0.011], [0]),
        ("tensor_i4_shifted", "i4", None, (4, 25), [0.3], [2]),
        ("channel_i8", "i8", 0, (3, 20), [0.01, 0.02, 0.005], [0, 0, 0]),
        ("channel_u4", "u4", 1, (2, 4, 9), [0.2, 0.1, 0.3, 0.15], [8, 7, 0, 15]),
        ("channel_last_i8", "i8", 2, (2, 5, 3), [0.01, 0.02, 0.004], [1, -3, 0]),
    ]:
        low, high = TYPES[kind]
        x = 2 * torch.randn(dims)
        dy = torch.randn(dims)
        scale, zero = torch.tensor(scales), torch.tensor(zeros, dtype=torch.int32)
        a = x.clone().requires_grad_()
        b = x.clone().requires_grad_()
        s = scale.clone().requires_grad_()
        if axis is None:
            y = torch.fake_quantize_per_tensor_affine(a, scale[0], zero[0], low, high)
            learned = torch._fake_quantize_learnable_per_tensor_affine(
                b, s, zero.float(), low, high, 1.0)
        else:
            y = torch.fake_quantize_per_channel_affine(a, scale, zero, axis, low, high)
            learned = torch._fake_quantize_learnable_per_channel_affine(
                b, s, zero.float(), axis, low, high, 1.0)
        y.backward(dy)
        learned.backward(dy)
        assert torch.equal(y, learned) and torch.equal(a.grad, b.grad)
        clipped = int((a.grad == 0).sum())
        assert 0 < clipped < x.numel(), (name, clipped)
        print("case", name, kind, -9 if axis is None else axis, *dims, file=out)
        for key, t in [("x", x), ("dy", dy), ("scale", scale), ("zero", zero), ("y", y.detach()),
                       ("dx", a.grad), ("dscale", s.grad)]:
            array(key, t)
