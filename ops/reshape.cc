// Reshape, Flatten, Squeeze, Unsqueeze: another shape over the same memory (views; nothing runs).
// The target shape must be known before training. Gradient: the output gradient in the input's
// shape.
#include <algorithm>

#include "graph/error.h"
#include "graph/pad_axes.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

// 0 copies the input's extent (unless allowzero), one -1 takes what is left.
void infer_reshape(InferCtx& c) {
  std::vector<Dim> out = c.need_ints(1, "the target shape");
  const Shape& in = c.shape(0);
  const bool allow_zero = c.attrs().i("allowzero", 0) != 0;
  int rest = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == Dim(0) && !allow_zero) {
      if (static_cast<int>(i) >= in.rank())
        c.fail(cat("extent 0 at position ", i, " copies an axis that the input ", in.str(),
                   " does not have"));
      out[i] = in[static_cast<int>(i)];
    } else if (out[i] == Dim(-1)) {
      if (rest >= 0) c.fail("more than one -1 in the target shape");
      rest = static_cast<int>(i);
    } else if (out[i].is_const() && out[i].value() < 0) {
      c.fail(cat("extent ", out[i].value(), " in the target shape"));
    }
  }
  if (rest >= 0) {
    // Extents that appear on both sides cancel first, so that symbolic ones divide exactly.
    std::vector<Dim> above(in.begin(), in.end());
    Dim below = 1;
    for (size_t i = 0; i < out.size(); ++i) {
      if (static_cast<int>(i) == rest) continue;
      const auto same = std::find(above.begin(), above.end(), out[i]);
      if (same != above.end() && !(out[i] == Dim(0))) {
        above.erase(same);
      } else {
        below = below * out[i];
      }
    }
    Dim total = 1;
    for (Dim d : above) total = total * d;
    if (below == Dim(0)) {
      if (!(total == Dim(0))) c.fail(cat("cannot reshape ", in.str(), " to an empty shape"));
      out[static_cast<size_t>(rest)] = 0;
    } else {
      const bool numbers = total.is_const() && below.is_const();
      if (numbers && total.value() % below.value() != 0)
        c.fail(cat("input ", in.str(), " does not divide into the target shape, -1 would be ",
                   total.value(), "/", below.value()));
      out[static_cast<size_t>(rest)] = floordiv(total, below);
    }
  }
  const Shape shape(std::move(out));
  if (shape.is_const() && in.is_const() && shape.count() != in.count())
    c.fail(cat("input ", in.str(), " has ", in.count().value(), " elements, target ", shape.str(),
               " has ", shape.count().value()));
  c.out(0, c.dtype(0), shape);
  carry_ints(c);
}

void infer_flatten(InferCtx& c) {
  const int rank = c.rank(0);
  const int64_t given = c.attrs().i("axis", 1);
  if (given < -rank || given > rank) c.fail(cat("axis ", given, " of ", c.shape(0).str()));
  const int axis = static_cast<int>(given < 0 ? given + rank : given);
  Dim rows = 1, columns = 1;
  for (int i = 0; i < rank; ++i)
    (i < axis ? rows : columns) = (i < axis ? rows : columns) * c.shape(0)[i];
  c.out(0, c.dtype(0), Shape{rows, columns});
  carry_ints(c);
}

void infer_squeeze(InferCtx& c) {
  const Shape& in = c.shape(0);
  std::vector<bool> drop(static_cast<size_t>(in.rank()), false);
  if (c.has(1)) {
    for (int axis : normalize_axes(numbers(c.need_ints(1, "axes"), "axes"), in.rank())) {
      if (in[axis].is_const() && in[axis].value() != 1)
        c.fail(cat("axis ", axis, " of ", in.str(), " is not 1"));
      drop[static_cast<size_t>(axis)] = true;
    }
  } else {
    for (int i = 0; i < in.rank(); ++i) drop[static_cast<size_t>(i)] = in[i] == Dim(1);
  }
  Shape out;
  for (int i = 0; i < in.rank(); ++i)
    if (!drop[static_cast<size_t>(i)]) out.push_back(in[i]);
  c.out(0, c.dtype(0), out);
  carry_ints(c);
}

void infer_unsqueeze(InferCtx& c) {
  const Shape& in = c.shape(0);
  const std::vector<int64_t> given = numbers(c.need_ints(1, "axes"), "axes");
  const int rank = in.rank() + static_cast<int>(given.size());
  const std::vector<int> axes = normalize_axes(given, rank);
  Shape out;
  for (int i = 0, from = 0; i < rank; ++i)
    out.push_back(std::binary_search(axes.begin(), axes.end(), i) ? Dim(1) : in[from++]);
  c.out(0, c.dtype(0), out);
  carry_ints(c);
}

void axes_to_input(RawNode& r) {
  if (r.opset < 13) r.ints_to_input("axes", 1);
}

// Axes that keep their extent and their place: as much lies before them on both sides.
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  const Shape &x = g.value(n.inputs[0]).shape, &y = g.value(n.outputs[0]).shape;
  if (!x.is_const() || !y.is_const() || x.count() == Dim(0)) return std::nullopt;
  PadAxes p{{std::string(static_cast<size_t>(x.rank()), '.')},
            {std::string(static_cast<size_t>(y.rank()), '.')}};
  char letter = 'a';
  int64_t before_x = 1, before_y = 1;
  for (int i = 0, j = 0; i < x.rank() && j < y.rank();) {
    if (before_x == before_y && x[i] == y[j]) {
      if (letter <= 'z') {
        p.inputs[0][static_cast<size_t>(i)] = p.outputs[0][static_cast<size_t>(j)] = letter++;
      }
      before_x *= x[i++].value(), before_y *= y[j++].value();
    } else if (before_x * x[i].value() <= before_y * y[j].value()) {
      before_x *= x[i++].value();
    } else {
      before_y *= y[j++].value();
    }
  }
  return p;
}
void reshape_widen(Graph& g, NodeId n, const Dims& widened) {
  g.set_input(n, 1, g.add_const(HostTensor::ints(widened)));
}

Expr back(Grad& g) { return g.b.reshape_like(g.dy(), g.x(0)); }

OpDef view_op(std::string name, std::vector<std::string> inputs, std::string output,
              InferFn infer) {
  OpDef op;
  op.name = std::move(name);
  op.outputs = {std::move(output)};
  op.infer = infer;
  op.grad = {grad(inputs[0], back)};
  if (inputs.size() > 1) {
    const bool optional = inputs[1].back() == '?';
    op.grad.push_back(no_grad(optional ? inputs[1].substr(0, inputs[1].size() - 1) : inputs[1]));
  }
  op.inputs = std::move(inputs);
  op.view = true;
  op.storage = true;
  add_pad_rule(op.name, {pad_axes, nullptr});
  op.kernels = view_kernels();
  return op;
}

}  // namespace

void register_reshape(OpTable& table) {
  OpDef reshape = view_op("Reshape", {"data", "shape"}, "reshaped", infer_reshape);
  reshape.since = 5;
  add_pad_rule("Reshape", {pad_axes, reshape_widen});
  reshape.examples = {{.in = {f({2, 3, 4}), ivals({4, -1})}},
                      {.in = {f({2, 3, 4}), ivals({0, 12})}},
                      {.in = {f({2, 3, 4}), ivals({0, 0, 2, -1})}},
                      {.in = {f({1}), iconst({0}, {})}},
                      {.in = {f({}), ivals({1, 1})}},
                      {.in = {f({0, 4}), ivals({-1, 3})}},
                      {.in = {f({0, 4}), ivals({3, 0})}, .attrs = {{"allowzero", 1}}}};
  table.add(std::move(reshape));

  OpDef flatten = view_op("Flatten", {"input"}, "output", infer_flatten);
  flatten.examples = {{.in = {f({2, 3, 4})}},
                      {.in = {f({2, 3, 4})}, .attrs = {{"axis", 0}}},
                      {.in = {f({2, 3, 4})}, .attrs = {{"axis", -1}}},
                      {.in = {f({2, 3})}, .attrs = {{"axis", 2}}},
                      {.in = {f({0, 3, 2})}},
                      {.in = {f({})}, .attrs = {{"axis", 0}}}};
  table.add(std::move(flatten));

  OpDef squeeze = view_op("Squeeze", {"data", "axes?"}, "squeezed", infer_squeeze);
  squeeze.adapt = axes_to_input;
  squeeze.examples = {{.in = {f({1, 3, 1, 2})}},
                      {.in = {f({1, 3, 1, 2}), ivals({2})}},
                      {.in = {f({1, 3, 1, 2}), ivals({-2, 0})}},
                      {.in = {f({1}), ivals({0})}},
                      {.in = {f({1, 0}), ivals({0})}}};
  table.add(std::move(squeeze));

  OpDef unsqueeze = view_op("Unsqueeze", {"data", "axes"}, "expanded", infer_unsqueeze);
  unsqueeze.adapt = axes_to_input;
  unsqueeze.examples = {{.in = {f({3, 2}), ivals({0})}},
                        {.in = {f({3, 2}), ivals({3, 1})}},
                        {.in = {f({3, 2}), ivals({-1})}},
                        {.in = {f({}), ivals({0, 1})}},
                        {.in = {f({0}), ivals({-2})}}};
  table.add(std::move(unsqueeze));
}

}  // namespace ortrain::ops
