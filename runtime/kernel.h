// The one runtime header that ops/ may include: what a kernel is asked, what it gives back, and the
// thread pool.
//
// A kernel is chosen and prepared once, before step 1, for fixed shapes: prepare() may allocate,
// create primitives and throw; run() is noexcept in effect, allocates nothing and never blocks. All
// tensors are dense and row-major. Scratch memory is asked for in Kernel::workspace and planned
// like any tensor (64-byte aligned, contents undefined).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/op_def.h"
#include "graph/tensor.h"

namespace ortrain {

struct TensorDesc {
  DType dtype = DType::kUndefined;  // kUndefined: the optional input or output is absent
  Dims dims;
  bool present() const { return dtype != DType::kUndefined; }
  int rank() const { return static_cast<int>(dims.size()); }
  int64_t count() const { return element_count(dims); }
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype); }
};

struct KernelQuery {
  std::string op;  // OpDef::name
  Attrs attrs;
  std::vector<TensorDesc> in, out;
  std::vector<const HostTensor*>
      constants;  // per input: contents when known at plan time, else null
  int threads = 1;
  std::string origin;  // for errors
  bool has_in(size_t i) const { return i < in.size() && in[i].present(); }
  bool has_out(size_t i) const { return i < out.size() && out[i].present(); }
  const HostTensor* constant(size_t i) const {
    return i < constants.size() ? constants[i] : nullptr;
  }
  // Contents of a constant integer input; throws Error(kUnsupported) when it is not known before
  // training.
  std::vector<int64_t> need_ints(size_t i, const char* what) const;
};

// First out-of-range index met in a step. Kernels that follow indices report here, treat the
// element as zero and go on; the executor turns it into an Error that names the node.
struct Fault {
  std::atomic<bool> raised{false};
  int64_t position = 0, value = 0, low = 0,
          high = 0;  // element `position` held `value`, allowed is [low, high)
  void report(int64_t at, int64_t got, int64_t lowest, int64_t limit) noexcept {
    if (!raised.exchange(true)) position = at, value = got, low = lowest, high = limit;
  }
};

struct KernelArgs {
  const void* const* in = nullptr;  // null where the input is absent
  void* const* out = nullptr;       // null where the output is not wanted
  void* workspace = nullptr;
  Fault* fault = nullptr;  // never null in run()
  template <class T>
  const T* x(size_t i) const {
    return static_cast<const T*>(in[i]);
  }
  template <class T>
  T* y(size_t i) const {
    return static_cast<T*>(out[i]);
  }
};

struct Kernel {
  size_t workspace = 0;  // bytes
  std::function<void(const KernelArgs&)> run;
};

// Thread pool: OpenMP's, shared with the math library. body(begin, end) runs over [0, n) in
// contiguous pieces of at least `grain` elements; with one piece it runs in the calling thread at
// no cost. Pieces depend on n, grain and `threads` only, so results that are combined per piece
// repeat bit for bit.
template <class Body>
void parallel_for(int threads, int64_t n, int64_t grain, Body&& body) {
  int64_t pieces = grain > 0 ? n / grain : n;
  if (pieces > threads) pieces = threads;
  if (pieces <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  const int64_t base = n / pieces, extra = n % pieces;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(pieces))
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t begin = p * base + (p < extra ? p : extra);
    body(begin, begin + base + (p < extra ? 1 : 0));
  }
}

}  // namespace ortrain
