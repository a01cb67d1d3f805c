"""Gather and scatter operators: every reduction, duplicates, negative indices; one-hot and compress."""
import torch

from make_ops import case, const, data, fixed, v, x

# ---- gather ----------------------------------------------------------------------------------------
case("Gather", "rows", [x(4, 3), data([0, 2, 2, 3])], lambda t, i: t[i])
case("Gather", "matrix", [x(5, 2), data([[0, 4], [4, 1]])], lambda t, i: t[i])
case("Gather", "axis1_negative", [x(2, 4, 3), data([[-1, 0], [1, -4]])],
     lambda t, i: t[:, torch.where(i < 0, i + 4, i)], axis=1)
case("Gather", "scalar_index", [x(4, 3), data(2)], lambda t, i: t[2])
case("Gather", "int32", [x(4, 3), data([3, 1], "int32")], lambda t, i: t[i.long()], axis=-2)
case("GatherElements", "axis0", [x(3, 2), data([[0, 1], [2, 2], [0, 0], [1, 1]])],
     lambda t, i: torch.gather(t, 0, i))
case("GatherElements", "negative", [x(2, 3), data([[-1, 0], [1, -3]])],
     lambda t, i: torch.gather(t, 1, torch.where(i < 0, i + 3, i)), axis=-1,
     ref="refuses fewer columns")
case("GatherND", "points", [x(2, 3, 2), data([[0, 2], [1, 0], [0, 2]])], lambda t, i: t[i[:, 0], i[:, 1]])
case("GatherND", "elements", [x(2, 3), data([[0, -1], [1, 1]])], lambda t, i: t[[0, 1], [2, 1]])
case("GatherND", "batch_dims", [x(2, 3, 2), data([[1], [2]])], lambda t, i: t[[0, 1], i[:, 0]], batch_dims=1)
case("GatherND", "batch_dims2", [x(2, 2, 3), data([[[[0], [2]], [[1], [1]]], [[[2], [0]], [[0], [0]]]])],
     lambda t, i: torch.gather(t, 2, i[..., 0]), batch_dims=2)

# ---- scatter elements --------------------------------------------------------------------------------
torch_name = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
unique = [[0, 2, 1], [1, 0, 2]]
twice = [[0, 0, 1], [2, 0, 2]]
for red in ("add", "mul", "max", "min"):
    for form, index in (("unique", unique), ("duplicates", twice)):
        case("ScatterElements", f"{red}_{form}", [x(3, 3), data(index), x(2, 3)],
             lambda t, i, u, r=red: t.scatter_reduce(0, i, u, torch_name[r], include_self=True), reduction=red)
    case("ScatterElements", f"{red}_axis1", [x(2, 4), data([[1, -1], [0, 0]]), x(2, 2)],
         lambda t, i, u, r=red: t.scatter_reduce(1, torch.where(i < 0, i + 4, i), u, torch_name[r]), axis=1,
         reduction=red)
case("ScatterElements", "none", [x(3, 3), data(unique), x(2, 3)], lambda t, i, u: t.scatter(0, i, u))
case("ScatterElements", "none_axis1", [x(2, 4), data([[1, -1], [0, 2]]), x(2, 2)],
     lambda t, i, u: t.scatter(1, torch.where(i < 0, i + 4, i), u), axis=-1)
case("ScatterElements", "opset11", [x(3, 3), data(unique), x(2, 3)], lambda t, i, u: t.scatter(0, i, u), opset=11)
case("ScatterElements", "max_ties", [v([[1.0, 2], [3, 4]]), data([[0, 0]]), v([[1.0, 5]])],
     lambda t, i, u: t.scatter_reduce(0, i, u, "amax"), reduction="max")
case("ScatterElements", "mul_zero", [v([0.0, 2, 3]), data([0, 1, 1]), v([4.0, 0, 5])],
     lambda t, i, u: t.scatter_reduce(0, i, u, "prod"), reduction="mul")
case("Scatter", "plain", [x(3, 3), data(unique), x(2, 3)], lambda t, i, u: t.scatter(0, i, u), opset=9,
     ref="does not have it")


# ---- scatter nd ------------------------------------------------------------------------------------------
def scatter_nd(t, i, u, how):
    """Slices of t at index tuples i, as one flat scatter."""
    k = i.shape[-1]
    sizes, rest = t.shape[:k], t.shape[k:]
    flat = torch.zeros(i.shape[:-1], dtype=torch.int64)
    for d in range(k):
        c = torch.where(i[..., d] < 0, i[..., d] + sizes[d], i[..., d])
        flat = flat * sizes[d] + c
    n = 1
    for r in rest:
        n *= r
    index = (flat.reshape(-1, 1) * n + torch.arange(n)).reshape(-1)
    if how == "none":
        return t.reshape(-1).scatter(0, index, u.reshape(-1)).reshape(t.shape)
    return t.reshape(-1).scatter_reduce(0, index, u.reshape(-1), torch_name[how]).reshape(t.shape)


for red in ("none", "add", "mul", "max", "min"):
    attrs = {} if red == "none" else {"reduction": red}
    case("ScatterND", f"{red}_rows", [x(4, 3), data([[2], [0]]), x(2, 3)],
         lambda t, i, u, r=red: scatter_nd(t, i, u, r), **attrs)
    case("ScatterND", f"{red}_points", [x(2, 3), data([[0, 2], [1, -3], [1, 1]]), x(3)],
         lambda t, i, u, r=red: scatter_nd(t, i, u, r), ref="reads index tuples as rows" if red in ("max", "min") else True,
         **attrs)
    if red != "none":
        case("ScatterND", f"{red}_duplicates", [x(3, 2), data([[1], [1], [0]]), x(3, 2)],
             lambda t, i, u, r=red: scatter_nd(t, i, u, r), **attrs)
case("ScatterND", "opset11", [x(4, 3), data([[3], [1]]), x(2, 3)], lambda t, i, u: scatter_nd(t, i, u, "none"),
     opset=11)

# ---- tensor scatter (caches) ---------------------------------------------------------------------------------
def tensor_scatter(t, u, at, axis, circular):
    index = torch.stack([torch.arange(u.shape[axis]) + a for a in at])
    index = index % t.shape[axis] if circular else index
    shape = [1] * t.dim()
    shape[0], shape[axis] = index.shape
    return t.scatter(axis, index.reshape(shape).expand(u.shape), u)


case("TensorScatter", "linear", [x(2, 4, 2), x(2, 2, 2), data([1, 2])],
     lambda t, u, i: tensor_scatter(t, u, [1, 2], 1, False))
case("TensorScatter", "no_indices", [x(2, 4, 2), x(2, 3, 2)], lambda t, u: tensor_scatter(t, u, [0, 0], 1, False))
case("TensorScatter", "circular", [x(2, 1, 4, 2), x(2, 1, 3, 2), data([3, 1])],
     lambda t, u, i: tensor_scatter(t, u, [3, 1], 2, True), mode="circular")
case("TensorScatter", "axis", [x(2, 4, 2), x(2, 2, 2), data([2, 0])],
     lambda t, u, i: tensor_scatter(t, u, [2, 0], 1, False), axis=1)

# ---- one-hot, compress -----------------------------------------------------------------------------------------
def one_hot(i, depth, values, axis):
    hot = torch.nn.functional.one_hot(i % depth, depth).double()
    hot = hot.movedim(-1, axis)
    return values[0] * (1 - hot) + values[1] * hot


case("OneHot", "values", [data([0, 2, 1]), const([3]), x(2)], lambda i, d, w: one_hot(i, 3, w, -1),
     ref="fails on a depth of one element")
case("OneHot", "axis", [data([[0, -1], [1, 1]]), const(3), x(2)], lambda i, d, w: one_hot(i, 3, w, 1), axis=1)
case("Compress", "axis", [x(3, 2), const([True, False, True], bool)], lambda t, m: t[m], axis=0)
case("Compress", "axis1_short", [x(2, 4), const([False, True], bool)], lambda t, m: t[:, 1:2], axis=-1)
case("Compress", "flat", [x(2, 3), const([False, True, True, False, True], bool)],
     lambda t, m: t.reshape(-1)[[1, 2, 4]])
