// The arithmetic of optimizer steps over contiguous memory, f32 and f64, for the CPU that runs.
//
// Elementwise: the same element gives the same bits wherever it lies, so results do not depend on
// how work is split. In and out pointers may be the same.
#pragma once

#include <cstdint>
#include <limits>

namespace ortrain::ops {

// Formulas are torch.optim's where PyTorch has the optimizer; Lion: Chen et al. 2023, algorithm 2;
// LAMB: You et al. 2020, algorithm 2 (v3). States in order:
// kSgd      [momentum]                        kAdam     exp_avg, exp_avg_sq [, max_exp_avg_sq]
// kAdagrad  sum                               kRmsprop  square_avg [, momentum] [, grad_avg]
// kLion     exp_avg                           kLamb     exp_avg, exp_avg_sq
enum class UpdateRule : uint8_t { kSgd, kAdam, kAdagrad, kRmsprop, kLion, kLamb };

struct UpdateStep {
  UpdateRule rule = UpdateRule::kSgd;
  double scale = 1;  // g = clamp(scale gradient, -limit, limit) + l2 p
  double limit = std::numeric_limits<double>::infinity();
  double l2 = 0;
  double keep = 1;  // p is multiplied by it: decoupled decay, 1 - lr wd
  double lr = 0;    // step size; Adam: lr / (1 - beta1^t); LAMB: lr times the trust ratio
  double beta1 = 0.9, beta2 = 0.999;  // sgd, rmsprop: beta1 is the momentum; rmsprop: beta2 alpha
  double eps = 1e-8;
  double scale_root = 1;   // 1 / sqrt(1 - beta2^t)
  double scale_first = 1;  // LAMB: 1 / (1 - beta1^t)
  double decay = 0;        // LAMB: wd, inside the direction
  double dampening = 0;
  bool nesterov = false;
  bool first = false;     // sgd: the buffer becomes the gradient itself
  bool amsgrad = false;   // a third state holds the largest second moment so far
  bool momentum = false;  // there is a momentum buffer
  bool centered = false;  // rmsprop: the last state is the mean gradient
};

// in: parameter, gradient, states; out: parameter, states.
template <class T>
struct UpdateMemory {
  const T* in[5];
  T* out[4];
};

// One step over n elements. kLamb: updates the states and leaves the parameter's direction
// m / (sqrt(v) + eps) + wd p in out[0], which must not be the parameter.
void update_step(const UpdateStep& s, const UpdateMemory<float>& x, int64_t n);
void update_step(const UpdateStep& s, const UpdateMemory<double>& x, int64_t n);

// LAMB's second half: out[0] = p - lr direction, computed anew from p and the new states in in[2],
// in[3].
void lamb_apply(const UpdateStep& s, const UpdateMemory<float>& x, int64_t n);
void lamb_apply(const UpdateStep& s, const UpdateMemory<double>& x, int64_t n);

}  // namespace ortrain::ops
