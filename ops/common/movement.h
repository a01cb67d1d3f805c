// Helpers of the data movement ops: strides, strided copies, the kernels made of one such copy.
//
// A strided copy takes element i of an index space `dims` from src[src_offset + i . src] to
// dst[dst_offset + i . dst]; strides are in elements and may be negative or (src) zero. Transpose,
// Slice, Expand, Tile, Split, Concat, DepthToSpace and their gradients are all of this form.
// run_copy is threaded, tiles transposes and never allocates; copy_ref is the plain loop it is
// checked against.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "graph/op_def.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

struct StridedCopy {
  Dims dims, src, dst;  // same length
  int64_t src_offset = 0, dst_offset = 0;
  size_t size = 4;  // bytes per element: 1, 2, 4 or 8
};

// Row-major strides of a dense tensor, in elements.
Dims dense_strides(const Dims& dims);
// Product of dims[begin, end).
int64_t product(const Dims& dims, int begin, int end);
int64_t product(const Dims& dims);

// Drops axes of extent 1 and merges neighbours that are contiguous on both sides. Call once, at
// prepare time.
StridedCopy simplify(StridedCopy c);
void run_copy(const StridedCopy& c, const void* src, void* dst, int threads);
// The same for any C++ type, one element at a time.
template <class T>
void copy_ref(const StridedCopy& c, const T* src, T* dst) {
  const size_t rank = c.dims.size();
  const int64_t n = product(c.dims);
  std::vector<int64_t> at(rank, 0);
  for (int64_t i = 0; i < n; ++i) {
    int64_t s = c.src_offset, d = c.dst_offset;
    for (size_t k = 0; k < rank; ++k) s += at[k] * c.src[k], d += at[k] * c.dst[k];
    dst[d] = src[s];
    for (size_t k = rank; k-- > 0;) {
      if (++at[k] < c.dims[k]) break;
      at[k] = 0;
    }
  }
}
void copy_ref(const StridedCopy& c, const void* src, void* dst);

// A copy that reads a dense tensor of `in` in the order of axes `perm`.
StridedCopy permuted(const Dims& in, const std::vector<int64_t>& perm, size_t size);

// Kernels of ops whose output 0 is one dense strided copy of input 0: "strided" and "ref".
// make(query) gives the copy; kCopyKernels(make) is for OpDef::kernels.
using MakeCopy = StridedCopy (*)(const KernelQuery&);
template <MakeCopy make>
Kernel strided_kernel(const KernelQuery& q) {
  return {0, [c = simplify(make(q)), threads = q.threads](const KernelArgs& a) {
            run_copy(c, a.in[0], a.out[0], threads);
          }};
}
template <MakeCopy make>
Kernel strided_ref(const KernelQuery& q) {
  return {0, [c = make(q)](const KernelArgs& a) { copy_ref(c, a.in[0], a.out[0]); }};
}
template <MakeCopy make>
std::vector<KernelEntry> copy_kernels() {
  return {{"cpu", "strided", nullptr, strided_kernel<make>},
          {"cpu", "ref", nullptr, strided_ref<make>}};
}

// For views: the executor runs nothing; the evaluator of constants copies.
std::vector<KernelEntry> view_kernels();

// Integer contents carried through inference (shape chains): sets output 0's contents to the given
// copy of input 0's, when those are known and both shapes are numbers.
void carry_ints(InferCtx& c, const StridedCopy& copy);
// The same for ops that keep the order of elements (Reshape, Squeeze, ...).
void carry_ints(InferCtx& c);

// A constant list of integers as numbers; throws Error(kUnsupported) when one is symbolic.
std::vector<int64_t> numbers(const std::vector<Dim>& dims, std::string_view what);

// Where axis `axis` of [N, C, spatial...] is in [N, spatial..., C].
inline int64_t last_axis(int64_t axis, int rank) {
  return axis == 0 ? 0 : axis == 1 ? rank - 1 : axis - 1;
}
// channels_last hooks. By attribute: `axis` (default `missing`) moves with the data of all inputs
// and outputs. By input: an axes list, input i (absent: all `count` axes in order).
std::optional<LayoutChange> axis_channels_last(Graph& g, NodeId n, int64_t missing);
bool axes_input_channels_last(Graph& g, NodeId n, int i, size_t count);

// memset, in pieces.
void fill_zero(void* dst, size_t bytes, int threads);
// Where(mask) etc. need elements by size only.
template <class F>
decltype(auto) by_size(size_t size, F&& f) {
  switch (size) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 8: return f.template operator()<uint64_t>();
    default: return f.template operator()<uint32_t>();
  }
}

// Calls f.template operator()<T>() for the float type of dtype.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f.template operator()<double>();
    case DType::kF16: return f.template operator()<f16>();
    case DType::kBF16: return f.template operator()<bf16>();
    default: return f.template operator()<float>();
  }
}
// What sums of T are kept in: T for the wide types, float for the narrow ones.
template <class T>
using Acc = std::conditional_t<(sizeof(T) >= 4), T, float>;

// Element i of an i32 or i64 index tensor.
inline int64_t index_at(const void* p, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(p)[i] : static_cast<const int32_t*>(p)[i];
}
// Fails unless input i of the node is i32 or i64.
void check_index_type(InferCtx& c, int i);

}  // namespace ortrain::ops
