// Pad: constant, reflect, edge and wrap; negative pads crop; pads may name their axes. Pads must be
// known before training. Every axis has a map from output to input positions (-1 = the constant);
// the fast kernel copies the runs of these maps.
// Gradients: constant mode pads dy by the negated pads (and sums the border for constant_value);
// the other modes add each output position back to its source (ortrain.PadGrad, attributes mode,
// pads for all axes, dims). Like PyTorch, reflect and wrap may turn more than once.
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

using Ints = std::vector<int64_t>;

enum class Mode { kConstant, kReflect, kEdge, kWrap };

Mode mode_of(const Attrs& attrs) {
  const std::string mode = attrs.s("mode", "constant");
  if (mode == "constant") return Mode::kConstant;
  if (mode == "reflect") return Mode::kReflect;
  if (mode == "edge") return Mode::kEdge;
  if (mode == "wrap") return Mode::kWrap;
  fail(ErrorCode::kUnsupported, "mode '", mode, "'; known: constant, reflect, edge, wrap");
}

// Pads of all axes, begins then ends.
template <class T>
std::vector<T> full_pads(const std::vector<T>& pads, const Ints* axes, int rank) {
  std::vector<T> out(static_cast<size_t>(2 * rank), T(0));
  const size_t n = axes ? axes->size() : static_cast<size_t>(rank);
  if (pads.size() != 2 * n)
    fail(ErrorCode::kShape, "pads has ", pads.size(), " values for ", n, " axes");
  for (size_t i = 0; i < n; ++i) {
    const auto axis =
        static_cast<size_t>(normalize_axis(axes ? (*axes)[i] : static_cast<int64_t>(i), rank));
    out[axis] = pads[i];
    out[axis + static_cast<size_t>(rank)] = pads[i + n];
  }
  return out;
}

std::vector<Dim> full_pads(InferCtx& c) {
  std::optional<Ints> axes;
  if (c.has(3)) axes = numbers(c.need_ints(3, "axes"), "axes");
  return full_pads(c.need_ints(1, "pads"), axes ? &*axes : nullptr, c.rank(0));
}

void infer_pad(InferCtx& c) {
  mode_of(c.attrs());
  const Shape in = c.shape(0);
  const std::vector<Dim> pads = full_pads(c);
  Shape out;
  for (int i = 0; i < in.rank(); ++i) {
    const Dim d = in[i] + pads[static_cast<size_t>(i)] + pads[static_cast<size_t>(i + in.rank())];
    if (d.is_const() && d.value() < 0) c.fail(cat("pads crop axis ", i, " of ", in.str(), " away"));
    out.push_back(d);
  }
  c.out(0, c.dtype(0), out);
}

// Input position of each of the `out` positions of an axis, -1 for the constant.
Ints axis_map(Mode mode, int64_t n, int64_t out, int64_t begin) {
  Ints map(static_cast<size_t>(out), -1);
  if (n == 0 && mode != Mode::kConstant && out > 0)
    fail(ErrorCode::kShape, "nothing to pad from: the axis is empty");
  for (int64_t o = 0; o < out; ++o) {
    int64_t i = o - begin;
    if (mode == Mode::kEdge) {
      i = std::clamp<int64_t>(i, 0, n - 1);
    } else if (mode == Mode::kWrap) {
      i = ((i % n) + n) % n;
    } else if (mode == Mode::kReflect) {
      const int64_t period = std::max<int64_t>(1, 2 * (n - 1));
      i = ((i % period) + period) % period;
      if (i >= n) i = period - i;
    } else if (i < 0 || i >= n) {
      i = -1;
    }
    map[static_cast<size_t>(o)] = i;
  }
  return map;
}

std::vector<Ints> axis_maps(Mode mode, const Dims& in, const Dims& out, const Ints& pads) {
  std::vector<Ints> maps;
  const bool nothing = product(out) == 0;
  for (size_t i = 0; i < in.size(); ++i)
    maps.push_back(nothing ? Ints{} : axis_map(mode, in[i], out[i], pads[i]));
  return maps;
}

Ints query_pads(const KernelQuery& q) {
  Ints axes;
  if (q.has_in(3)) axes = q.need_ints(3, "axes");
  return full_pads(q.need_ints(1, "pads"), q.has_in(3) ? &axes : nullptr, q.in[0].rank());
}

// The constant in the data's own type; it may come in another one from older files.
template <class T>
T pad_value(const KernelArgs& a, DType from, DType to) {
  T value{};
  if (from == DType::kUndefined) return value;
  if (from == to) {
    std::memcpy(&value, a.in[2], sizeof(T));
  } else {
    const HostTensor t =
        HostTensor::scalar_of(to, HostTensor::view(from, {}, a.in[2]).as_double(0));
    std::memcpy(&value, t.raw(), sizeof(T));
  }
  return value;
}

DType value_type(const KernelQuery& q) { return q.has_in(2) ? q.in[2].dtype : DType::kUndefined; }

Kernel pad_ref(const KernelQuery& q) {
  const Dims out = q.out[0].dims;
  const std::vector<Ints> maps = axis_maps(mode_of(q.attrs), q.in[0].dims, out, query_pads(q));
  return {0, [maps, out, strides = dense_strides(q.in[0].dims), to = q.in[0].dtype,
              from = value_type(q)](const KernelArgs& a) {
            by_size(size_of(to), [&]<class T>() {
              const T value = pad_value<T>(a, from, to);
              for (int64_t i = 0, n = product(out); i < n; ++i) {
                int64_t at = 0, rest = i;
                for (size_t k = out.size(); k-- > 0;) {
                  const int64_t p = maps[k][static_cast<size_t>(rest % out[k])];
                  rest /= out[k];
                  at = p < 0 || at < 0 ? -1 : at + p * strides[k];
                }
                a.y<T>(0)[i] = at < 0 ? value : a.x<T>(0)[at];
              }
            });
          }};
}

// `count` elements at `out` of a row: from `in` of the source row, or the constant (in < 0).
struct Run {
  int64_t out, in, count;
};

// Axes after the last padded one are the unit `inner`; the last padded axis becomes runs.
Kernel pad_runs(const KernelQuery& q) {
  const Dims &in = q.in[0].dims, &out = q.out[0].dims;
  const Ints pads = query_pads(q);
  std::vector<Ints> maps = axis_maps(mode_of(q.attrs), in, out, pads);
  size_t rank = in.size();
  const auto padded = [&](size_t k) { return pads[k] != 0 || pads[k + in.size()] != 0; };
  while (rank > 1 && !padded(rank - 1)) --rank;
  if (rank == 0) return pad_ref(q);
  const int64_t inner = product(in, static_cast<int>(rank), static_cast<int>(in.size()));
  std::vector<Run> runs;
  const Ints& last = maps[rank - 1];
  for (int64_t o = 0; o < static_cast<int64_t>(last.size()); ++o) {
    const int64_t i = last[static_cast<size_t>(o)];
    const bool joins =
        !runs.empty() &&
        (i < 0 ? runs.back().in < 0
               : runs.back().in >= 0 && i * inner == runs.back().in + runs.back().count);
    if (joins) {
      runs.back().count += inner;
    } else {
      runs.push_back({o * inner, i < 0 ? -1 : i * inner, inner});
    }
  }
  maps.resize(rank - 1);
  const Dims dims(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(rank - 1));
  const int64_t row = out[rank - 1] * inner;
  const int64_t count = row == 0 ? 0 : product(dims);
  return {0, [=, strides = dense_strides(in), to = q.in[0].dtype, from = value_type(q),
              threads = q.threads](const KernelArgs& a) {
            by_size(size_of(to), [&]<class T>() {
              const T value = pad_value<T>(a, from, to);
              const int64_t grain = std::max<int64_t>(
                  1, 32768 / std::max<int64_t>(1, row * static_cast<int64_t>(sizeof(T))));
              parallel_for(threads, count, grain, [&](int64_t begin, int64_t end) {
                for (int64_t r = begin; r < end; ++r) {
                  int64_t at = 0, rest = r;
                  for (size_t k = dims.size(); k-- > 0;) {
                    const int64_t p = maps[k][static_cast<size_t>(rest % dims[k])];
                    rest /= dims[k];
                    at = p < 0 || at < 0 ? -1 : at + p * strides[k];
                  }
                  T* y = a.y<T>(0) + r * row;
                  if (at < 0) {
                    std::fill_n(y, row, value);
                    continue;
                  }
                  const T* x = a.x<T>(0) + at;
                  for (const Run& run : runs) {
                    if (run.in < 0) {
                      std::fill_n(y + run.out, run.count, value);
                    } else if (run.count == 1) {
                      y[run.out] = x[run.in];
                    } else {
                      std::memcpy(y + run.out, x + run.in,
                                  static_cast<size_t>(run.count) * sizeof(T));
                    }
                  }
                }
              });
            });
          }};
}

Expr pad_grad(Grad& g) {
  InferCtx c(g.b.graph(), g.n);
  const Ints pads = numbers(full_pads(c), "pads");
  if (mode_of(g.attrs()) != Mode::kConstant)
    return g.b.op("ortrain.PadGrad", {g.dy()},
                  {{"mode", g.attrs().s("mode", "constant")},
                   {"pads", pads},
                   {"dims", g.x(0).shape().values()}});
  Ints back;
  for (int64_t p : pads) back.push_back(-p);
  return g.b.op("Pad", {g.dy(), g.b.ints(back)});
}

// The sum of dy over the border.
Expr value_grad(Grad& g) {
  if (mode_of(g.attrs()) != Mode::kConstant) return {};
  InferCtx c(g.b.graph(), g.n);
  const Ints pads = numbers(full_pads(c), "pads");
  Expr border =
      g.b.op("Pad", {g.b.zeros_like(g.x(0)), g.b.ints(pads), g.b.scalar(g.dy().dtype(), 1)});
  Expr masked = g.dy() * border;
  std::vector<int64_t> axes;
  for (int i = 0; i < masked.rank(); ++i) axes.push_back(i);
  Expr sum = g.b.reshape(g.b.sum(masked, axes), g.x(2).shape().values());
  return g.b.cast(sum, g.x(2).dtype());
}

// --- ortrain.PadGrad: dx[i] = sum of dy[o] over the outputs o that were copied from i
void infer_pad_grad(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.attrs().ints("dims"))); }

Kernel pad_grad_ref(const KernelQuery& q) {
  const Dims out = q.in[0].dims, in = q.out[0].dims;
  const std::vector<Ints> maps = axis_maps(mode_of(q.attrs), in, out, q.attrs.ints("pads"));
  return {0, [maps, out, strides = dense_strides(in), bytes = q.out[0].bytes(),
              dtype = q.in[0].dtype](const KernelArgs& a) {
            if (bytes > 0) std::memset(a.out[0], 0, bytes);
            dispatch_float(dtype, [&]<class T>() {
              for (int64_t i = 0, n = product(out); i < n; ++i) {
                int64_t at = 0, rest = i;
                for (size_t k = out.size(); k-- > 0;) {
                  at += maps[k][static_cast<size_t>(rest % out[k])] * strides[k];
                  rest /= out[k];
                }
                T& y = a.y<T>(0)[at];
                y = static_cast<T>(static_cast<Acc<T>>(y) + static_cast<Acc<T>>(a.x<T>(0)[i]));
              }
            });
          }};
}

// For each input position of an axis, the output positions that read it.
struct Readers {
  Ints first, at;  // at[first[i], first[i + 1])
};
Readers readers(const Ints& map, int64_t n) {
  Readers r;
  for (int64_t i = 0; i < n; ++i) {
    r.first.push_back(static_cast<int64_t>(r.at.size()));
    for (size_t o = 0; o < map.size(); ++o)
      if (map[o] == i) r.at.push_back(static_cast<int64_t>(o));
  }
  r.first.push_back(static_cast<int64_t>(r.at.size()));
  return r;
}

// One row of dx (last axis) at a time; it sums one row of dy per combination of readers.
Kernel pad_grad_rows(const KernelQuery& q) {
  const Dims out = q.in[0].dims, in = q.out[0].dims;
  if (in.empty()) return pad_grad_ref(q);
  const std::vector<Ints> maps = axis_maps(mode_of(q.attrs), in, out, q.attrs.ints("pads"));
  std::vector<Readers> all;
  for (size_t k = 0; k < in.size(); ++k) all.push_back(readers(maps[k], in[k]));
  const int64_t row = in.back();
  const int64_t count = row == 0 ? 0 : product(in) / row;
  return {0, [=, strides = dense_strides(out), threads = q.threads](const KernelArgs& a) {
            const auto outer = static_cast<int>(in.size()) - 1;
            const Readers& last = all.back();
            const auto* x = a.x<float>(0);
            parallel_for(threads, count, std::max<int64_t>(1, 4096 / row),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t r = begin; r < end; ++r) {
                             float* y = a.y<float>(0) + r * row;
                             std::fill_n(y, row, 0.0f);
                             int64_t low[16], high[16], now[16], rest = r;
                             bool any = true;
                             for (int k = outer; k-- > 0;) {
                               const auto u = static_cast<size_t>(k);
                               const auto i = static_cast<size_t>(rest % in[u]);
                               rest /= in[u];
                               low[k] = now[k] = all[u].first[i];
                               high[k] = all[u].first[i + 1];
                               any &= low[k] < high[k];
                             }
                             while (any) {
                               int64_t base = 0;
                               for (int k = 0; k < outer; ++k) {
                                 const auto u = static_cast<size_t>(k);
                                 base += all[u].at[static_cast<size_t>(now[k])] * strides[u];
                               }
                               for (int64_t i = 0; i < row; ++i)
                                 for (int64_t o = last.first[static_cast<size_t>(i)];
                                      o < last.first[static_cast<size_t>(i) + 1]; ++o)
                                   y[i] += x[base + last.at[static_cast<size_t>(o)]];
                               int k = outer;
                               while (k-- > 0) {
                                 if (++now[k] < high[k]) break;
                                 now[k] = low[k];
                               }
                               any = k >= 0;
                             }
                           }
                         });
          }};
}

std::string only_f32(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "only f32";
  return q.in[0].rank() > 16 ? "more than 16 axes" : "";
}

std::optional<LayoutChange> channels_last(Graph& g, NodeId n) {
  const auto rank = static_cast<size_t>(InferCtx(g, n).rank(0));
  if (!axes_input_channels_last(g, n, 3, rank)) return std::nullopt;
  return LayoutChange{{0}, {0}};
}

void adapt_pad(RawNode& r) {
  if (r.opset >= 11) return;
  r.ints_to_input("pads", 1);
  const double value = r.attrs.f("value", 0);
  r.attrs.erase("value");
  const Value& data = r.g.value(r.inputs[0]);
  const DType dtype = data.typed ? data.dtype : DType::kF32;
  if (value != 0) r.set_input(2, r.constant(HostTensor::scalar_of(dtype, value)));
}

}  // namespace

void register_pad(OpTable& table) {
  table.add({
      .name = "Pad",
      .inputs = {"data", "pads", "constant_value?", "axes?"},
      .outputs = {"output"},
      .infer = infer_pad,
      .grad = {grad("data", pad_grad), no_grad("pads"), grad("constant_value", value_grad),
               no_grad("axes")},
      .adapt = adapt_pad,
      .channels_last = channels_last,
      .kernels = {{"cpu", "runs", nullptr, pad_runs}, {"cpu", "ref", nullptr, pad_ref}},
      .examples = {{.in = {f({2, 3}), ivals({1, 0, 0, 2})}},
                   {.in = {f({2, 3}), ivals({0, 1, 2, 1}), f({})}},
                   {.in = {f({4, 5}), ivals({-1, 2, -1, -3}), f({})}},
                   {.in = {f({2, 3, 2}), ivals({1, 1}), absent(), ivals({-2})}},
                   {.in = {f({2, 4, 3}), ivals({2, 1, 0, 3}), f({}), ivals({1, -1})},
                    .attrs = {{"mode", "constant"}}},
                   {.in = {f({4, 5}), ivals({1, 3, 2, 4})}, .attrs = {{"mode", "reflect"}}},
                   {.in = {f({2, 3}), ivals({0, 5, 0, 7})}, .attrs = {{"mode", "reflect"}}},
                   {.in = {f({1, 3}), ivals({2, 0, 1, 0})}, .attrs = {{"mode", "reflect"}}},
                   {.in = {f({2, 3}), ivals({2, 1, 1, 4})}, .attrs = {{"mode", "edge"}}},
                   {.in = {f({2, 5}), ivals({0, -1, 3, 2})}, .attrs = {{"mode", "edge"}}},
                   {.in = {f({2, 3}), ivals({1, 2, 2, 4})}, .attrs = {{"mode", "wrap"}}},
                   {.in = {f({2, 2, 3}), ivals({1, 1}), absent(), ivals({1})},
                    .attrs = {{"mode", "wrap"}}},
                   {.in = {f({0, 2}), ivals({1, 0, 1, 0}), f({})}},
                   {.in = {f({2, 2}), ivals({0, 0, 0, 0})}}},
  });
  table.add({
      .name = "ortrain.PadGrad",
      .inputs = {"dy"},
      .outputs = {"dx"},
      .infer = infer_pad_grad,
      .grad = {grad("dy",
                    [](Grad& g) {
                      return g.b.op("Pad", {g.dy(), g.b.ints(g.attrs().ints("pads"))},
                                    {{"mode", g.attrs().s("mode", "")}});
                    })},
      .kernels = {{"cpu", "rows", only_f32, pad_grad_rows}, {"cpu", "ref", nullptr, pad_grad_ref}},
      .examples =
          {{.in = {f({7, 12})},
            .attrs = {{"mode", "reflect"}, {"pads", Ints{1, 3, 2, 4}}, {"dims", Ints{4, 5}}}},
           {.in = {f({5, 8})},
            .attrs = {{"mode", "edge"}, {"pads", Ints{2, 1, 1, 4}}, {"dims", Ints{2, 3}}}},
           {.in = {f({4, 2, 9})},
            .attrs = {{"mode", "wrap"},
                      {"pads", Ints{1, 0, 2, 1, 0, 4}},
                      {"dims", Ints{2, 2, 3}}}}},
  });
}

}  // namespace ortrain::ops
