// One step of an LSTM cell for one sample, forward and backward: the default activations in loops
// that vectorise when called from a SIMD clone, any activations, clip, coupled gates and peepholes
// in plain ones. ops/lstm.cc says what the cell computes; it drives them.
#pragma once

#include "ops/common/recurrent.h"

namespace ortrain::ops {

// --- one row of a step --------------------------------------------------------------------------
// gates: X W^T on entry, activated gates on exit; recurrent: h R^T; bias: Wb then Rb.
template <class T>
[[gnu::always_inline]] inline void forward_row(T* gates, const T* recurrent, const T* bias,
                                               const T* c_prev, T* c, T* h, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const T i = sigmoid(gates[j] + recurrent[j] + bias[j] + bias[4 * n + j]);
    const T o = sigmoid(gates[n + j] + recurrent[n + j] + bias[n + j] + bias[5 * n + j]);
    const T f =
        sigmoid(gates[2 * n + j] + recurrent[2 * n + j] + bias[2 * n + j] + bias[6 * n + j]);
    const T g =
        tanh_of(gates[3 * n + j] + recurrent[3 * n + j] + bias[3 * n + j] + bias[7 * n + j]);
    const T cell = f * c_prev[j] + i * g;
    gates[j] = i, gates[n + j] = o, gates[2 * n + j] = f, gates[3 * n + j] = g;
    c[j] = cell;
    h[j] = o * tanh_of(cell);
  }
}
// dh, dc: gradients at this step's outputs; dc becomes that of the previous cell; dgates is
// written.
template <class T>
[[gnu::always_inline]] inline void backward_row(const T* gates, const T* c_prev, const T* c,
                                                const T* dh, T* dc, T* dgates, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const T i = gates[j], o = gates[n + j], f = gates[2 * n + j], g = gates[3 * n + j];
    const T t = tanh_of(c[j]);
    const T d = dc[j] + dh[j] * o * (1 - t * t);
    dgates[j] = d * g * i * (1 - i);
    dgates[n + j] = dh[j] * t * o * (1 - o);
    dgates[2 * n + j] = d * c_prev[j] * f * (1 - f);
    dgates[3 * n + j] = d * i * (1 - g * g);
    dc[j] = d * f;
  }
}

// --- the same for any activations, clip, coupled gates and peepholes ----------------------------
// gates: X W^T on entry, the activations' inputs before clipping on exit. peep: i, o, f, or null.
template <class T>
void forward_row_any(const CellSpec& spec, int64_t d, const T* peep, T* gates, const T* recurrent,
                     const T* bias, const T* c_prev, T* c, T* h, int64_t n) {
  const auto& act = spec.act[static_cast<size_t>(d)];
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < 4; ++k)
      gates[k * n + j] += recurrent[k * n + j] + bias[k * n + j] + bias[(4 + k) * n + j];
    if (peep) {
      gates[j] += peep[j] * c_prev[j];
      gates[2 * n + j] += peep[2 * n + j] * c_prev[j];
    }
    const T i = apply(act[0], spec.clip, gates[j]).v;
    const T f = spec.couple ? 1 - i : apply(act[0], spec.clip, gates[2 * n + j]).v;
    const T cell = f * c_prev[j] + i * apply(act[1], spec.clip, gates[3 * n + j]).v;
    if (peep) gates[n + j] += peep[n + j] * cell;
    c[j] = cell;
    h[j] = apply(act[0], spec.clip, gates[n + j]).v * apply(act[2], spec.clip, cell).v;
  }
}
template <class T>
void backward_row_any(const CellSpec& spec, int64_t d, const T* peep, const T* gates,
                      const T* c_prev, const T* c, const T* dh, T* dc, T* dgates, int64_t n) {
  const auto& act = spec.act[static_cast<size_t>(d)];
  for (int64_t j = 0; j < n; ++j) {
    const Slope<T> i = apply(act[0], spec.clip, gates[j]);
    const Slope<T> o = apply(act[0], spec.clip, gates[n + j]);
    const Slope<T> f =
        spec.couple ? Slope<T>{1 - i.v, 0} : apply(act[0], spec.clip, gates[2 * n + j]);
    const Slope<T> g = apply(act[1], spec.clip, gates[3 * n + j]);
    const Slope<T> t = apply(act[2], spec.clip, c[j]);
    const T to_o = dh[j] * t.v * o.d;
    const T dcell = dc[j] + dh[j] * o.v * t.d + (peep ? to_o * peep[n + j] : T(0));
    const T to_i = dcell * (spec.couple ? g.v - c_prev[j] : g.v) * i.d;
    const T to_f = dcell * c_prev[j] * f.d;
    dgates[j] = to_i, dgates[n + j] = to_o, dgates[2 * n + j] = to_f;
    dgates[3 * n + j] = dcell * i.v * g.d;
    dc[j] = dcell * f.v;
    if (peep) dc[j] += to_i * peep[j] + to_f * peep[2 * n + j];
  }
}

}  // namespace ortrain::ops
