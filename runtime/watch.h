// Numerics watch: what one training step looks like from inside, per parameter and, in 16 bits, per
// node.
//
// A watched step runs a plan of its own that keeps the gradients; its numbers are those of any
// other step, bit for bit, and steps that are not watched pay nothing. Memory: a copy of the
// trainable parameters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/executor.h"

namespace ortrain {

// Shares of values, for the type they are computed in.
struct Shares {
  int64_t count = 0, zero = 0, subnormal = 0,
          saturated = 0;  // saturated: at its largest, or beyond
  void add(DType limits, DType dtype, int64_t n, const void* data, double* squares = nullptr);
  double share(int64_t of) const {
    return count > 0 ? static_cast<double>(of) / static_cast<double>(count) : 0;
  }
  // Of those that are not zero.
  double underflowed() const {
    return count > zero ? static_cast<double>(subnormal) / static_cast<double>(count - zero) : 0;
  }
};

struct WatchedParam {
  std::string name;
  int rank = 0;
  double grad_norm = 0;     // of the mean loss, before clipping
  double weight_norm = 0;   // before the update
  double update_ratio = 0;  // norm of the update / weight_norm; 0 where the weights are 0
  Shares gradient;          // as backward made it: times the loss scale
};
struct WatchedNode {
  std::string node;  // "MatMul 'fc1|autodiff'"
  Shares values;
};
struct WatchReport {
  int64_t step = 0;
  DType type = DType::kUndefined;  // that the shares are about
  bool scaled = false;             // there is a loss scale
  bool skipped = false;            // nothing was updated
  std::vector<WatchedParam> params;
  std::vector<WatchedNode> nodes;  // 16-bit runs: nodes with 16-bit outputs
};

// What a person should look at, worst first.
std::vector<std::string> watch_warnings(const WatchReport& report);

class NumericsWatch : public StepHook {
 public:
  NumericsWatch(const ParamStore& store, DType narrow, DType compute, bool scaled);
  size_t bytes() const { return old_.bytes(); }
  void before_step();  // copies the parameters
  bool after(size_t step, const KernelArgs& args) override;
  bool finish() override { return true; }
  void watch(const Executor& executor) { plan_ = &executor.plan(), report_.nodes.clear(); }
  const WatchReport& report(const Executor& executor, int64_t step, bool skipped);

 private:
  const ParamStore& store_;
  DType type_;
  bool narrow_;
  Buffer old_;
  const Plan* plan_ = nullptr;
  WatchReport report_;
};

}  // namespace ortrain
