// One step of a GRU or RNN cell for one sample, forward and backward: the default activations in
// loops that vectorise when called from a SIMD clone, any activations and clip in plain ones.
// ops/gru.cc says what the cells compute; it drives them.
#pragma once

#include "ops/common/recurrent.h"

namespace ortrain::ops {

// The kAny ones take any activations with any clip.
enum class Cell : uint8_t {
  kGruAfter,
  kGruBefore,
  kTanh,
  kRelu,
  kSigmoid,
  kAnyAfter,
  kAnyBefore,
  kAnyRnn
};

// --- one row of a step --------------------------------------------------------------------------
// gx: X W^T; gh: h R^T; bias: Wb then Rb; h is read and, except in the first phase of kGruBefore,
// replaced; saved: see ops/gru.cc. In the second phase of kGruBefore gh is (r h) R_n^T.
template <class T>
[[gnu::always_inline]] inline void forward_row(Cell cell, bool second, const T* gx, const T* gh,
                                               const T* bias, T* h, T* saved, int64_t n) {
  T *z = saved, *r = saved + n, *c = saved + 2 * n, *last = saved + 3 * n;
  const T* rb = bias + (cell <= Cell::kGruBefore ? 3 : 1) * n;
  if (cell == Cell::kGruAfter) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const T zj = sigmoid(gx[j] + gh[j] + bias[j] + rb[j]);
      const T rj = sigmoid(gx[n + j] + gh[n + j] + bias[n + j] + rb[n + j]);
      const T q = gh[2 * n + j] + rb[2 * n + j];
      const T nj = tanh_of(gx[2 * n + j] + bias[2 * n + j] + rj * q);
      z[j] = zj, r[j] = rj, c[j] = nj, last[j] = q;
      h[j] = nj + zj * (h[j] - nj);
    }
  } else if (cell == Cell::kGruBefore && !second) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      z[j] = sigmoid(gx[j] + gh[j] + bias[j] + rb[j]);
      r[j] = sigmoid(gx[n + j] + gh[n + j] + bias[n + j] + rb[n + j]);
      last[j] = r[j] * h[j];
    }
  } else if (cell == Cell::kGruBefore) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const T nj = tanh_of(gx[2 * n + j] + bias[2 * n + j] + gh[j] + rb[2 * n + j]);
      c[j] = nj;
      h[j] = nj + z[j] * (h[j] - nj);
    }
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const T a = gx[j] + gh[j] + bias[j] + rb[j];
      h[j] = cell == Cell::kTanh ? tanh_of(a) : cell == Cell::kSigmoid ? sigmoid(a) : a > 0 ? a : 0;
      saved[j] = h[j];
    }
  }
}

// dh: gradient at this step's h on entry, the part that goes straight to the previous h on exit.
// dgx, dgh: gradients of gx and gh. Second phase of kGruBefore: `flow` is the gradient of r h.
template <class T>
[[gnu::always_inline]] inline void backward_row(Cell cell, bool second, const T* saved,
                                                const T* h_prev, const T* flow, T* dh, T* dgx,
                                                T* dgh, int64_t n) {
  const T *z = saved, *r = saved + n, *c = saved + 2 * n, *last = saved + 3 * n;
  if (cell == Cell::kGruAfter) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const T dn = dh[j] * (1 - z[j]) * (1 - c[j] * c[j]);
      const T dz = dh[j] * (h_prev[j] - c[j]) * z[j] * (1 - z[j]);
      const T dr = dn * last[j] * r[j] * (1 - r[j]);
      dgx[j] = dgh[j] = dz;
      dgx[n + j] = dgh[n + j] = dr;
      dgx[2 * n + j] = dn;
      dgh[2 * n + j] = dn * r[j];
      dh[j] *= z[j];
    }
  } else if (cell == Cell::kGruBefore && !second) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      dgx[2 * n + j] = dh[j] * (1 - z[j]) * (1 - c[j] * c[j]);
      dgx[j] = dh[j] * (h_prev[j] - c[j]) * z[j] * (1 - z[j]);
      dh[j] *= z[j];
    }
  } else if (cell == Cell::kGruBefore) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      dgx[n + j] = flow[j] * h_prev[j] * r[j] * (1 - r[j]);
      dh[j] += flow[j] * r[j];
    }
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const T h = saved[j];
      const T slope = cell == Cell::kTanh      ? 1 - h * h
                      : cell == Cell::kSigmoid ? h * (1 - h)
                                               : h > 0;
      dgx[j] = dgh[j] = dh[j] * slope;
      dh[j] = 0;
    }
  }
}

// --- the same for any activations and clip: what is saved are the activations' inputs
// --------------------------------------
template <class T>
void forward_row_any(const CellSpec& spec, int64_t d, Cell cell, bool second, const T* gx,
                     const T* gh, const T* bias, T* h, T* saved, int64_t n) {
  T *z = saved, *r = saved + n, *c = saved + 2 * n, *last = saved + 3 * n;
  const T* rb = bias + (cell == Cell::kAnyRnn ? 1 : 3) * n;
  const auto& act = spec.act[static_cast<size_t>(d)];
  const auto value = [&](size_t k, T x) { return apply(act[k], spec.clip, x).v; };
  for (int64_t j = 0; j < n; ++j) {
    if (cell == Cell::kAnyRnn) {
      saved[j] = gx[j] + gh[j] + bias[j] + rb[j];
      h[j] = value(0, saved[j]);
      continue;
    }
    if (!second) {
      z[j] = gx[j] + gh[j] + bias[j] + rb[j];
      r[j] = gx[n + j] + gh[n + j] + bias[n + j] + rb[n + j];
    }
    if (cell == Cell::kAnyBefore && !second) {
      last[j] = value(0, r[j]) * h[j];
      continue;
    }
    if (cell == Cell::kAnyAfter) {
      last[j] = gh[2 * n + j] + rb[2 * n + j];
      c[j] = gx[2 * n + j] + bias[2 * n + j] + value(0, r[j]) * last[j];
    } else {
      c[j] = gx[2 * n + j] + bias[2 * n + j] + gh[j] + rb[2 * n + j];
    }
    const T nj = value(1, c[j]);
    h[j] = nj + value(0, z[j]) * (h[j] - nj);
  }
}

template <class T>
void backward_row_any(const CellSpec& spec, int64_t d, Cell cell, bool second, const T* saved,
                      const T* h_prev, const T* flow, T* dh, T* dgx, T* dgh, int64_t n) {
  const T *z = saved, *r = saved + n, *c = saved + 2 * n, *last = saved + 3 * n;
  const auto& act = spec.act[static_cast<size_t>(d)];
  for (int64_t j = 0; j < n; ++j) {
    if (cell == Cell::kAnyRnn) {
      dgx[j] = dgh[j] = dh[j] * apply(act[0], spec.clip, saved[j]).d;
      dh[j] = 0;
      continue;
    }
    const Slope<T> rj = apply(act[0], spec.clip, r[j]);
    if (second) {
      dgx[n + j] = flow[j] * h_prev[j] * rj.d;
      dh[j] += flow[j] * rj.v;
      continue;
    }
    const Slope<T> zj = apply(act[0], spec.clip, z[j]), nj = apply(act[1], spec.clip, c[j]);
    const T dn = dh[j] * (1 - zj.v) * nj.d, dz = dh[j] * (h_prev[j] - nj.v) * zj.d;
    dgx[j] = dz, dgx[2 * n + j] = dn;
    dh[j] *= zj.v;
    if (cell == Cell::kAnyBefore) continue;
    const T dr = dn * last[j] * rj.d;
    dgh[j] = dz, dgx[n + j] = dgh[n + j] = dr, dgh[2 * n + j] = dn * rj.v;
  }
}

}  // namespace ortrain::ops
