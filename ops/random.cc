// RandomUniform, RandomNormal, their ...Like forms, Bernoulli and Multinomial.
//
// A node means an operator of ours that also takes the step, so numbers are a pure function of
// (seed, node, step, element): fresh in every step, the same in a resumed run. `seed` in the file
// is used alone (nodes with the same seed draw the same); without it the run's seed and the node's
// name. Outside training the step is 0. No gradient flows to probabilities (PyTorch: zero).
// Normal: Box-Muller, elements 2i and 2i+1 share a pair. Sequences are not numpy's nor
// onnxruntime's.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "graph/error.h"
#include "ops/common/counter_random.h"
#include "ops/common/infer_shapes.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

Shape shape_attr(InferCtx& c) {
  const std::vector<int64_t> dims = c.attrs().ints("shape");
  for (int64_t d : dims)
    if (d < 0) c.fail(cat("negative extent ", d));
  element_count(dims);
  return Shape(dims);
}

// --- what the file says
// ------------------------------------------------------------------------------------
void infer_source(InferCtx& c) {
  const DType dtype = type_attribute(c.attrs(), "dtype", DType::kF32);
  if (!is_float(dtype)) c.fail(cat("random numbers of type ", name_of(dtype)));
  c.out(0, dtype, shape_attr(c));
}
void infer_like(InferCtx& c) {
  const DType dtype = type_attribute(c.attrs(), "dtype", c.dtype(0));
  if (!is_float(dtype)) c.fail(cat("random numbers of type ", name_of(dtype)));
  c.out(0, dtype, c.shape(0));
}
void infer_bernoulli(InferCtx& c) {
  const DType dtype = type_attribute(c.attrs(), "dtype", c.dtype(0));
  if (!is_float(c.dtype(0))) c.fail("probabilities must be floats");
  if (is_storage(dtype)) c.fail(cat("random numbers of type ", name_of(dtype)));
  c.out(0, dtype, c.shape(0));
}
void infer_multinomial(InferCtx& c) {
  const DType dtype = type_attribute(c.attrs(), "dtype", DType::kI32);
  const int64_t samples = c.attrs().i("sample_size", 1);
  if (dtype != DType::kI32 && dtype != DType::kI64) c.fail("dtype must be i32 or i64");
  if (c.rank(0) != 2 || !is_float(c.dtype(0))) c.fail("input must be floats [batch, classes]");
  if (prove_equal(c.shape(0)[1], Dim(0)) == Tri::kYes) c.fail("there is no class to draw");
  if (samples < 0) c.fail(cat("sample_size is ", samples));
  c.out(0, dtype, Shape{c.shape(0)[0], Dim(samples)});
}

// The operator of ours with the same numbers.
Expr drawn(Builder& b, const Node& n, Expr step, uint64_t seed) {
  const std::string name = n.op->name;
  const Graph& g = b.graph();
  Attrs a = n.attrs;
  const bool given = a.has("seed");
  const auto bits = std::bit_cast<uint64_t>(a.f("seed", 0));
  a.set("seed", static_cast<int64_t>(given ? bits : seed));
  a.set("key", given ? int64_t{0} : key_of_origin(n.origin));
  const Expr x = n.inputs.empty() ? Expr() : b.wrap(n.inputs[0]);
  const DType missing = name == "Multinomial" ? DType::kI32
                        : x                   ? g.value(x.id()).dtype
                                              : DType::kF32;
  a.set("dtype", std::string(name_of(type_attribute(a, "dtype", missing))));
  if (name == "Bernoulli" || name == "Multinomial") return b.op("ortrain." + name, {x, step}, a);
  const bool normal = name.starts_with("RandomNormal");
  return b.op(normal ? "ortrain.RandomNormal" : "ortrain.RandomUniform", {step, x}, a);
}

void policy(Graph& g, NodeId id, const TrainingPolicy& p) {
  const Node n = g.node(id);
  Builder b(g, n.origin + "|canonicalize");
  const Expr step = p.step == kNone ? b.constant(HostTensor::scalar<int64_t>(0)) : b.wrap(p.step);
  g.replace_uses(n.outputs[0], drawn(b, n, step, p.seed).id());
}

std::vector<Expr> at_step_zero(Decompose& d) {
  const Node n = d.node();
  return {drawn(d.b, n, d.b.constant(HostTensor::scalar<int64_t>(0)), 0)};
}

// --- ours
// ------------------------------------------------------------------------------------------------
void infer_fill(InferCtx& c) {
  c.out(0, type_attribute(c.attrs(), "dtype", DType::kF32), c.has(1) ? c.shape(1) : shape_attr(c));
}
void infer_of_first(InferCtx& c) {
  c.out(0, type_attribute(c.attrs(), "dtype", c.dtype(0)), c.shape(0));
}

Kernel uniform(const KernelQuery& q) {
  const double low = q.attrs.f("low", 0), span = q.attrs.f("high", 1) - low;
  return dispatch_float(q.out[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=, key = random_key(q.attrs), n = q.out[0].count(),
                threads = q.threads](const KernelArgs& a) {
              const uint64_t stream = random_stream(key, a.x<int64_t>(0)[0]);
              parallel_for(threads, n, 8192, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i)
                  a.y<T>(0)[i] = store<T>(low + span * random_unit(stream, i));
              });
            }};
  });
}

Kernel normal(const KernelQuery& q) {
  const double mean = q.attrs.f("mean", 0), scale = q.attrs.f("scale", 1);
  return dispatch_float(q.out[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=, key = random_key(q.attrs), n = q.out[0].count(),
                threads = q.threads](const KernelArgs& a) {
              const uint64_t stream = random_stream(key, a.x<int64_t>(0)[0]);
              parallel_for(threads, (n + 1) / 2, 1024, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const double size = std::sqrt(-2 * std::log1p(-random_unit(stream, 2 * i)));
                  const double angle = 2 * std::numbers::pi * random_unit(stream, 2 * i + 1);
                  a.y<T>(0)[2 * i] = store<T>(mean + scale * size * std::cos(angle));
                  if (2 * i + 1 < n)
                    a.y<T>(0)[2 * i + 1] = store<T>(mean + scale * size * std::sin(angle));
                }
              });
            }};
  });
}

Kernel bernoulli(const KernelQuery& q) {
  return dispatch_float(q.in[0].dtype, [&]<class P>() -> Kernel {
    return dispatch(q.out[0].dtype, [&]<class T>() -> Kernel {
      return {0, [key = random_key(q.attrs), n = q.out[0].count(),
                  threads = q.threads](const KernelArgs& a) {
                const uint64_t stream = random_stream(key, a.x<int64_t>(1)[0]);
                parallel_for(threads, n, 8192, [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i)
                    a.y<T>(0)[i] = store<T>(random_unit(stream, i) < load(a.x<P>(0)[i]) ? 1 : 0);
                });
              }};
    });
  });
}

// Rows of exp(x - max) summed up in the workspace; a class is drawn by its share of the sum.
Kernel multinomial(const KernelQuery& q) {
  const int64_t rows = q.in[0].dims[0], classes = q.in[0].dims[1], samples = q.out[0].dims[1];
  const bool wide = q.out[0].dtype == DType::kI64;
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {static_cast<size_t>(rows * classes) * sizeof(double),
            [=, key = random_key(q.attrs), threads = q.threads](const KernelArgs& a) {
              if (classes == 0) return;
              const uint64_t stream = random_stream(key, a.x<int64_t>(1)[0]);
              parallel_for(
                  threads, rows, 1 + 4096 / (classes + samples), [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      const T* x = a.x<T>(0) + r * classes;
                      double* sums = static_cast<double*>(a.workspace) + r * classes;
                      double top = load(x[0]), sum = 0;
                      for (int64_t i = 1; i < classes; ++i) top = std::max<double>(top, load(x[i]));
                      for (int64_t i = 0; i < classes; ++i)
                        sums[i] = sum += std::exp(load(x[i]) - top);
                      for (int64_t s = 0; s < samples; ++s) {
                        const double u = sum * random_unit(stream, r * samples + s);
                        const int64_t at =
                            std::min(classes - 1, std::upper_bound(sums, sums + classes, u) - sums);
                        if (wide)
                          a.y<int64_t>(0)[r * samples + s] = at;
                        else
                          a.y<int32_t>(0)[r * samples + s] = static_cast<int32_t>(at);
                      }
                    }
                  });
            }};
  });
}

OpDef from_file(const char* name, int since, std::vector<std::string> inputs, InferFn infer,
                std::vector<Example> examples) {
  OpDef op{.name = name,
           .inputs = inputs,
           .outputs = {"output"},
           .since = since,
           .infer = infer,
           .decompose = at_step_zero,
           .training_policy = policy,
           .random = true,
           .examples = std::move(examples),
           .note = "fresh per step and replayable; the same numbers in every evaluation"};
  for (const std::string& i : inputs) op.grad.push_back(no_grad(i));
  return op;
}

OpDef ours(const char* name, std::vector<std::string> inputs, InferFn infer,
           Kernel (*prepare)(const KernelQuery&), std::vector<Example> examples) {
  OpDef op{.name = name,
           .inputs = inputs,
           .outputs = {"y"},
           .infer = infer,
           .random = true,
           .kernels = {{"cpu", "ref", nullptr, prepare}},
           .examples = std::move(examples)};
  for (std::string i : inputs) {
    if (i.back() == '?') i.pop_back();
    op.grad.push_back(no_grad(i));
  }
  return op;
}

}  // namespace

void register_random(OpTable& table) {
  using Ints = std::vector<int64_t>;
  const Attrs shape{{"shape", Ints{2, 3}}};
  const ExampleInput p = f({3, 4}, 0, 1), step = iconst({}, {3});
  table.add(from_file("RandomUniform", 1, {}, infer_source,
                      {{.attrs = shape}, {.attrs = {{"shape", Ints{0, 2}}, {"dtype", "f64"}}}}));
  table.add(from_file("RandomNormal", 1, {}, infer_source,
                      {{.attrs = shape}, {.attrs = {{"shape", Ints{}}, {"seed", 2.5}}}}));
  table.add(from_file("RandomUniformLike", 1, {"input"}, infer_like,
                      {{.in = {p}}, {.in = {ints({2}, 0, 3)}, .attrs = {{"dtype", "f32"}}}}));
  table.add(from_file("RandomNormalLike", 1, {"input"}, infer_like,
                      {{.in = {p}}, {.in = {f({0})}, .attrs = {{"mean", 3.0}, {"scale", 2.0}}}}));
  table.add(from_file("Bernoulli", 15, {"input"}, infer_bernoulli,
                      {{.in = {p}}, {.in = {p}, .attrs = {{"dtype", "i32"}, {"seed", 1.0}}}}));
  table.add(from_file("Multinomial", 7, {"input"}, infer_multinomial,
                      {{.in = {p}}, {.in = {p}, .attrs = {{"sample_size", 5}, {"dtype", "i64"}}}}));
  const Attrs fill{{"shape", Ints{3, 5}}, {"seed", 1}, {"dtype", "f32"}};
  table.add(ours("ortrain.RandomUniform", {"step", "like?"}, infer_fill, uniform,
                 {{.in = {step}, .attrs = fill},
                  {.in = {step, ints({4}, 0, 2)}, .attrs = {{"dtype", "f64"}, {"low", -1.0}}}}));
  table.add(ours("ortrain.RandomNormal", {"step", "like?"}, infer_fill, normal,
                 {{.in = {step}, .attrs = fill},
                  {.in = {step}, .attrs = {{"shape", Ints{1}}, {"dtype", "f64"}}}}));
  table.add(ours("ortrain.Bernoulli", {"p", "step"}, infer_of_first, bernoulli,
                 {{.in = {p, step}}, {.in = {p, step}, .attrs = {{"dtype", "bool"}}}}));
  table.add(ours("ortrain.Multinomial", {"x", "step"}, infer_multinomial, multinomial,
                 {{.in = {p, step}, .attrs = {{"sample_size", 7}}},
                  {.in = {f({2, 1}), step}, .attrs = {{"dtype", "i64"}}}}));
}

}  // namespace ortrain::ops
