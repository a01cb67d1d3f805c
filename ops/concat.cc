// Concat (join along an axis) and Split (its inverse): one strided copy per piece. Split sizes may
// be given, or the axis divided over the outputs (num_outputs: the last may be shorter).
// Gradients: Slice of dy for each Concat input; Concat of the dys for Split.
#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer_concat(InferCtx& c) {
  Shape out = c.shape(0);
  const int axis = normalize_axis(c.attrs().i("axis", 1), out.rank());
  for (int i = 1; i < c.input_count(); ++i) {
    const Shape& s = c.shape(i);
    if (c.dtype(i) != c.dtype(0))
      c.fail(
          cat("inputs have different types: ", name_of(c.dtype(0)), " and ", name_of(c.dtype(i))));
    if (s.rank() != out.rank())
      c.fail(cat("inputs have different ranks: ", c.shape(0).str(), " and ", s.str()));
    for (int k = 0; k < out.rank(); ++k) {
      if (k == axis) {
        out[k] = out[k] + s[k];
      } else {
        if (prove_equal(out[k], s[k]) == Tri::kNo)
          c.fail(cat("inputs ", c.shape(0).str(), " and ", s.str(), " differ at axis ", k));
        if (!out[k].is_const()) out[k] = s[k];
      }
    }
  }
  c.out(0, c.dtype(0), out);
  if (out.rank() != 1) return;
  std::vector<Dim> all;
  for (int i = 0; i < c.input_count(); ++i) {
    const auto ints = c.ints(i);
    if (!ints) return;
    all.insert(all.end(), ints->begin(), ints->end());
  }
  if (all.size() <= 4096) c.out_ints(0, std::move(all));
}

// Copies between `part` and the range of `whole` that starts at `offset` of `axis`.
StridedCopy piece(const Dims& part, const Dims& whole, int axis, int64_t offset, size_t size) {
  StridedCopy c{.dims = part, .src = dense_strides(part), .dst = dense_strides(whole)};
  c.size = size;
  c.dst_offset = offset * c.dst[static_cast<size_t>(axis)];
  return c;
}
StridedCopy reversed(StridedCopy c) {
  std::swap(c.src, c.dst);
  std::swap(c.src_offset, c.dst_offset);
  return c;
}

std::vector<StridedCopy> pieces(const KernelQuery& q, bool split) {
  const TensorDesc& whole = split ? q.in[0] : q.out[0];
  const std::vector<TensorDesc>& parts = split ? q.out : q.in;
  const int axis = normalize_axis(q.attrs.i("axis", split ? 0 : 1), whole.rank());
  // An output of Split that nobody wants still takes its room: its extent is known from `split`.
  std::vector<int64_t> sizes;
  if (split && q.has_in(1)) sizes = q.need_ints(1, "split");
  const int64_t extent = whole.dims[static_cast<size_t>(axis)];
  const auto n = static_cast<int64_t>(parts.size());
  const int64_t chunk = (extent + q.attrs.i("num_outputs", n) - 1) / q.attrs.i("num_outputs", n);
  std::vector<StridedCopy> out;
  int64_t offset = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    StridedCopy c;
    int64_t here = sizes.empty() ? chunk : sizes[i];
    if (parts[i].present()) {
      c = piece(parts[i].dims, whole.dims, axis, offset, size_of(whole.dtype));
      here = parts[i].dims[static_cast<size_t>(axis)];
    }
    offset += here;
    out.push_back(split ? reversed(std::move(c)) : std::move(c));
  }
  return out;
}

template <bool split, bool ref>
Kernel pieces_kernel(const KernelQuery& q) {
  std::vector<StridedCopy> all = pieces(q, split);
  if (!ref)
    for (StridedCopy& c : all) c = simplify(std::move(c));
  return {0, [all = std::move(all), threads = q.threads](const KernelArgs& a) {
            for (size_t i = 0; i < all.size(); ++i) {
              const void* src = a.in[split ? 0 : i];
              void* dst = a.out[split ? i : 0];
              if (!src || !dst) continue;
              ref ? copy_ref(all[i], src, dst) : run_copy(all[i], src, dst, threads);
            }
          }};
}

Expr concat_grad(Grad& g) {
  const int axis = normalize_axis(g.attrs().i("axis", 1), g.x().rank());
  int64_t start = 0;
  for (int i = 0; i < g.index; ++i) start += g.x(i).shape()[axis].value();
  const int64_t extent = g.x().shape()[axis].value();
  if (g.dy().shape()[axis] == Dim(extent)) return g.dy();
  return g.b.slice(g.dy(), axis, start, start + extent);
}

void infer_split(InferCtx& c) {
  const Shape in = c.shape(0);
  const int axis = normalize_axis(c.attrs().i("axis", 0), in.rank());
  const int n = c.output_count();
  std::vector<Dim> sizes;
  if (c.has(1)) {
    sizes = c.need_ints(1, "split");
    if (static_cast<int>(sizes.size()) < n)
      c.fail(cat("split has ", sizes.size(), " sizes for ", n, " outputs"));
    Dim sum = 0;
    for (Dim d : sizes) sum = sum + d;
    if (prove_equal(sum, in[axis]) == Tri::kNo)
      c.fail(cat("split sizes add up to ", sum.str(), ", axis ", axis, " has ", in[axis].str()));
  } else {
    const int64_t parts = c.attrs().i("num_outputs", n);
    if (parts < n || parts < 1) c.fail(cat("num_outputs is ", parts, ", the node has ", n));
    const Dim chunk = in[axis].is_const() || parts == 1 ? ceildiv(in[axis], parts)
                      : mod(in[axis], parts) == Dim(0)  ? floordiv(in[axis], parts)
                                                        : ceildiv(in[axis], parts);
    for (int64_t i = 0; i + 1 < parts; ++i) sizes.push_back(chunk);
    sizes.push_back(in[axis] - chunk * Dim(parts - 1));
    if (sizes.back().is_const() && sizes.back().value() < 0)
      c.fail(cat("axis ", axis, " of ", in.str(), " does not split into ", parts));
  }
  const auto ints = in.rank() == 1 ? c.ints(0) : std::nullopt;
  size_t offset = 0;
  for (int i = 0; i < n; ++i) {
    const Dim size = sizes[static_cast<size_t>(i)];
    Shape s = in;
    s[axis] = size;
    c.out(i, c.dtype(0), s);
    if (!ints || !size.is_const()) continue;
    const auto from = ints->begin() + static_cast<std::ptrdiff_t>(offset);
    offset += static_cast<size_t>(size.value());
    if (offset > ints->size()) c.fail("split sizes pass the end of the axis");
    c.out_ints(i, {from, from + static_cast<std::ptrdiff_t>(size.value())});
  }
}

std::optional<LayoutChange> split_channels_last(Graph& g, NodeId n) {
  std::optional<LayoutChange> change = axis_channels_last(g, n, 0);
  change->inputs = {0};
  return change;
}

void adapt_split(RawNode& r) {
  if (r.opset < 13) r.ints_to_input("split", 1);
  if (r.opset < 18 && (r.inputs.size() < 2 || r.inputs[1] == kNone))
    r.attrs.set("num_outputs", static_cast<int64_t>(r.wanted.size()));
}

Expr split_grad(Grad& g) {
  const auto n = static_cast<int>(g.node().outputs.size());
  std::vector<Expr> parts;
  for (int i = 0; i < n; ++i) parts.push_back(g.dy(i));
  return parts.size() == 1 ? parts[0] : g.b.concat(parts, g.attrs().i("axis", 0));
}

}  // namespace

void register_concat(OpTable& table) {
  table.add({
      .name = "Concat",
      .inputs = {"inputs*"},
      .outputs = {"concat_result"},
      .infer = infer_concat,
      .grad = {grad("inputs", concat_grad)},
      .channels_last = [](Graph& g, NodeId n) { return axis_channels_last(g, n, 1); },
      .kernels = {{"cpu", "strided", nullptr, pieces_kernel<false, false>},
                  {"cpu", "ref", nullptr, pieces_kernel<false, true>}},
      .examples = {{.in = {f({2, 3}), f({2, 5})}, .attrs = {{"axis", 1}}},
                   {.in = {f({2, 3}), f({1, 3}), f({4, 3})}, .attrs = {{"axis", 0}}},
                   {.in = {f({2, 3, 2}), f({2, 1, 2})}, .attrs = {{"axis", -2}}},
                   {.in = {f({2, 0}), f({2, 3})}, .attrs = {{"axis", -1}}},
                   {.in = {f({3})}, .attrs = {{"axis", 0}}}},
  });
  table.add({
      .name = "Split",
      .inputs = {"input", "split?"},
      .outputs = {"outputs*"},
      .infer = infer_split,
      .grad = {grad("input", split_grad), no_grad("split")},
      .adapt = adapt_split,
      .channels_last = split_channels_last,
      .kernels = {{"cpu", "strided", nullptr, pieces_kernel<true, false>},
                  {"cpu", "ref", nullptr, pieces_kernel<true, true>}},
      .examples = {{.in = {f({6, 2})}, .attrs = {{"num_outputs", 3}}, .outputs = 3},
                   {.in = {f({2, 7})}, .attrs = {{"axis", 1}, {"num_outputs", 3}}, .outputs = 3},
                   {.in = {f({2, 7}), ivals({2, 0, 5})}, .attrs = {{"axis", -1}}, .outputs = 3},
                   {.in = {f({2, 6, 3}), ivals({1, 5})}, .attrs = {{"axis", 1}}, .outputs = 2},
                   {.in = {f({4})}, .outputs = 1}},
  });
}

}  // namespace ortrain::ops
