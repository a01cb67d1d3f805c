// Elements of any type, storage types (graph/dtype.h) included, as doubles and back, a run at a
// time. Exact for every type but 64-bit integers beyond 2^53. Kernels of the few ops that take
// storage types are written once over these instead of once per type.
#pragma once

#include <algorithm>
#include <array>

#include "runtime/kernel.h"

namespace ortrain::ops {

// What the 256 bytes of a storage type stand for.
struct StorageTable {
  explicit StorageTable(DType dtype);
  std::array<double, 256> value{};
};

// out[i] = element `at + i` of `from`.
void load_run(DType dtype, const void* from, int64_t at, int64_t n, double* out);

// How numbers become elements. Integers take the nearest whole number after truncation, saturated
// (small integers wrap, as ml_dtypes); NaN gives 0; bool is "not zero".
struct StoreRule {
  bool saturate = true;  // f8: ONNX Cast's table
  E8M0Round round = E8M0Round::kUp;
};
void store_run(DType dtype, const double* in, int64_t n, void* to, int64_t at,
               const StoreRule& rule = {});

// Calls f(at, count, buffer) for runs of [0, n), spread over threads; the buffer holds kRun
// doubles.
inline constexpr int64_t kRun = 512;
template <class F>
void for_runs(int threads, int64_t n, F&& f) {
  parallel_for(threads, n, 8 * kRun, [&](int64_t begin, int64_t end) {
    std::array<double, kRun> buffer;
    for (int64_t at = begin; at < end; at += kRun) f(at, std::min(kRun, end - at), buffer.data());
  });
}

}  // namespace ortrain::ops
