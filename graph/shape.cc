// Shape arithmetic: broadcasting, binding, axes.
#include "graph/shape.h"

#include <algorithm>

#include "graph/error.h"

namespace ortrain {

bool Shape::is_const() const {
  return std::all_of(dims_.begin(), dims_.end(), [](const Dim& d) { return d.is_const(); });
}

Dims Shape::values() const {
  Dims out;
  out.reserve(dims_.size());
  for (const Dim& d : dims_) out.push_back(d.value());
  return out;
}

Dim Shape::count() const {
  Dim n = 1;
  for (const Dim& d : dims_) n = n * d;
  return n;
}

Shape Shape::bind(const Binding& binding) const {
  Shape out;
  for (const Dim& d : dims_) out.push_back(d.bind(binding));
  return out;
}

std::string Shape::str() const {
  std::string out = "[";
  for (size_t i = 0; i < dims_.size(); ++i) out += (i ? "," : "") + dims_[i].str();
  return out + "]";
}

Shape broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<Dim> out(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const Dim da = ia < 0 ? Dim(1) : a[ia], db = ib < 0 ? Dim(1) : b[ib];
    Dim& d = out[static_cast<size_t>(i)];
    if (da == Dim(1))
      d = db;
    else if (db == Dim(1) || da == db)
      d = da;
    else if (da.is_const() && db.is_const())
      fail(ErrorCode::kShape, "shapes ", a.str(), " and ", b.str(), " do not broadcast (axis ", i,
           ": ", da.str(), " and ", db.str(), ")");
    else
      d = da.is_const() ? da : (db.is_const() ? db : da);
  }
  return Shape(std::move(out));
}

Tri prove_equal(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) return Tri::kNo;
  Tri result = Tri::kYes;
  for (int i = 0; i < a.rank(); ++i) {
    const Tri t = prove_equal(a[i], b[i]);
    if (t == Tri::kNo) return Tri::kNo;
    if (t == Tri::kUnknown) result = Tri::kUnknown;
  }
  return result;
}

int normalize_axis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank)
    fail(ErrorCode::kShape, "axis ", axis, " is outside [", -rank, ", ", rank - 1, "]");
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

std::vector<int> normalize_axes(const std::vector<int64_t>& axes, int rank) {
  std::vector<int> out;
  for (int64_t a : axes) out.push_back(normalize_axis(a, rank));
  std::sort(out.begin(), out.end());
  if (std::adjacent_find(out.begin(), out.end()) != out.end())
    fail(ErrorCode::kShape, "an axis is listed twice");
  return out;
}

}  // namespace ortrain
