// Expression operators and the builder's frequent node patterns.
#include "graph/builder.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain {

DType Expr::dtype() const { return b_->graph().value(id_).dtype; }
const Shape& Expr::shape() const { return b_->graph().value(id_).shape; }

namespace {
Expr binary(const char* op, Expr a, Expr b) { return a.builder().op(op, {a, b}); }
Expr number(Expr like, double v) { return like.builder().scalar(like.dtype(), v); }
}  // namespace

Expr operator+(Expr a, Expr b) { return binary("Add", a, b); }
Expr operator-(Expr a, Expr b) { return binary("Sub", a, b); }
Expr operator*(Expr a, Expr b) { return binary("Mul", a, b); }
Expr operator/(Expr a, Expr b) { return binary("Div", a, b); }
Expr operator-(Expr a) { return a.builder().op("Neg", {a}); }
Expr operator+(Expr a, double b) { return a + number(a, b); }
Expr operator-(Expr a, double b) { return a - number(a, b); }
Expr operator*(Expr a, double b) { return a * number(a, b); }
Expr operator/(Expr a, double b) { return a / number(a, b); }
Expr operator+(double a, Expr b) { return number(b, a) + b; }
Expr operator-(double a, Expr b) { return number(b, a) - b; }
Expr operator*(double a, Expr b) { return number(b, a) * b; }
Expr operator/(double a, Expr b) { return number(b, a) / b; }

Expr Builder::op(std::string_view name, const std::vector<Expr>& inputs, Attrs attrs) {
  return ops(name, inputs, std::move(attrs), 1)[0];
}

std::vector<Expr> Builder::ops(std::string_view name, const std::vector<Expr>& inputs, Attrs attrs,
                               int outputs) {
  std::vector<ValueId> ids;
  for (const Expr& e : inputs) ids.push_back(e.id());
  while (!ids.empty() && ids.back() == kNone) ids.pop_back();
  const NodeId n =
      g_->add_node(g_->ops().get(name), std::move(ids), std::move(attrs), outputs, origin_);
  g_->infer(n);
  std::vector<Expr> out;
  for (ValueId v : g_->node(n).outputs) out.push_back(wrap(v));
  return out;
}

Expr Builder::constant(HostTensor t) { return wrap(g_->add_const(std::move(t))); }
Expr Builder::scalar(DType dtype, double value) {
  return constant(HostTensor::scalar_of(dtype, value));
}
Expr Builder::ints(const std::vector<int64_t>& values) {
  return constant(HostTensor::ints(values));
}
Expr Builder::zeros_like(Expr x) { return expand_like(scalar(x.dtype(), 0), x); }
Expr Builder::ones_like(Expr x) { return expand_like(scalar(x.dtype(), 1), x); }

Expr Builder::cast(Expr x, DType to) {
  if (x.dtype() == to) return x;
  return op("Cast", {x}, {{"to", std::string(name_of(to))}});
}

Expr Builder::reshape(Expr x, const Dims& dims) {
  if (x.shape().is_const() && x.shape().values() == dims) return x;
  return op("Reshape", {x, ints(dims)}, {{"allowzero", int64_t{1}}});
}

Expr Builder::transpose(Expr x, const std::vector<int64_t>& perm) {
  bool identity = true;
  for (size_t i = 0; i < perm.size(); ++i) identity &= perm[i] == static_cast<int64_t>(i);
  return identity ? x : op("Transpose", {x}, {{"perm", perm}});
}

Expr Builder::swap_last_two(Expr x) {
  std::vector<int64_t> perm(static_cast<size_t>(x.rank()));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return transpose(x, perm);
}

Expr Builder::expand(Expr x, const Dims& dims) {
  if (x.shape().is_const() && x.shape().values() == dims) return x;
  return op("Expand", {x, ints(dims)});
}

Expr Builder::unsqueeze(Expr x, const std::vector<int64_t>& axes) {
  return axes.empty() ? x : op("Unsqueeze", {x, ints(axes)});
}

Expr Builder::squeeze(Expr x, const std::vector<int64_t>& axes) {
  return axes.empty() ? x : op("Squeeze", {x, ints(axes)});
}

Expr Builder::reduce(std::string_view name, Expr x, const std::vector<int64_t>& axes,
                     bool keepdims) {
  if (axes.empty()) return x;
  return op(name, {x, ints(axes)}, {{"keepdims", int64_t{keepdims}}});
}

Expr Builder::sum_to(Expr x, const Shape& to) {
  const Shape shape = to;  // `to` may lie in a graph value that moves when nodes are added
  const int lead = x.rank() - shape.rank();
  ORTRAIN_CHECK(lead >= 0, "sum_to to a higher rank");
  std::vector<int64_t> axes;
  for (int i = 0; i < lead; ++i) axes.push_back(i);
  for (int i = lead; i < x.rank(); ++i)
    if (shape[i - lead] == Dim(1) && !(x.shape()[i] == Dim(1))) axes.push_back(i);
  if (axes.empty()) return x;
  Expr out = sum(x, axes, /*keepdims=*/lead == 0);
  if (lead > 0) out = reshape(out, shape.values());
  return out;
}

Expr Builder::slice(Expr x, int64_t axis, int64_t start, int64_t end) {
  return op("Slice", {x, ints({start}), ints({end}), ints({axis})});
}

}  // namespace ortrain
