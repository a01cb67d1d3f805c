// Walks an index tensor row by row (rows of its last axis) for GatherElements, ScatterElements,
// GatherND and ScatterND: no division per element. Out-of-range indices are reported and visited
// with position -1.
#pragma once

#include <algorithm>

#include "ops/common/movement.h"

namespace ortrain::ops {

// Element j of the indices names data[..., index, ...] along `axis`.
struct ElementRows {
  Dims dims, strides;  // of the indices; of data
  size_t axis = 0;
  int64_t extent = 0;  // of data along the axis
  bool wide = true;    // indices are i64, else i32

  ElementRows() = default;
  ElementRows(const TensorDesc& data, const TensorDesc& indices, int64_t named_axis)
      : dims(indices.dims),
        strides(dense_strides(data.dims)),
        axis(static_cast<size_t>(normalize_axis(named_axis, data.rank()))),
        extent(data.dims[axis]),
        wide(indices.dtype == DType::kI64) {}
  int64_t width() const { return dims.back(); }
  int64_t rows() const { return product(dims, 0, static_cast<int>(dims.size()) - 1); }
  bool along_rows() const { return axis + 1 == dims.size(); }

  // body(position in data or -1, position j in the indices), rows and columns in order.
  template <class Body>
  void each(const KernelArgs& a, int64_t row_begin, int64_t row_end, int64_t left, int64_t right,
            Body&& body) const {
    wide ? walk<int64_t>(a, row_begin, row_end, left, right, body)
         : walk<int32_t>(a, row_begin, row_end, left, right, body);
  }

 private:
  template <class I, class Body>
  void walk(const KernelArgs& a, int64_t row_begin, int64_t row_end, int64_t left, int64_t right,
            Body& body) const {
    const int64_t n = width(), step = strides[axis], slide = along_rows() ? 0 : 1;
    for (int64_t r = row_begin; r < row_end; ++r) {
      int64_t base = 0, rest = r;
      for (size_t k = dims.size() - 1; k-- > 0;) {
        if (k != axis) base += rest % dims[k] * strides[k];
        rest /= dims[k];
      }
      const I* index = a.x<I>(1) + r * n;
      for (int64_t j = left; j < right; ++j) {
        const int64_t v = index[j], i = v < 0 ? v + extent : v;
        if (static_cast<uint64_t>(i) < static_cast<uint64_t>(extent)) {
          body(base + i * step + j * slide, r * n + j);
        } else {
          a.fault->report(r * n + j, v, -extent, extent);
          body(int64_t{-1}, r * n + j);
        }
      }
    }
  }
};

// Tuple r of the indices names a slice of `inner` elements of data, within its batch.
struct TupleRows {
  Dims extents, strides;  // of the indexed axes
  int64_t inner = 1, per_batch = 1, batch_stride = 0, count = 0;
  bool wide = true;

  TupleRows() = default;
  TupleRows(const TensorDesc& data, const TensorDesc& indices, int batch)
      : wide(indices.dtype == DType::kI64) {
    const auto used = batch + static_cast<int>(indices.dims.back());
    const Dims all = dense_strides(data.dims);
    extents.assign(data.dims.begin() + batch, data.dims.begin() + used);
    strides.assign(all.begin() + batch, all.begin() + used);
    inner = product(data.dims, used, data.rank());
    per_batch = product(indices.dims, batch, indices.rank() - 1);
    batch_stride = product(data.dims, batch, data.rank());
    count = product(indices.dims, 0, indices.rank() - 1);
  }
  // Where slice r starts in data, or -1 after a report.
  int64_t at(const KernelArgs& a, int64_t r) const {
    const auto tuple = static_cast<int64_t>(extents.size());
    int64_t at = r / per_batch * batch_stride;
    for (int64_t k = 0; k < tuple; ++k) {
      const auto u = static_cast<size_t>(k);
      const int64_t v = index_at(a.in[1], wide, r * tuple + k), i = v < 0 ? v + extents[u] : v;
      if (i < 0 || i >= extents[u]) {
        a.fault->report(r * tuple + k, v, -extents[u], extents[u]);
        return -1;
      }
      at += i * strides[u];
    }
    return at;
  }
};

}  // namespace ortrain::ops
