// Resize (and Upsample, its old form): nearest, linear and cubic resampling of any axes, all
// coordinate transformations, nearest modes, antialias, exclude_outside and aspect policies of
// ONNX. Scales or sizes must be known before training.
// It is linear in x: one sparse matrix per axis (ops/common/resample.h), built when the kernel is
// prepared; the gradient (ortrain.ResizeGrad) applies the transposed matrices. Coordinates and
// coefficients follow onnx/reference/ops/op_resize.py (the witness of the ONNX node tests).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "graph/error.h"
#include "ops/common/movement.h"
#include "ops/common/resample.h"

namespace ortrain::ops {
namespace {

using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;

// Everything that decides the matrices; scales and roi have one entry (or pair) per axis.
struct Spec {
  std::string mode, coordinates, nearest;
  bool antialias = false, exclude_outside = false;
  double cubic = -0.75, extrapolation = 0;
  Floats scales, roi;
};

Spec spec_of(const Attrs& a) {
  Spec s;
  s.mode = a.s("mode", "nearest");
  s.coordinates = a.s("coordinate_transformation_mode", "half_pixel");
  s.nearest = a.s("nearest_mode", "round_prefer_floor");
  s.antialias = a.i("antialias", 0) != 0;
  s.exclude_outside = a.i("exclude_outside", 0) != 0;
  s.cubic = a.f("cubic_coeff_a", -0.75);
  s.extrapolation = a.f("extrapolation_value", 0);
  const auto known = [](const std::string& v, std::initializer_list<const char*> all) {
    if (std::find(all.begin(), all.end(), v) == all.end())
      fail(ErrorCode::kUnsupported, "'", v, "' is not a known mode");
  };
  known(s.mode, {"nearest", "linear", "cubic"});
  known(s.coordinates, {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                        "asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"});
  known(s.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
  return s;
}

Floats floats_of(const HostTensor* t) {
  Floats out;
  for (int64_t i = 0; t && i < t->count(); ++i) out.push_back(t->as_double(i));
  return out;
}

Ints axes_of(const Attrs& attrs, int rank) {
  Ints axes = attrs.ints("axes");
  if (!attrs.has("axes"))
    for (int i = 0; i < rank; ++i) axes.push_back(i);
  for (int64_t& a : axes) a = normalize_axis(a, rank);
  return axes;
}

// Output extent for a scale. The product is in float, as ONNX Runtime computes it.
Dim scaled(Dim in, double scale) {
  if (in.is_const())
    return static_cast<int64_t>(
        std::floor(static_cast<float>(scale) * static_cast<float>(in.value())));
  if (scale == std::floor(scale)) return in * Dim(static_cast<int64_t>(scale));
  if (const double inverse = 1 / scale; inverse == std::floor(inverse))
    return floordiv(in, static_cast<int64_t>(inverse));
  return Dim::fresh("resized");
}

// Output extents, and the scale of each axis into `scales` (where extents are numbers).
Shape output_shape(const Attrs& attrs, const Shape& in, const Floats& given,
                   const std::vector<Dim>* sizes, Floats* scales) {
  const Ints axes = axes_of(attrs, in.rank());
  Shape out = in;
  if (scales) scales->assign(static_cast<size_t>(in.rank()), 1.0);
  const auto check = [&](size_t n) {
    if (n != axes.size())
      fail(ErrorCode::kShape, "scales or sizes have ", n, " values for ", axes.size(), " axes");
  };
  if (!sizes) {
    check(given.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!(given[i] > 0)) fail(ErrorCode::kShape, "scales must be positive");
      out[static_cast<int>(axes[i])] = scaled(in[static_cast<int>(axes[i])], given[i]);
      if (scales) (*scales)[static_cast<size_t>(axes[i])] = given[i];
    }
    return out;
  }
  check(sizes->size());
  bool known = true;
  for (size_t i = 0; i < axes.size(); ++i) {
    out[static_cast<int>(axes[i])] = (*sizes)[i];
    known &= (*sizes)[i].is_const() && in[static_cast<int>(axes[i])].is_const();
  }
  const std::string policy = attrs.s("keep_aspect_ratio_policy", "stretch");
  if (!known) {
    if (policy != "stretch")
      for (int64_t a : axes) out[static_cast<int>(a)] = Dim::fresh("resized");
    return out;
  }
  const auto ratio = [&](int64_t a) {
    const int64_t from = in[static_cast<int>(a)].value();
    return from == 0
               ? 1.0
               : static_cast<double>(out[static_cast<int>(a)].value()) / static_cast<double>(from);
  };
  Floats all;
  for (int64_t a : axes) all.push_back(ratio(a));
  if (policy != "stretch" && !all.empty()) {
    if (policy != "not_larger" && policy != "not_smaller")
      fail(ErrorCode::kUnsupported, "keep_aspect_ratio_policy '", policy, "'");
    const double s = policy == "not_larger" ? *std::min_element(all.begin(), all.end())
                                            : *std::max_element(all.begin(), all.end());
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto a = static_cast<int>(axes[i]);
      out[a] = static_cast<int64_t>(s * static_cast<double>(in[a].value()) + 0.5);
      all[i] = s;
    }
  }
  if (scales)
    for (size_t i = 0; i < axes.size(); ++i) (*scales)[static_cast<size_t>(axes[i])] = all[i];
  return out;
}

// Region of interest per axis: starts, then ends; empty unless tf_crop_and_resize uses it.
Floats roi_of(const Attrs& attrs, int rank, const Floats& given) {
  if (attrs.s("coordinate_transformation_mode", "") != "tf_crop_and_resize") return {};
  const Ints axes = axes_of(attrs, rank);
  if (given.size() != 2 * axes.size())
    fail(ErrorCode::kShape, "roi has ", given.size(), " values for ", axes.size(), " axes");
  Floats roi(static_cast<size_t>(2 * rank), 0.0);
  std::fill(roi.begin() + rank, roi.end(), 1.0);
  for (size_t i = 0; i < axes.size(); ++i) {
    roi[static_cast<size_t>(axes[i])] = given[i];
    roi[static_cast<size_t>(axes[i] + rank)] = given[i + axes.size()];
  }
  return roi;
}

// Position in the input that output position y samples.
double coordinate(const Spec& s, size_t axis, size_t rank, int64_t in, int64_t out, double y) {
  const double scale = s.scales[axis], n = static_cast<double>(in), width = scale * n;
  if (s.coordinates == "align_corners") return width == 1 ? 0 : y * (n - 1) / (width - 1);
  if (s.coordinates == "asymmetric") return y / scale;
  if (s.coordinates == "tf_half_pixel_for_nn") return (y + 0.5) / scale;
  if (s.coordinates == "tf_crop_and_resize") {
    const double start = s.roi[axis], span = s.roi[axis + rank] - start;
    return start * (n - 1) + (width == 1 ? span * (n - 1) / 2 : y * span * (n - 1) / (width - 1));
  }
  if (s.coordinates == "pytorch_half_pixel" && width == 1) return -0.5;
  double x = (y + 0.5) / scale - 0.5;
  if (s.coordinates == "half_pixel_symmetric") x += n / 2 * (1 - static_cast<double>(out) / width);
  return x;
}

double cubic(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

AxisMatrix matrix(const Spec& s, size_t axis, size_t rank, int64_t in, int64_t out) {
  AxisMatrix m;
  m.axis = static_cast<int>(axis);
  m.in = in;
  m.out = out;
  if (in == 0 && out > 0) fail(ErrorCode::kShape, "cannot resize an empty axis");
  const bool crops = s.coordinates == "tf_crop_and_resize";
  if (crops) m.bias.assign(static_cast<size_t>(out), 0.0);
  const double scale = std::min(s.scales[axis], 1.0);  // antialias acts when shrinking
  bool biased = false;
  for (int64_t y = 0; y < out; ++y) {
    const double x = coordinate(s, axis, rank, in, out, static_cast<double>(y));
    std::vector<std::pair<int64_t, double>> row;
    if (crops && (x < 0 || x > static_cast<double>(in - 1))) {
      m.bias[static_cast<size_t>(y)] = s.extrapolation;
      biased |= s.extrapolation != 0;
      m.add_row(row);
      continue;
    }
    const auto base = static_cast<int64_t>(std::floor(x));
    const double ratio = x - std::floor(x);
    if (s.mode == "nearest") {
      int64_t at = base;
      if (ratio > 0)
        at += s.nearest == "ceil" || (s.nearest == "round_prefer_floor" && ratio > 0.5) ||
              (s.nearest == "round_prefer_ceil" && ratio >= 0.5);
      row.emplace_back(at, 1.0);
    } else {
      const bool aa = s.antialias && scale < 1, linear = s.mode == "linear";
      const double reach = linear ? 1 : 2, step = aa ? scale : 1;
      const auto low = static_cast<int64_t>(std::floor(-reach / step)) + 1;
      double sum = 0;
      for (int64_t k = low; k <= 1 - low; ++k) {
        const double d = step * (static_cast<double>(k) - ratio);
        const double w = linear ? std::max(0.0, 1 - std::abs(d)) : cubic(d, s.cubic);
        row.emplace_back(base + k, w);
        sum += w;
      }
      if (aa)
        for (auto& entry : row) entry.second /= sum;
    }
    if (s.exclude_outside) {
      double sum = 0;
      for (auto& [c, w] : row) sum += w = c < 0 || c >= in ? 0 : w;
      if (sum != 0)
        for (auto& entry : row) entry.second /= sum;
    }
    for (auto& entry : row) entry.first = std::clamp<int64_t>(entry.first, 0, in - 1);
    m.add_row(row);
  }
  if (!biased) m.bias.clear();
  return m;
}

// Matrices from `in` to `out`, in the cheaper order: growing tensors expand the last axis first.
std::vector<AxisMatrix> matrices(const Spec& s, const Dims& in, const Dims& out) {
  std::vector<AxisMatrix> all;
  for (size_t a = 0; a < in.size(); ++a) {
    if (s.scales[a] == 1 && in[a] == out[a] && s.coordinates != "tf_crop_and_resize") continue;
    all.push_back(matrix(s, a, in.size(), in[a], out[a]));
  }
  std::erase_if(all, [](const AxisMatrix& m) { return m.identity(); });
  if (product(out) >= product(in)) std::reverse(all.begin(), all.end());
  return all;
}

Floats scales_constant(InferCtx& c) {
  if (const HostTensor* t = c.constant(2)) return floats_of(t);
  fail(ErrorCode::kUnsupported,
       "scales depend on data; ortrain plans before step 1 and needs them as a constant");
}

bool has_sizes(InferCtx& c) {
  return c.has(3) && !(c.shape(3).is_const() && c.shape(3).count() == Dim(0));
}

void infer(InferCtx& c) {
  spec_of(c.attrs());
  if (has_sizes(c)) {
    const std::vector<Dim> sizes = c.need_ints(3, "sizes");
    return c.out(0, c.dtype(0), output_shape(c.attrs(), c.shape(0), {}, &sizes, nullptr));
  }
  if (!c.has(2)) c.fail("neither scales nor sizes are given");
  c.out(0, c.dtype(0), output_shape(c.attrs(), c.shape(0), scales_constant(c), nullptr, nullptr));
}

Spec forward_spec(const KernelQuery& q) {
  Spec s = spec_of(q.attrs);
  const Shape in(q.in[0].dims);
  if (q.has_in(3) && q.in[3].count() > 0) {
    const Ints numbers = q.need_ints(3, "sizes");
    const std::vector<Dim> sizes(numbers.begin(), numbers.end());
    output_shape(q.attrs, in, {}, &sizes, &s.scales);
  } else {
    if (!q.constant(2)) fail(ErrorCode::kUnsupported, "scales depend on data");
    output_shape(q.attrs, in, floats_of(q.constant(2)), nullptr, &s.scales);
  }
  const bool crops = s.coordinates == "tf_crop_and_resize";
  if (crops && !q.constant(1)) fail(ErrorCode::kUnsupported, "roi depends on data");
  s.roi = roi_of(q.attrs, in.rank(), crops ? floats_of(q.constant(1)) : Floats{});
  return s;
}

Kernel resize_ref(const KernelQuery& q) {
  return resample(matrices(forward_spec(q), q.in[0].dims, q.out[0].dims), q.in[0].dims,
                  q.in[0].dtype, 1);
}

Kernel resize_separable(const KernelQuery& q) {
  return resample(matrices(forward_spec(q), q.in[0].dims, q.out[0].dims), q.in[0].dims,
                  q.in[0].dtype, q.threads);
}

std::string reject_separable(const KernelQuery& q) {
  return is_float(q.in[0].dtype) && size_of(q.in[0].dtype) >= 4 ? "" : "only f32 and f64";
}

// Nearest over two neighbouring axes, any type of 4 bytes: rows [in_w, inner] become rows
// [width, inner]; equal output rows are copies of the row before.
struct NearestPlan {
  Ints rows, columns;  // input row and column of each output one
  int64_t in_h, in_w, inner, planes;
};

std::optional<NearestPlan> nearest_plan(const KernelQuery& q) {
  const Dims &in = q.in[0].dims, &out = q.out[0].dims;
  const int rank = q.in[0].rank();
  const std::vector<AxisMatrix> all = matrices(forward_spec(q), in, out);
  int w = 0;
  for (const AxisMatrix& m : all) w = std::max(w, m.axis);
  if (all.empty() || w == 0) return std::nullopt;
  NearestPlan p{.in_h = in[static_cast<size_t>(w) - 1],
                .in_w = in[static_cast<size_t>(w)],
                .inner = product(in, w + 1, rank),
                .planes = product(in, 0, w - 1)};
  p.rows.resize(static_cast<size_t>(out[static_cast<size_t>(w) - 1]));
  p.columns.resize(static_cast<size_t>(out[static_cast<size_t>(w)]));
  std::iota(p.rows.begin(), p.rows.end(), int64_t{0});
  std::iota(p.columns.begin(), p.columns.end(), int64_t{0});
  for (const AxisMatrix& m : all) {
    if (m.axis < w - 1 || !m.selects()) return std::nullopt;
    (m.axis == w ? p.columns : p.rows) = m.column;
  }
  return p;
}

std::string reject_nearest(const KernelQuery& q) {
  if (size_of(q.in[0].dtype) != 4) return "only 4-byte elements";
  if (q.attrs.s("mode", "nearest") != "nearest") return "not nearest";
  if (q.out[0].count() == 0) return "no elements";
  return nearest_plan(q) ? "" : "resizes other than two neighbouring axes";
}

Kernel resize_nearest(const KernelQuery& q) {
  const NearestPlan p = *nearest_plan(q);
  const auto height = static_cast<int64_t>(p.rows.size());
  const auto width = static_cast<int64_t>(p.columns.size());
  bool doubles = p.inner == 1 && width == 2 * p.in_w;
  for (int64_t i = 0; doubles && i < width; ++i)
    doubles = p.columns[static_cast<size_t>(i)] == i / 2;
  return {0, [=, threads = q.threads](const KernelArgs& a) {
            const int64_t row = width * p.inner;
            parallel_for(threads, p.planes, std::max<int64_t>(1, 8192 / (height * row)),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t r = begin * height; r < end * height; ++r) {
                             const auto u = static_cast<size_t>(r % height);
                             uint32_t* y = a.y<uint32_t>(0) + r * row;
                             const uint32_t* x =
                                 a.x<uint32_t>(0) +
                                 (r / height * p.in_h + p.rows[u]) * p.in_w * p.inner;
                             if (u > 0 && p.rows[u] == p.rows[u - 1]) {
                               std::memcpy(y, y - row, static_cast<size_t>(row) * 4);
                             } else if (doubles) {
                               for (int64_t i = 0; i < p.in_w; ++i) y[2 * i] = y[2 * i + 1] = x[i];
                             } else if (p.inner == 1) {
                               for (int64_t i = 0; i < width; ++i)
                                 y[i] = x[p.columns[static_cast<size_t>(i)]];
                             } else {
                               for (int64_t i = 0; i < width; ++i)
                                 std::memcpy(y + i * p.inner,
                                             x + p.columns[static_cast<size_t>(i)] * p.inner,
                                             static_cast<size_t>(p.inner) * 4);
                             }
                           }
                         });
          }};
}

// The axes that scales, sizes and roi speak of move with the data.
std::optional<LayoutChange> channels_last(Graph& g, NodeId n) {
  const int rank = g.value(g.node(n).inputs[0]).shape.rank();
  Ints axes = axes_of(g.node(n).attrs, rank);
  for (int64_t& a : axes) a = last_axis(a, rank);
  g.node(n).attrs.set("axes", axes);
  return LayoutChange{{0}, {0}};
}

// --- ortrain.ResizeGrad: attributes of Resize, plus dims (of x), scales and roi of every axis
Expr resize_grad(Grad& g) {
  InferCtx c(g.b.graph(), g.n);
  Attrs attrs = g.attrs();
  Floats scales;
  if (has_sizes(c)) {
    const std::vector<Dim> sizes = c.need_ints(3, "sizes");
    output_shape(attrs, c.shape(0), {}, &sizes, &scales);
  } else {
    output_shape(attrs, c.shape(0), scales_constant(c), nullptr, &scales);
  }
  attrs.set("roi", roi_of(attrs, c.rank(0), c.has(1) ? floats_of(c.constant(1)) : Floats{}));
  attrs.set("scales", scales);
  attrs.set("dims", g.x(0).shape().values());
  return g.b.op("ortrain.ResizeGrad", {g.dy()}, std::move(attrs));
}

void infer_grad(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.attrs().ints("dims"))); }

template <bool ref>
Kernel grad_kernel(const KernelQuery& q) {
  Spec s = spec_of(q.attrs);
  s.scales = q.attrs.floats("scales");
  s.roi = q.attrs.floats("roi");
  std::vector<AxisMatrix> all = matrices(s, q.out[0].dims, q.in[0].dims);
  std::reverse(all.begin(), all.end());
  for (AxisMatrix& m : all) m = m.transposed();
  return resample(std::move(all), q.in[0].dims, q.in[0].dtype, ref ? 1 : q.threads);
}

// Opset 10 and Upsample 7, 9: scales as input 1 or attribute, asymmetric coordinates, floor.
void adapt_resize(RawNode& r) {
  const bool upsample = r.op == "Upsample";
  if (!upsample && r.opset >= 11) return;
  r.op = "Resize";
  ValueId scales = r.inputs.size() > 1 ? r.inputs[1] : kNone;
  if (r.attrs.has("scales")) {
    const Floats values = r.attrs.floats("scales");
    HostTensor t(DType::kF32, {static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i) t.set_double(static_cast<int64_t>(i), values[i]);
    scales = r.constant(std::move(t));
    r.attrs.erase("scales");
  }
  r.inputs.resize(3, kNone);
  r.inputs[1] = kNone;
  r.inputs[2] = scales;
  if (r.attrs.s("mode", "nearest") == "bilinear") r.attrs.set("mode", "linear");
  r.attrs.set("coordinate_transformation_mode", "asymmetric");
  r.attrs.set("nearest_mode", "floor");
}

ExampleInput constant(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  ExampleInput e = floats({n}, std::move(values));
  e.constant = true;
  return e;
}

std::vector<Example> examples() {
  std::vector<Example> all;
  const auto add = [&](Dims x, ExampleInput scales, ExampleInput sizes, Attrs attrs,
                       ExampleInput roi = absent()) {
    all.push_back({.in = {f(std::move(x)), std::move(roi), std::move(scales), std::move(sizes)},
                   .attrs = std::move(attrs)});
  };
  const ExampleInput none = absent();
  add({2, 3, 4, 5}, constant({1, 1, 2, 2}), none,
      {{"coordinate_transformation_mode", "asymmetric"}, {"nearest_mode", "floor"}});
  add({1, 2, 3, 2}, constant({1, 1, 3, 2}), none, {});
  add({1, 1, 5, 7}, constant({1, 1, 0.6, 0.6}), none, {});
  add({2, 3, 4}, none, ivals({2, 3, 9}), {{"nearest_mode", "ceil"}});
  for (const char* mode : {"linear", "cubic"}) {
    add({1, 2, 4, 5}, constant({1, 1, 2, 2}), none, {{"mode", mode}});
    add({1, 1, 5, 6}, none, ivals({1, 1, 3, 4}), {{"mode", mode}, {"antialias", 1}});
    for (const char* coordinates :
         {"half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"})
      add({1, 2, 5, 4}, constant({1, 1, 0.6, 1.7}), none,
          {{"mode", mode}, {"coordinate_transformation_mode", coordinates}});
    add({4, 5}, constant({0.8, 1.5}), none,
        {{"mode", mode}, {"exclude_outside", 1}, {"cubic_coeff_a", -0.5}});
    add({1, 4, 5}, none, ivals({7, 6}),
        {{"mode", mode}, {"axes", Ints{2, 1}}, {"keep_aspect_ratio_policy", "not_larger"}});
    add({4, 5}, none, ivals({3, 6}),
        {{"mode", mode},
         {"coordinate_transformation_mode", "tf_crop_and_resize"},
         {"extrapolation_value", 3.5}},
        constant({0.2, -0.1, 0.9, 1.3}));
  }
  for (const char* rounding : {"round_prefer_floor", "round_prefer_ceil", "floor"})
    add({3, 4}, none, ivals({5, 6}), {{"nearest_mode", rounding}});
  add({1, 4, 5}, none, ivals({3, 3}),
      {{"axes", Ints{1, 2}}, {"keep_aspect_ratio_policy", "not_smaller"}});
  add({1, 1, 3, 3}, none, ivals({1, 1, 1, 1}), {{"mode", "linear"}});
  add({0, 2, 3}, constant({1, 1, 2}), none, {{"mode", "linear"}});
  return all;
}

}  // namespace

void register_resize(OpTable& table) {
  OpDef resize{
      .name = "Resize",
      .inputs = {"X", "roi?", "scales?", "sizes?"},
      .outputs = {"Y"},
      .since = 10,
      .infer = infer,
      .grad = {grad("X", resize_grad), no_grad("roi"), no_grad("scales"), no_grad("sizes")},
      .adapt = adapt_resize,
      .channels_last = channels_last,
      .kernels = {{"cpu", "nearest", reject_nearest, resize_nearest},
                  {"cpu", "separable", reject_separable, resize_separable},
                  {"cpu", "ref", nullptr, resize_ref}},
      .examples = examples(),
  };
  // Only its adapt is used: files that say Upsample get Resize nodes.
  OpDef upsample = resize;
  upsample.name = "Upsample";
  upsample.since = 7;
  upsample.examples.resize(1);
  table.add(std::move(resize));
  table.add(std::move(upsample));
  table.add({
      .name = "ortrain.ResizeGrad",
      .inputs = {"dy"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .kernels = {{"cpu", "separable", reject_separable, grad_kernel<false>},
                  {"cpu", "ref", nullptr, grad_kernel<true>}},
      .examples = {{.in = {f({1, 2, 6, 8})},
                    .attrs = {{"scales", Floats{1, 1, 2, 2}}, {"dims", Ints{1, 2, 3, 4}}}},
                   {.in = {f({2, 5, 7})},
                    .attrs = {{"mode", "cubic"},
                              {"scales", Floats{1, 1.25, 0.7}},
                              {"dims", Ints{2, 4, 10}}}}},
  });
}

}  // namespace ortrain::ops
