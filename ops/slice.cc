// Slice: x[start:end:step] per axis with Python's clamping; negative steps walk backwards. One
// strided copy. Starts, ends, axes and steps must be known before training. Gradient: dy written
// into zeros, by Pad when all steps are 1, else by ortrain.SliceGrad (attributes starts, steps,
// dims: one value per axis of the input, starts normalised).
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kFar = 2147483647;  // "to the end" in files is this or larger

struct AxisRange {
  Dim start = 0, extent = 0;
  int64_t step = 1;
};

bool less(Dim a, Dim b) { return a.is_const() && b.is_const() && a.value() < b.value(); }

// A start or end of a forward slice inside [0, d].
Dim clamp_forward(Dim v, Dim d) {
  if (v.is_const() && v.value() >= kFar) return d;
  if (v.is_const() && v.value() <= -kFar) return 0;
  if (v.is_const() && v.value() < 0) return max(v + d, 0);
  return v == Dim(0) ? v : min(v, d);
}
// The same for a backward slice, inside [-1, d - 1].
Dim clamp_backward(Dim v, Dim d) {
  if (v.is_const() && v.value() >= kFar) return d - 1;
  if (v.is_const() && v.value() <= -kFar) return -1;
  if (v.is_const() && v.value() < 0) return max(v + d, -1);
  return min(v, d - 1);
}

AxisRange range_of(Dim start, Dim end, int64_t step, Dim d) {
  AxisRange r;
  r.step = step;
  if (step > 0) {
    r.start = clamp_forward(start, d);
    const Dim stop = clamp_forward(end, d);
    r.extent = less(stop, r.start) ? Dim(0) : ceildiv(stop - r.start, step);
  } else {
    r.start = clamp_backward(start, d);
    const Dim stop = clamp_backward(end, d);
    r.extent = less(r.start, stop) ? Dim(0) : ceildiv(r.start - stop, -step);
  }
  if (!r.extent.is_const() && !(r.extent == d)) r.extent = max(r.extent, 0);
  return r;
}

// One range per axis of the input.
std::vector<AxisRange> ranges(const Shape& in, const std::vector<Dim>& starts,
                              const std::vector<Dim>& ends, const std::vector<int64_t>* given_axes,
                              const std::vector<int64_t>* steps) {
  std::vector<AxisRange> out;
  for (Dim d : in) out.push_back({0, d, 1});
  const size_t n = starts.size();
  if (ends.size() != n || (given_axes && given_axes->size() != n) || (steps && steps->size() != n))
    fail(ErrorCode::kShape, "starts, ends, axes and steps differ in length");
  std::vector<bool> seen(out.size(), false);
  for (size_t i = 0; i < n; ++i) {
    const auto axis = static_cast<size_t>(
        normalize_axis(given_axes ? (*given_axes)[i] : static_cast<int64_t>(i), in.rank()));
    if (seen[axis]) fail(ErrorCode::kShape, "axis ", axis, " is sliced twice");
    seen[axis] = true;
    const int64_t step = steps ? (*steps)[i] : 1;
    if (step == 0) fail(ErrorCode::kShape, "step 0 on axis ", axis);
    out[axis] = range_of(starts[i], ends[i], step, in[static_cast<int>(axis)]);
  }
  return out;
}

std::vector<AxisRange> ranges(InferCtx& c) {
  std::optional<std::vector<int64_t>> axes, steps;
  if (c.has(3)) axes = numbers(c.need_ints(3, "axes"), "axes");
  if (c.has(4)) steps = numbers(c.need_ints(4, "steps"), "steps");
  return ranges(c.shape(0), c.need_ints(1, "starts"), c.need_ints(2, "ends"),
                axes ? &*axes : nullptr, steps ? &*steps : nullptr);
}

StridedCopy strided(const Dims& in, const std::vector<AxisRange>& ranges, size_t size) {
  const Dims strides = dense_strides(in);
  StridedCopy c{.size = size};
  bool empty = false;
  for (size_t i = 0; i < in.size(); ++i) {
    c.dims.push_back(ranges[i].extent.value());
    c.src.push_back(strides[i] * ranges[i].step);
    empty |= c.dims.back() == 0;
    c.src_offset += ranges[i].start.value() * strides[i];
  }
  if (empty) c.src_offset = 0;
  c.dst = dense_strides(c.dims);
  return c;
}

void infer_slice(InferCtx& c) {
  const Shape in = c.shape(0);
  const std::vector<AxisRange> all = ranges(c);
  Shape out;
  bool known = in.is_const();
  for (const AxisRange& r : all) {
    out.push_back(r.extent);
    known &= r.start.is_const() && r.extent.is_const();
  }
  c.out(0, c.dtype(0), out);
  if (known) carry_ints(c, strided(in.values(), all, 8));
}

std::vector<Dim> as_dims(const std::vector<int64_t>& v) { return {v.begin(), v.end()}; }

StridedCopy make(const KernelQuery& q) {
  std::vector<int64_t> axes, steps;
  if (q.has_in(3)) axes = q.need_ints(3, "axes");
  if (q.has_in(4)) steps = q.need_ints(4, "steps");
  return strided(q.in[0].dims,
                 ranges(Shape(q.in[0].dims), as_dims(q.need_ints(1, "starts")),
                        as_dims(q.need_ints(2, "ends")), q.has_in(3) ? &axes : nullptr,
                        q.has_in(4) ? &steps : nullptr),
                 size_of(q.in[0].dtype));
}

Expr slice_grad(Grad& g) {
  InferCtx c(g.b.graph(), g.n);
  const std::vector<AxisRange> all = ranges(c);
  const Dims in = g.x(0).shape().values();
  std::vector<int64_t> starts, steps, pads, after;
  bool plain = true;
  for (size_t i = 0; i < in.size(); ++i) {
    starts.push_back(all[i].start.value());
    steps.push_back(all[i].step);
    plain &= all[i].step == 1;
    after.push_back(in[i] - starts[i] - all[i].extent.value());
  }
  if (!plain)
    return g.b.op("ortrain.SliceGrad", {g.dy()},
                  {{"starts", starts}, {"steps", steps}, {"dims", in}});
  pads = starts;
  pads.insert(pads.end(), after.begin(), after.end());
  return g.b.op("Pad", {g.dy(), g.b.ints(pads)});
}

// --- ortrain.SliceGrad: y = 0; y[starts + i * steps] = x[i]
void infer_scatter(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.attrs().ints("dims"))); }

StridedCopy make_scatter(const KernelQuery& q) {
  const std::vector<int64_t> starts = q.attrs.ints("starts"), steps = q.attrs.ints("steps");
  const Dims strides = dense_strides(q.out[0].dims);
  StridedCopy c{.dims = q.in[0].dims, .src = dense_strides(q.in[0].dims)};
  c.size = size_of(q.in[0].dtype);
  for (size_t i = 0; i < strides.size(); ++i) {
    c.dst.push_back(strides[i] * steps[i]);
    c.dst_offset += starts[i] * strides[i];
  }
  if (product(c.dims) == 0) c.dst_offset = 0;
  return c;
}

template <bool ref>
Kernel scatter_kernel(const KernelQuery& q) {
  StridedCopy c = make_scatter(q);
  if (!ref) c = simplify(std::move(c));
  return {0, [c, bytes = q.out[0].bytes(), threads = q.threads](const KernelArgs& a) {
            fill_zero(a.out[0], bytes, threads);
            if (product(c.dims) == 0) return;
            ref ? copy_ref(c, a.in[0], a.out[0]) : run_copy(c, a.in[0], a.out[0], threads);
          }};
}

Expr scatter_grad(Grad& g) {
  const std::vector<int64_t> starts = g.attrs().ints("starts"), steps = g.attrs().ints("steps");
  const Dims in = g.x(0).shape().values();
  std::vector<int64_t> ends, axes;
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t end = starts[i] + steps[i] * in[i];
    ends.push_back(end < 0 ? -kFar : end);
    axes.push_back(static_cast<int64_t>(i));
  }
  return g.b.op("Slice",
                {g.dy(), g.b.ints(starts), g.b.ints(ends), g.b.ints(axes), g.b.ints(steps)});
}

std::optional<LayoutChange> channels_last(Graph& g, NodeId n) {
  const auto starts = InferCtx(g, n).ints(1);
  if (!starts || !axes_input_channels_last(g, n, 3, starts->size())) return std::nullopt;
  return LayoutChange{{0}, {0}};
}

void adapt_slice(RawNode& r) {
  if (r.opset >= 10) return;
  r.ints_to_input("starts", 1);
  r.ints_to_input("ends", 2);
  r.ints_to_input("axes", 3);
}

using Ints = std::vector<int64_t>;

}  // namespace

void register_slice(OpTable& table) {
  table.add({
      .name = "Slice",
      .inputs = {"data", "starts", "ends", "axes?", "steps?"},
      .outputs = {"output"},
      .infer = infer_slice,
      .grad = {grad("data", slice_grad), no_grad("starts"), no_grad("ends"), no_grad("axes"),
               no_grad("steps")},
      .adapt = adapt_slice,
      .channels_last = channels_last,
      .kernels = copy_kernels<make>(),
      .examples = {{.in = {f({4, 5}), ivals({1, 0}), ivals({3, 4})}},
                   {.in = {f({4, 5}), ivals({-3}), ivals({2147483647}), ivals({-1})}},
                   {.in = {f({7, 3}), ivals({-1}), ivals({-100}), ivals({0}), ivals({-2})}},
                   {.in = {f({7, 9}), ivals({1, 8}), ivals({6, 0}), ivals({0, 1}), ivals({2, -3})}},
                   {.in = {f({4, 5}), ivals({10}), ivals({20}), ivals({1})}},
                   {.in = {f({4, 5}), ivals({3}), ivals({1}), ivals({0})}},
                   {.in = {f({4, 5}), ivals({0}), ivals({-1}), absent(), ivals({3})}},
                   {.in = {f({2, 3, 4}), ivals({1}), ivals({2}), ivals({1})}},
                   {.in = {f({0, 3}), ivals({0}), ivals({2}), ivals({0}), ivals({-1})}},
                   {.in = {f({5}), ivals({4}), ivals({-6}), ivals({0}), ivals({-1})}}},
  });
  table.add({
      .name = "ortrain.SliceGrad",
      .inputs = {"dy"},
      .outputs = {"dx"},
      .infer = infer_scatter,
      .grad = {grad("dy", scatter_grad)},
      .kernels = {{"cpu", "strided", nullptr, scatter_kernel<false>},
                  {"cpu", "ref", nullptr, scatter_kernel<true>}},
      .examples =
          {{.in = {f({2, 3})},
            .attrs = {{"starts", Ints{1, 8}}, {"steps", Ints{2, -3}}, {"dims", Ints{5, 9}}}},
           {.in = {f({4})}, .attrs = {{"starts", Ints{6}}, {"steps", Ints{-2}}, {"dims", Ints{7}}}},
           {.in = {f({0})}, .attrs = {{"starts", Ints{0}}, {"steps", Ints{3}}, {"dims", Ints{4}}}}},
  });
}

}  // namespace ortrain::ops
