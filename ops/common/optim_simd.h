// The arithmetic of optimizer steps over contiguous memory, f32 and f64, for the CPU that runs.
//
// Elementwise: the same element gives the same bits wherever it lies, so results do not depend on
// how work is split. In and out pointers may be the same.
#pragma once

#include <cstdint>

namespace ortrain::ops {

// torch.optim.AdamW / Adam, one step. L2 weight decay goes into the gradient (Adam), decoupled
// decay multiplies the parameter (AdamW).
struct AdamStep {
  double clip = 1;  // gradients are multiplied by it
  double keep = 1;  // parameter factor of decoupled decay: 1 - lr wd
  double l2 = 0;    // wd p is added to the gradient
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double step_size = 0;   // lr / (1 - beta1^t)
  double scale_root = 1;  // 1 / sqrt(1 - beta2^t)
};
template <class T>
struct AdamMemory {
  const T *p, *g, *m, *v;
  T *p_out, *m_out, *v_out;
};

// torch.optim.SGD, one step. `buffer` is null without momentum.
struct SgdStep {
  double clip = 1, lr = 0, l2 = 0, momentum = 0, dampening = 0;
  bool nesterov = false, first = false;  // first: the buffer becomes the gradient itself
};
template <class T>
struct SgdMemory {
  const T *p, *g, *buffer;
  T *p_out, *buffer_out;
};

void adam_step(const AdamStep& s, const AdamMemory<float>& x, int64_t n);
void adam_step(const AdamStep& s, const AdamMemory<double>& x, int64_t n);
void sgd_step(const SgdStep& s, const SgdMemory<float>& x, int64_t n);
void sgd_step(const SgdStep& s, const SgdMemory<double>& x, int64_t n);

}  // namespace ortrain::ops
