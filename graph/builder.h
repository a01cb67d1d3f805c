// Builder and Expr: how passes and gradient formulas write graph nodes as ordinary arithmetic.
//
// Every node is typed as it is added, so shapes and dtypes can be asked at once. Operators
// broadcast like ONNX. A number in an expression becomes a scalar constant of the other side's
// dtype.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

class Builder;

// A value of a graph under construction; empty when default-made.
class Expr {
 public:
  Expr() = default;
  Expr(Builder* b, ValueId id) : b_(b), id_(id) {}
  explicit operator bool() const { return id_ != kNone; }
  ValueId id() const { return id_; }
  Builder& builder() const { return *b_; }
  DType dtype() const;
  const Shape& shape() const;
  int rank() const { return shape().rank(); }

 private:
  Builder* b_ = nullptr;
  ValueId id_ = kNone;
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator/(Expr a, Expr b);
Expr operator-(Expr a);
Expr operator+(Expr a, double b);
Expr operator-(Expr a, double b);
Expr operator*(Expr a, double b);
Expr operator/(Expr a, double b);
Expr operator+(double a, Expr b);
Expr operator-(double a, Expr b);
Expr operator*(double a, Expr b);
Expr operator/(double a, Expr b);

class Builder {
 public:
  Builder(Graph& g, std::string origin) : g_(&g), origin_(std::move(origin)) {}
  Graph& graph() const { return *g_; }
  const std::string& origin() const { return origin_; }
  Expr wrap(ValueId v) { return v == kNone ? Expr() : Expr(this, v); }

  // Adds op(inputs) and types it. Empty Exprs are absent optional inputs. Returns output 0, or all.
  Expr op(std::string_view name, const std::vector<Expr>& inputs, Attrs attrs = {});
  std::vector<Expr> ops(std::string_view name, const std::vector<Expr>& inputs, Attrs attrs,
                        int outputs);

  Expr constant(HostTensor t);
  Expr scalar(DType dtype, double value);
  Expr ints(const std::vector<int64_t>& values);  // 1-D i64
  Expr zeros_like(Expr x);
  Expr ones_like(Expr x);

  // Frequent ones. Axes may be negative; shapes must be known numbers.
  Expr unary(std::string_view name, Expr x) { return op(name, {x}); }
  Expr exp(Expr x) { return op("Exp", {x}); }
  Expr log(Expr x) { return op("Log", {x}); }
  Expr sqrt(Expr x) { return op("Sqrt", {x}); }
  Expr where(Expr condition, Expr a, Expr b) { return op("Where", {condition, a, b}); }
  Expr cast(Expr x, DType to);             // x itself when it has the dtype
  Expr reshape(Expr x, const Dims& dims);  // x itself when it has the shape
  Expr reshape_like(Expr x, Expr like) { return reshape(x, like.shape().values()); }
  Expr transpose(Expr x, const std::vector<int64_t>& perm);
  Expr swap_last_two(Expr x);
  Expr expand(Expr x, const Dims& dims);
  Expr expand_like(Expr x, Expr like) { return expand(x, like.shape().values()); }
  Expr unsqueeze(Expr x, const std::vector<int64_t>& axes);
  Expr squeeze(Expr x, const std::vector<int64_t>& axes);
  Expr reduce(std::string_view op_name, Expr x, const std::vector<int64_t>& axes, bool keepdims);
  Expr sum(Expr x, const std::vector<int64_t>& axes, bool keepdims = true) {
    return reduce("ReduceSum", x, axes, keepdims);
  }
  Expr mean(Expr x, const std::vector<int64_t>& axes, bool keepdims = true) {
    return reduce("ReduceMean", x, axes, keepdims);
  }
  Expr sum_to(Expr x, const Shape& shape);  // undoes broadcasting from `shape`
  Expr matmul(Expr a, Expr b) { return op("MatMul", {a, b}); }
  Expr concat(const std::vector<Expr>& xs, int64_t axis) {
    return op("Concat", xs, {{"axis", axis}});
  }
  // x[..., start:end, ...] along one axis.
  Expr slice(Expr x, int64_t axis, int64_t start, int64_t end);

 private:
  Graph* g_;
  std::string origin_;
};

}  // namespace ortrain
