// What the update ops share: inputs lr, step, apply, scale?, then one group per tensor (parameter,
// gradient, states); outputs per group parameter and states, meant to lie in the inputs' memory.
//
// `step` counts the updates applied before this one; with apply = false nothing changes, bit for
// bit. Attributes of every update: weight_decay (one number per group), lr_factor (one per group,
// default 1), clip_value (largest magnitude of a gradient after scaling; absent: none), touched
// (the groups whose gradient is given by touched rows: their slots follow the groups as inputs;
// touched_rows.h).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/common/optim_simd.h"
#include "ops/common/touched_rows.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

constexpr size_t kUpdateFixed = 4;  // inputs before the groups
constexpr int64_t kUpdateGrain = 8 * 1024;

struct UpdateGroups {
  size_t inputs = 4, outputs = 3, count = 0;
  DType dtype = DType::kF32, lr = DType::kF64, scale = DType::kUndefined;
  std::vector<int64_t> start;  // of each group in the total, then the total
  std::vector<double> decay, factor;
  std::vector<size_t> slots;   // per group: input that holds the slots, 0 for a dense gradient
  std::vector<int64_t> inner;  // per group: numbers in a row
  double limit = 0;
  UpdateGroups(const KernelQuery& q, size_t per_group);

  // The scalars of a step.
  double rate(const KernelArgs& args) const;
  double gradient_scale(const KernelArgs& args) const;
  // Copies what does not lie in place.
  void keep_all(const KernelArgs& args) const;

  template <class T>
  UpdateMemory<T> memory(const KernelArgs& args, size_t group, int64_t first) const {
    UpdateMemory<T> x = {};
    for (size_t i = 0; i < inputs; ++i)
      x.in[i] = args.x<T>(kUpdateFixed + group * inputs + i) + first;
    for (size_t i = 0; i < outputs; ++i) x.out[i] = args.y<T>(group * outputs + i) + first;
    return x;
  }
  // The same for a group of touched rows, in runs: f(memory, n, zero); `zero`: in[1] points to
  // zeros.
  template <class T, class F>
  void each_touched(const KernelArgs& args, size_t group, int64_t first, int64_t n, F f) const {
    constexpr int64_t kMost = 4096;
    alignas(64) static const T zeros[kMost] = {};
    each_run(args.x<int32_t>(slots[group]), args.x<T>(kUpdateFixed + group * inputs + 1),
             inner[group], first, n, [&](const T* g, int64_t at, int64_t count) {
               for (int64_t i = 0, step = 0; i < count; i += step) {
                 step = g ? count : std::min(kMost, count - i);
                 UpdateMemory<T> x = memory<T>(args, group, first + at + i);
                 x.in[1] = g ? g : zeros;
                 f(x, step, !g);
               }
             });
  }
  // f(group, first, n) over the elements [begin, end) of the total.
  template <class F>
  void each(int64_t begin, int64_t end, F f) const {
    for (size_t i = group_at(begin); begin < end; ++i) {
      const int64_t stop = std::min(end, start[i + 1]);
      if (stop > begin) f(i, begin - start[i], stop - begin);
      begin = std::max(begin, stop);
    }
  }

 private:
  size_t group_at(int64_t position) const;
};

// Types the outputs; refuses groups that mix types or shapes.
void infer_update_groups(InferCtx& c, int per_group);
// Every output over its input, for up to 1024 groups.
std::vector<std::pair<int, int>> update_inplace(int per_group);

// For examples: the four fixed inputs, then groups.
std::vector<ExampleInput> update_example(double lr, int64_t step, bool apply, double scale,
                                         const std::vector<std::vector<ExampleInput>>& groups);

}  // namespace ortrain::ops
