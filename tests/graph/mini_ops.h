// A small operator table and a double-precision interpreter, so that tests of graph/ need no other
// library. Gradient formulas here are written anew for the tests; results are checked against
// central differences or numbers worked out by hand.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::mini {

inline OpDef ew(std::string name, Ew code, std::vector<std::string> inputs,
                std::vector<GradRule> rules, InferFn infer = infer_broadcast) {
  OpDef op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.outputs = {"y"};
  op.infer = infer;
  op.grad = std::move(rules);
  op.ew = code;
  return op;
}

inline Dims const_dims(InferCtx& c, int i) {
  Dims out;
  for (const Dim& d : c.need_ints(i, "shape")) out.push_back(d.value());
  return out;
}

inline void infer_reduce(InferCtx& c) {
  std::vector<bool> reduced(static_cast<size_t>(c.rank(0)), !c.has(1));
  if (c.has(1))
    for (int64_t a : const_dims(c, 1))
      reduced[static_cast<size_t>(normalize_axis(a, c.rank(0)))] = true;
  Shape s;
  for (int i = 0; i < c.rank(0); ++i) {
    if (!reduced[static_cast<size_t>(i)])
      s.push_back(c.shape(0)[i]);
    else if (c.attrs().i("keepdims", 1))
      s.push_back(1);
  }
  c.out(0, c.dtype(0), s);
}

inline void infer_cast(InferCtx& c) {
  c.out(0, *dtype_from_name(c.attrs().s("to", "f32")), c.shape(0));
}
inline void infer_where(InferCtx& c) {
  c.out(0, c.dtype(1), broadcast(broadcast(c.shape(0), c.shape(1)), c.shape(2)));
}
inline void infer_matmul(InferCtx& c) {
  if (c.rank(0) != 2 || c.rank(1) != 2 || prove_equal(c.shape(0)[1], c.shape(1)[0]) == Tri::kNo)
    c.fail("matrices do not fit");
  c.out(0, c.dtype(0), Shape({c.shape(0)[0], c.shape(1)[1]}));
}
inline void infer_transpose(InferCtx& c) {
  std::vector<int64_t> p = c.attrs().ints("perm");
  if (p.empty())
    for (int i = c.rank(0) - 1; i >= 0; --i) p.push_back(i);
  Shape s;
  for (int64_t a : p) s.push_back(c.shape(0)[static_cast<int>(a)]);
  c.out(0, c.dtype(0), s);
}
inline void infer_reshape(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.need_ints(1, "shape"))); }
inline void infer_expand(InferCtx& c) {
  c.out(0, c.dtype(0), broadcast(c.shape(0), Shape(c.need_ints(1, "shape"))));
}
inline void infer_shape(InferCtx& c) {
  c.out(0, DType::kI64, Shape({Dim(c.rank(0))}));
  c.out_ints(0, c.shape(0).dims());
}
// A normalisation with running statistics: x, mean, var -> y [, mean', var'].
inline void infer_norm(InferCtx& c) {
  c.out(0, c.dtype(0), c.shape(0));
  c.out(1, c.dtype(0), c.shape(1));
  c.out(2, c.dtype(0), c.shape(2));
}
inline void norm_policy(Graph& g, NodeId n, const TrainingPolicy& policy) {
  const bool training = policy.training && !policy.batch_norm_frozen;
  g.node(n).attrs.set("training_mode", int64_t{training});
  if (!training || !policy.update_states) return;
  const ValueId mean = g.node(n).inputs[1], var = g.node(n).inputs[2];
  g.add_update(mean, g.add_output(n, 1));
  g.add_update(var, g.add_output(n, 2));
  g.infer(n);
}
inline void dropout_policy(Graph& g, NodeId n, const TrainingPolicy& policy) {
  if (!policy.training || g.node(n).attrs.f("ratio", 0.5) == 0)
    return g.replace_uses(g.node(n).outputs[0], g.node(n).inputs[0]);
  Builder b(g, g.node(n).origin);
  const Expr y = b.op("test.Masked", {b.wrap(g.node(n).inputs[0]), b.wrap(policy.step)});
  g.replace_uses(g.node(n).outputs[0], y.id());
}

inline OpTable table() {
  OpTable t;
  const auto same = infer_same_as_first;
  t.add(ew("Identity", Ew::kIdentity, {"x"}, {grad("x", [](Grad& g) { return g.dy(); })}, same));
  t.add(ew("Add", Ew::kAdd, {"a", "b"},
           {grad("a", [](Grad& g) { return g.dy(); }), grad("b", [](Grad& g) { return g.dy(); })}));
  t.add(
      ew("Sub", Ew::kSub, {"a", "b"},
         {grad("a", [](Grad& g) { return g.dy(); }), grad("b", [](Grad& g) { return -g.dy(); })}));
  t.add(ew("Mul", Ew::kMul, {"a", "b"},
           {grad("a", [](Grad& g) { return g.dy() * g.x(1); }),
            grad("b", [](Grad& g) { return g.dy() * g.x(0); })}));
  t.add(ew("Div", Ew::kDiv, {"a", "b"},
           {grad("a", [](Grad& g) { return g.dy() / g.x(1); }),
            grad("b", [](Grad& g) { return -(g.dy() * g.y() / g.x(1)); })}));
  t.add(ew("Min", Ew::kMin, {"a", "b"}, {no_grad("a"), no_grad("b")}));
  t.add(ew("Max", Ew::kMax, {"a", "b"},
           {grad("a",
                 [](Grad& g) {
                   return g.b.where(g.b.op("Less", {g.x(1), g.x(0)}), g.dy(), g.dy() * 0);
                 }),
            not_differentiable("b", "the bound is fixed")}));
  t.add(ew("Neg", Ew::kNeg, {"x"}, {grad("x", [](Grad& g) { return -g.dy(); })}, same));
  t.add(ew("Exp", Ew::kExp, {"x"}, {grad("x", [](Grad& g) { return g.dy() * g.y(); })}, same));
  t.add(ew("Log", Ew::kLog, {"x"}, {grad("x", [](Grad& g) { return g.dy() / g.x(); })}, same));
  t.add(ew("Abs", Ew::kAbs, {"x"},
           {grad("x", [](Grad& g) { return g.dy() * g.b.unary("Sign", g.x()); })}, same));
  t.add(ew("Sign", Ew::kSign, {"x"}, {no_grad("x")}, same));
  t.add(ew("Tanh", Ew::kTanh, {"x"},
           {grad("x", [](Grad& g) { return g.dy() * (1 - g.y() * g.y()); })}, same));
  t.add(ew("Sigmoid", Ew::kSigmoid, {"x"},
           {grad("x", [](Grad& g) { return g.dy() * g.y() * (1 - g.y()); })}, same));
  t.add(ew("Softplus", Ew::kSoftplus, {"x"},
           {grad("x", [](Grad& g) { return g.dy() * g.b.unary("Sigmoid", g.x()); })}, same));
  t.add(ew("Less", Ew::kLess, {"a", "b"}, {no_grad("a"), no_grad("b")}, infer_compare));
  t.add(ew("Greater", Ew::kGreater, {"a", "b"}, {no_grad("a"), no_grad("b")}, infer_compare));
  t.add(ew("Equal", Ew::kEqual, {"a", "b"}, {no_grad("a"), no_grad("b")}, infer_compare));
  t.add(ew("Where", Ew::kWhere, {"c", "a", "b"},
           {no_grad("c"), grad("a", [](Grad& g) { return g.b.where(g.x(0), g.dy(), g.dy() * 0); }),
            grad("b", [](Grad& g) { return g.b.where(g.x(0), g.dy() * 0, g.dy()); })},
           infer_where));
  t.add(ew("Cast", Ew::kCast, {"x"},
           {grad("x", [](Grad& g) { return g.b.cast(g.dy(), g.x().dtype()); })}, infer_cast));
  t.add(
      {.name = "MatMul",
       .inputs = {"a", "b"},
       .outputs = {"y"},
       .infer = infer_matmul,
       .grad = {grad("a", [](Grad& g) { return g.b.matmul(g.dy(), g.b.swap_last_two(g.x(1))); }),
                grad("b", [](Grad& g) { return g.b.matmul(g.b.swap_last_two(g.x(0)), g.dy()); })}});
  const auto spread = [](Grad& g, double scale) {
    Dims dims = g.x(0).shape().values(), kept;
    const Dims small = g.y().shape().values();
    size_t j = 0;
    const bool keep = g.attrs().i("keepdims", 1);
    std::vector<int64_t> axes;
    if (g.has_x(1)) axes = g.b.graph().tensor(g.x(1).id())->as_ints();
    for (size_t i = 0; i < dims.size(); ++i) {
      bool reduced = !g.has_x(1);
      for (int64_t a : axes)
        reduced |= normalize_axis(a, static_cast<int>(dims.size())) == static_cast<int>(i);
      kept.push_back(reduced ? 1 : keep ? small[i] : small[j++]);
    }
    return g.b.expand(g.b.reshape(g.dy(), kept), dims) * scale;
  };
  static const auto spread_gradient = spread;
  t.add({.name = "ReduceSum",
         .inputs = {"x", "axes?"},
         .outputs = {"y"},
         .infer = infer_reduce,
         .grad = {grad("x", [](Grad& g) { return spread_gradient(g, 1); }), no_grad("axes")}});
  t.add({.name = "ReduceMean",
         .inputs = {"x", "axes?"},
         .outputs = {"y"},
         .infer = infer_reduce,
         .grad = {grad("x",
                       [](Grad& g) {
                         return spread_gradient(
                             g, static_cast<double>(element_count(g.y().shape().values())) /
                                    static_cast<double>(element_count(g.x(0).shape().values())));
                       }),
                  no_grad("axes")}});
  t.add({.name = "Transpose",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = infer_transpose,
         .grad = {grad("x", [](Grad& g) {
           std::vector<int64_t> p = g.attrs().ints("perm");
           if (p.empty()) return g.b.op("Transpose", {g.dy()});
           std::vector<int64_t> inverse(p.size());
           for (size_t i = 0; i < p.size(); ++i)
             inverse[static_cast<size_t>(p[i])] = static_cast<int64_t>(i);
           return g.b.transpose(g.dy(), inverse);
         })}});
  t.add({.name = "Reshape",
         .inputs = {"x", "shape"},
         .outputs = {"y"},
         .infer = infer_reshape,
         .grad = {grad("x", [](Grad& g) { return g.b.reshape_like(g.dy(), g.x(0)); }),
                  no_grad("shape")},
         .view = true});
  t.add({.name = "Expand",
         .inputs = {"x", "shape"},
         .outputs = {"y"},
         .infer = infer_expand,
         .grad = {grad("x", [](Grad& g) { return g.dy(); }), no_grad("shape")}});
  t.add({.name = "Slice",
         .inputs = {"x", "starts", "ends", "axes?", "steps?"},
         .outputs = {"y"},
         .infer = [](InferCtx& c) {
           Shape s = c.shape(0);
           s[static_cast<int>(const_dims(c, 3)[0])] = const_dims(c, 2)[0] - const_dims(c, 1)[0];
           c.out(0, c.dtype(0), s);
         }});
  t.add({.name = "Split", .inputs = {"x", "split?"}, .outputs = {"ys*"}, .infer = [](InferCtx& c) {
           const Dims sizes = const_dims(c, 1);
           for (int i = 0; i < c.output_count(); ++i) {
             Shape s = c.shape(0);
             s[static_cast<int>(c.attrs().i("axis", 0))] = sizes[static_cast<size_t>(i)];
             c.out(i, c.dtype(0), s);
           }
         }});
  t.add({.name = "Shape",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = infer_shape,
         .grad = {no_grad("x")}});
  t.add({.name = "Softmax", .inputs = {"x"}, .outputs = {"y"}, .infer = same});  // no rule: loud
  // Composite: swish(x) = x * sigmoid(x), differentiated through its decomposition.
  t.add({.name = "Swish",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = same,
         .decompose = [](Decompose& d) {
           return std::vector<Expr>{d.x() * d.b.unary("Sigmoid", d.x())};
         }});
  t.add({.name = "Scaled",
         .inputs = {"x", "scale"},
         .outputs = {"y"},
         .infer = same,
         .grad = {grad("x", [](Grad& g) { return g.dy(); }), no_grad("scale")}});
  OpDef norm{.name = "Norm",
             .inputs = {"x", "mean", "var"},
             .outputs = {"y", "mean_out?", "var_out?"},
             .infer = infer_norm,
             .grad = {grad("x", [](Grad& g) { return g.dy(); }), no_grad("mean"), no_grad("var")}};
  norm.training_policy = norm_policy;
  t.add(std::move(norm));
  OpDef dropout{.name = "Dropout",
                .inputs = {"x"},
                .outputs = {"y"},
                .infer = same,
                .grad = {grad("x", [](Grad& g) { return g.dy(); })}};
  dropout.training_policy = dropout_policy;
  t.add(std::move(dropout));
  OpDef masked{.name = "test.Masked",
               .inputs = {"x", "step"},
               .outputs = {"y"},
               .infer = same,
               .grad = {grad("x", [](Grad& g) { return g.dy(); }), no_grad("step")}};
  masked.random = true;
  t.add(std::move(masked));
  t.add({.name = "ortrain.CrossEntropy",
         .inputs = {"x", "labels"},
         .outputs = {"loss", "lse?", "divisor?"},
         .infer =
             [](InferCtx& c) {
               c.out(0, c.dtype(0), Shape());
               c.out(2, c.dtype(0), Shape());
             },
         .grad = {grad("x", [](Grad& g) { return g.dy() * g.x(0); }), no_grad("labels")}});
  t.add({.name = "ortrain.Linear",
         .inputs = {"x", "w", "b?"},
         .outputs = {"y"},
         .infer =
             [](InferCtx& c) {
               Shape s = c.shape(0);
               s[s.rank() - 1] = c.shape(1)[c.attrs().i("trans_b", 0) ? 0 : 1];
               c.out(0, c.dtype(0), s);
             },
         .decompose =
             [](Decompose& d) {
               const Expr w = d.attrs().i("trans_b", 0) ? d.b.swap_last_two(d.x(1)) : d.x(1);
               const Expr y = d.b.matmul(d.x(0), w);
               return std::vector<Expr>{d.has_x(2) ? y + d.x(2) : y};
             }});
  t.add({.name = "ortrain.LearningRate",
         .inputs = {"step"},
         .outputs = {"lr"},
         .infer = [](InferCtx& c) { c.out(0, DType::kF64, Shape()); }});
  t.add({.name = "ortrain.GlobalNorm",
         .inputs = {"xs*"},
         .outputs = {"norm"},
         .infer = [](InferCtx& c) { c.out(0, c.dtype(0), Shape()); }});
  t.add({.name = "ortrain.AllFinite",
         .inputs = {"xs*"},
         .outputs = {"finite"},
         .infer = [](InferCtx& c) { c.out(0, DType::kBool, Shape()); }});
  t.add({.name = "And", .inputs = {"a", "b"}, .outputs = {"y"}, .infer = infer_compare});
  t.add({.name = "ortrain.LossScale",
         .inputs = {"scale", "good", "skipped", "finite", "applied"},
         .outputs = {"scale", "good", "skipped"},
         .infer = [](InferCtx& c) {
           for (int i = 0; i < 3; ++i) c.out(i, c.dtype(i), Shape());
         }});
  // Groups of [p, g, states...] after the four scalars; outputs are p and the states.
  const auto infer_update = [](InferCtx& c) {
    const int per_group =
        c.output_count() / static_cast<int>(c.attrs().floats("weight_decay").size());
    for (int o = 0; o < c.output_count(); ++o) {
      const int group = o / per_group, k = o % per_group;
      const int in = 4 + group * (per_group + 1) + (k == 0 ? 0 : k + 1);
      c.out(o, c.dtype(in), c.shape(in));
    }
  };
  for (const char* name : {"ortrain.AdamW", "ortrain.SGD", "ortrain.SGDMomentum"})
    t.add({.name = name,
           .inputs = {"lr", "step", "apply", "scale?", "xs*"},
           .outputs = {"ys*"},
           .infer = infer_update});
  return t;
}

// --- interpreter
// --------------------------------------------------------------------------------------
inline double apply(Ew code, const double* a) {
  switch (code) {
    case Ew::kIdentity: return a[0];
    case Ew::kAdd: return a[0] + a[1];
    case Ew::kSub: return a[0] - a[1];
    case Ew::kMul: return a[0] * a[1];
    case Ew::kDiv: return a[0] / a[1];
    case Ew::kMin: return std::min(a[0], a[1]);
    case Ew::kMax: return std::max(a[0], a[1]);
    case Ew::kNeg: return -a[0];
    case Ew::kExp: return std::exp(a[0]);
    case Ew::kLog: return std::log(a[0]);
    case Ew::kAbs: return std::fabs(a[0]);
    case Ew::kSign: return (a[0] > 0) - (a[0] < 0);
    case Ew::kTanh: return std::tanh(a[0]);
    case Ew::kSigmoid: return 1 / (1 + std::exp(-a[0]));
    case Ew::kSoftplus: return std::log1p(std::exp(-std::fabs(a[0]))) + std::max(a[0], 0.0);
    case Ew::kLess: return a[0] < a[1];
    case Ew::kGreater: return a[0] > a[1];
    case Ew::kEqual: return a[0] == a[1];
    case Ew::kWhere: return a[0] != 0 ? a[1] : a[2];
    case Ew::kCast: return a[0];
    default: throw Error(ErrorCode::kUnsupported, "the test interpreter lacks this operation");
  }
}

// Offset into a tensor of `dims` for a position in a larger, right-aligned shape.
inline int64_t offset(const Dims& dims, const Dims& at) {
  int64_t o = 0;
  const size_t lead = at.size() - dims.size();
  for (size_t i = 0; i < dims.size(); ++i) o = o * dims[i] + (dims[i] == 1 ? 0 : at[lead + i]);
  return o;
}
inline void each(const Dims& dims, const std::function<void(const Dims&, int64_t)>& f) {
  Dims at(dims.size(), 0);
  const int64_t n = element_count(dims);
  for (int64_t i = 0; i < n; ++i) {
    f(at, i);
    for (size_t a = dims.size(); a-- > 0;) {
      if (++at[a] < dims[a]) break;
      at[a] = 0;
    }
  }
}

// One node from the contents of its inputs; false for operators it does not know.
inline bool evaluate_node(const Graph& g, NodeId n, const std::vector<const HostTensor*>& in,
                          HostTensor& out) {
  const Node& x = g.node(n);
  const Value& y = g.value(x.outputs[0]);
  const Dims dims = y.shape.values();
  out = HostTensor(y.dtype, dims);
  if (x.op->ew != Ew::kNone) {
    each(dims, [&](const Dims& at, int64_t i) {
      double a[3] = {};
      for (size_t k = 0; k < in.size(); ++k) a[k] = in[k]->as_double(offset(in[k]->dims(), at));
      out.set_double(i, apply(x.op->ew, a));
    });
    return true;
  }
  if (x.op->name == "Swish") {
    for (int64_t i = 0; i < out.count(); ++i) {
      const double v = in[0]->as_double(i);
      out.set_double(i, v / (1 + std::exp(-v)));
    }
  } else if (x.op->name == "Expand") {
    each(dims, [&](const Dims& at, int64_t i) {
      out.set_double(i, in[0]->as_double(offset(in[0]->dims(), at)));
    });
  } else if (x.op->name == "Reshape") {
    for (int64_t i = 0; i < out.count(); ++i) out.set_double(i, in[0]->as_double(i));
  } else if (x.op->name == "MatMul") {
    const int64_t k = in[0]->dims()[1];
    each(dims, [&](const Dims& at, int64_t i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j)
        sum += in[0]->as_double(at[0] * k + j) * in[1]->as_double(j * dims[1] + at[1]);
      out.set_double(i, sum);
    });
  } else if (x.op->name == "Transpose") {
    std::vector<int64_t> p = x.attrs.ints("perm");
    if (p.empty())
      for (size_t i = dims.size(); i-- > 0;) p.push_back(static_cast<int64_t>(i));
    each(dims, [&](const Dims& at, int64_t i) {
      Dims from(at.size());
      for (size_t a = 0; a < at.size(); ++a) from[static_cast<size_t>(p[a])] = at[a];
      out.set_double(i, in[0]->as_double(offset(in[0]->dims(), from)));
    });
  } else if (x.op->name == "ReduceSum" || x.op->name == "ReduceMean") {
    const Dims& full = in[0]->dims();
    std::vector<bool> reduced(full.size(), in.size() < 2);
    if (in.size() > 1)
      for (int64_t a : in[1]->as_ints())
        reduced[static_cast<size_t>(normalize_axis(a, static_cast<int>(full.size())))] = true;
    Dims kept;
    for (size_t i = 0; i < full.size(); ++i) kept.push_back(reduced[i] ? 1 : full[i]);
    const double scale = x.op->name == "ReduceSum" ? 1
                                                   : static_cast<double>(out.count()) /
                                                         static_cast<double>(in[0]->count());
    each(full, [&](const Dims& at, int64_t i) {
      const int64_t o = offset(kept, at);
      out.set_double(o, out.as_double(o) + in[0]->as_double(i) * scale);
    });
  } else {
    return false;
  }
  return true;
}

// The Evaluate of compile(): all inputs constant, one output.
inline bool evaluate(const Graph& g, NodeId n, std::vector<HostTensor>& outputs) {
  std::vector<const HostTensor*> in;
  for (ValueId v : g.node(n).inputs) in.push_back(g.tensor(v));
  outputs.resize(1);
  return g.node(n).outputs.size() == 1 && evaluate_node(g, n, in, outputs[0]);
}

// Runs the whole graph. `feed` replaces the contents of sources by name.
inline std::map<std::string, HostTensor> run(const Graph& g,
                                             const std::map<std::string, HostTensor>& feed = {}) {
  std::map<ValueId, HostTensor> values;
  const auto get = [&](ValueId v) -> const HostTensor* {
    if (const auto it = values.find(v); it != values.end()) return &it->second;
    if (const auto it = feed.find(g.value(v).name); it != feed.end()) return &it->second;
    return g.tensor(v);
  };
  for (NodeId n : g.order.empty() ? g.topo() : g.order) {
    std::vector<const HostTensor*> in;
    for (ValueId v : g.node(n).inputs) in.push_back(v == kNone ? nullptr : get(v));
    if (!evaluate_node(g, n, in, values[g.node(n).outputs[0]]))
      throw Error(ErrorCode::kUnsupported, "the test interpreter cannot run " + g.describe(n));
  }
  std::map<std::string, HostTensor> out;
  for (size_t i = 0; i < g.outputs().size(); ++i)
    out[g.output_names()[i]] = get(g.outputs()[i])->clone();
  return out;
}

// The text form with ids counted from 0 in printing order, so that texts compare.
inline std::string normal(const Graph& g) {
  return print_graph(parse_graph(print_graph(g), g.ops()));
}

}  // namespace ortrain::mini
