// Shape: the extents of a tensor, outermost first. The rank is always known; extents may be
// symbolic.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "graph/dim.h"
#include "graph/tensor.h"

namespace ortrain {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<Dim> dims) : dims_(dims) {}
  explicit Shape(std::vector<Dim> dims) : dims_(std::move(dims)) {}
  explicit Shape(const Dims& dims) : dims_(dims.begin(), dims.end()) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  const Dim& operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  Dim& operator[](int i) { return dims_[static_cast<size_t>(i)]; }
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }
  void push_back(Dim d) { dims_.push_back(d); }
  const std::vector<Dim>& dims() const { return dims_; }
  bool operator==(const Shape&) const = default;

  bool is_const() const;
  Dims values() const;  // only when is_const()
  Dim count() const;    // product of all extents; 1 for a scalar
  Shape bind(const Binding& binding) const;
  std::string str() const;  // "[B,3,224,224]"

 private:
  std::vector<Dim> dims_;
};

// Numpy/ONNX multidirectional broadcast. Throws Error(kShape) when two extents provably differ and
// neither is 1. Unknown pairs: an extent of 1 gives the other; otherwise the first is taken
// (checked again once bound).
Shape broadcast(const Shape& a, const Shape& b);
Tri prove_equal(const Shape& a, const Shape& b);

// axis + rank when negative. Throws Error(kShape) outside [-rank, rank).
int normalize_axis(int64_t axis, int rank);
// The same for a list; sorted, duplicates refused.
std::vector<int> normalize_axes(const std::vector<int64_t>& axes, int rank);

}  // namespace ortrain
