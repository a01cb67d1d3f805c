// Applying axis matrices: rows of contiguous elements where the axis is not the last, element sums
// where it is. Intermediate tensors alternate between two halves of the workspace.
#include "ops/common/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "ops/common/movement.h"
#include "ops/common/simd.h"

namespace ortrain::ops {

void AxisMatrix::add_row(const std::vector<std::pair<int64_t, double>>& entries) {
  const size_t begin = column.size();
  for (const auto& [c, w] : entries) {
    if (w == 0) continue;
    const auto same =
        std::find(column.begin() + static_cast<std::ptrdiff_t>(begin), column.end(), c);
    if (same != column.end()) {
      weight[static_cast<size_t>(same - column.begin())] += w;
    } else {
      column.push_back(c);
      weight.push_back(w);
    }
  }
  first.push_back(static_cast<int64_t>(column.size()));
}

bool AxisMatrix::selects() const {
  if (!bias.empty() || column.size() != static_cast<size_t>(out)) return false;
  for (size_t r = 0; r < column.size(); ++r)
    if (first[r + 1] != first[r] + 1 || weight[r] != 1) return false;
  return true;
}

bool AxisMatrix::identity() const {
  if (in != out || !selects()) return false;
  for (size_t r = 0; r < column.size(); ++r)
    if (column[r] != static_cast<int64_t>(r)) return false;
  return true;
}

AxisMatrix AxisMatrix::transposed() const {
  AxisMatrix t;
  t.axis = axis;
  t.in = out;
  t.out = in;
  std::vector<std::vector<std::pair<int64_t, double>>> rows(static_cast<size_t>(in));
  for (int64_t r = 0; r < out; ++r)
    for (int64_t k = first[static_cast<size_t>(r)]; k < first[static_cast<size_t>(r) + 1]; ++k)
      rows[static_cast<size_t>(column[static_cast<size_t>(k)])].emplace_back(
          r, weight[static_cast<size_t>(k)]);
  for (const auto& row : rows) t.add_row(row);
  return t;
}

namespace {

// All f32 sums go tap by tap through these two, so that a result does not depend on the layout.
ORTRAIN_SIMD void set_scaled(const float* x, float w, float* y, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] = w * x[j];
}
ORTRAIN_SIMD void add_scaled(const float* x, float w, float* y, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] += w * x[j];
}
// The same with a position and weight for each; a weight of 0 reads nothing.
ORTRAIN_SIMD void set_picked(const float* x, const int32_t* column, const float* w, float* y,
                             int64_t n) {
#pragma omp simd
  for (int64_t r = 0; r < n; ++r) y[r] = w[r] * x[column[r]];
}
ORTRAIN_SIMD void add_picked(const float* x, const int32_t* column, const float* w, float* y,
                             int64_t n) {
#pragma omp simd
  for (int64_t r = 0; r < n; ++r) {
    const float sum = y[r] + w[r] * x[column[r]];
    y[r] = w[r] == 0 ? y[r] : sum;
  }
}
constexpr int kMostTaps = 8;

// One axis of one tensor: x[outer, in, inner] -> y[outer, out, inner].
template <class T>
struct Step {
  int64_t outer, inner, in, out;
  std::vector<int64_t> first, column;
  std::vector<T> weight, bias;
  bool selects;
  int64_t block = 0;  // rows sum `block` consecutive inputs each, all weights 1; 0 = no such form

  Step(const AxisMatrix& m, const Dims& dims)
      : outer(product(dims, 0, m.axis)),
        inner(product(dims, m.axis + 1, static_cast<int>(dims.size()))),
        in(m.in),
        out(m.out),
        first(m.first),
        column(m.column),
        weight(m.weight.begin(), m.weight.end()),
        bias(m.bias.begin(), m.bias.end()),
        selects(m.selects()) {
    if (out == 0 || in % out != 0 || column.size() != static_cast<size_t>(in) || !bias.empty())
      return;
    for (size_t k = 0; k < column.size(); ++k)
      if (column[k] != static_cast<int64_t>(k) || weight[k] != T(1)) return;
    for (size_t r = 0; r + 1 < first.size(); ++r)
      if (first[r + 1] - first[r] != in / out) return;
    block = in / out;
  }

  // f32 along the last axis: every row with the same number of entries (`taps`, 0 = no such form),
  // entry k of all rows together; rows with fewer end in weights of 0.
  int taps = 0;
  std::vector<int32_t> columns_of;
  std::vector<float> weights_of;
  void even_out() {
    int64_t most = 0, least = kMostTaps;
    for (size_t r = 0; r + 1 < first.size(); ++r) {
      most = std::max(most, first[r + 1] - first[r]);
      least = std::min(least, first[r + 1] - first[r]);
    }
    if (inner != 1 || selects || block == 2 || least < 1 || most > kMostTaps || in > INT32_MAX)
      return;
    taps = static_cast<int>(most);
    columns_of.resize(static_cast<size_t>(most * out));
    weights_of.resize(columns_of.size());
    for (int64_t r = 0; r < out; ++r) {
      const int64_t begin = first[static_cast<size_t>(r)];
      const int64_t count = first[static_cast<size_t>(r) + 1] - begin;
      for (int64_t k = 0; k < most; ++k) {
        const auto from = static_cast<size_t>(begin + std::min(k, count - 1));
        const auto to = static_cast<size_t>(k * out + r);
        columns_of[to] = static_cast<int32_t>(column[from]);
        weights_of[to] = k < count ? static_cast<float>(weight[from]) : 0;
      }
    }
  }

  void lines(const T* x, T* y, int64_t begin, int64_t end) const {  // inner > 1
    for (int64_t i = begin; i < end; ++i) {
      const int64_t o = i / out, r = i - o * out;
      const auto u = static_cast<size_t>(r);
      const T* from = x + o * in * inner;
      T* to = y + i * inner;
      if (selects) {
        std::memcpy(to, from + column[u] * inner, static_cast<size_t>(inner) * sizeof(T));
        continue;
      }
      if constexpr (std::is_same_v<T, float>) {
        auto k = static_cast<size_t>(first[u]);
        const auto end_k = static_cast<size_t>(first[u + 1]);
        if (k < end_k && bias.empty())
          set_scaled(from + column[k] * inner, weight[k], to, inner), ++k;
        else
          std::fill_n(to, inner, bias.empty() ? 0.f : bias[u]);
        for (; k < end_k; ++k) add_scaled(from + column[k] * inner, weight[k], to, inner);
        continue;
      }
      std::fill_n(to, inner, bias.empty() ? T(0) : bias[u]);
      for (int64_t k = first[u]; k < first[u + 1]; ++k) {
        const T w = weight[static_cast<size_t>(k)];
        const T* line = from + column[static_cast<size_t>(k)] * inner;
        for (int64_t j = 0; j < inner; ++j) to[j] += w * line[j];
      }
    }
  }

  void elements(const T* x, T* y, int64_t begin, int64_t end) const {  // inner == 1
    for (int64_t o = begin; o < end; ++o) {
      const T* from = x + o * in;
      T* to = y + o * out;
      if (selects) {
        for (int64_t r = 0; r < out; ++r) to[r] = from[column[static_cast<size_t>(r)]];
      } else if (taps > 0) {
        if constexpr (std::is_same_v<T, float>) {
          int k = 0;
          if (bias.empty())
            set_picked(from, columns_of.data(), weights_of.data(), to, out), ++k;
          else
            std::copy_n(bias.data(), out, to);
          for (; k < taps; ++k)
            add_picked(from, columns_of.data() + k * out, weights_of.data() + k * out, to, out);
        }
      } else if (block == 2) {
        for (int64_t r = 0; r < out; ++r) to[r] = from[2 * r] + from[2 * r + 1];
      } else {
        for (int64_t r = 0; r < out; ++r) {
          const auto u = static_cast<size_t>(r);
          T sum = bias.empty() ? T(0) : bias[u];
          for (int64_t k = first[u]; k < first[u + 1]; ++k)
            sum += weight[static_cast<size_t>(k)] * from[column[static_cast<size_t>(k)]];
          to[r] = sum;
        }
      }
    }
  }

  void run(const T* x, T* y, int threads) const {
    const int64_t line = std::max<int64_t>(1, inner == 1 ? in + out : 2 * inner);
    const int64_t grain = std::max<int64_t>(1, 8192 / line);
    if (out * inner == 0) return;
    if (inner == 1) {
      parallel_for(threads, outer, grain,
                   [&](int64_t begin, int64_t end) { elements(x, y, begin, end); });
    } else {
      parallel_for(threads, outer * out, grain,
                   [&](int64_t begin, int64_t end) { lines(x, y, begin, end); });
    }
  }
};

// Computes in C; tensors of another type T are converted on the way in and out.
template <class C, class T>
Kernel typed(const std::vector<AxisMatrix>& matrices, Dims dims, int threads) {
  auto steps = std::make_shared<std::vector<Step<C>>>();
  const int64_t source = product(dims);
  int64_t most = 0;
  for (const AxisMatrix& m : matrices) {
    steps->emplace_back(m, dims);
    if constexpr (std::is_same_v<C, float>) steps->back().even_out();
    dims[static_cast<size_t>(m.axis)] = m.out;
    most = std::max(most, product(dims));
  }
  const int64_t result = product(dims);
  constexpr bool kConvert = !std::is_same_v<C, T>;
  most = std::max(most, kConvert ? source : 0);
  most = (most + 15) / 16 * 16;
  const size_t bytes =
      steps->size() > 1 || kConvert ? static_cast<size_t>(2 * most) * sizeof(C) : 0;
  return {
      bytes, [=](const KernelArgs& a) {
        C* const halves[2] = {static_cast<C*>(a.workspace), static_cast<C*>(a.workspace) + most};
        const C* from = static_cast<const C*>(a.in[0]);
        int turn = 0;
        if constexpr (kConvert) {
          for (int64_t i = 0; i < source; ++i)
            halves[0][i] = static_cast<C>(static_cast<Acc<T>>(a.x<T>(0)[i]));
          from = halves[0];
          turn = 1;
        }
        for (size_t s = 0; s < steps->size(); ++s, turn ^= 1) {
          const bool last = s + 1 == steps->size() && !kConvert;
          C* to = last ? static_cast<C*>(a.out[0]) : halves[turn];
          (*steps)[s].run(from, to, threads);
          from = to;
        }
        if constexpr (kConvert) {
          for (int64_t i = 0; i < result; ++i)
            a.y<T>(0)[i] = static_cast<T>(static_cast<Acc<T>>(from[i]));
        } else if (steps->empty() && result > 0) {
          std::memcpy(a.out[0], a.in[0], static_cast<size_t>(result) * sizeof(T));
        }
      }};
}

}  // namespace

Kernel resample(std::vector<AxisMatrix> matrices, Dims dims, DType dtype, int threads) {
  std::erase_if(matrices, [](const AxisMatrix& m) { return m.identity(); });
  if (dtype == DType::kF32) return typed<float, float>(matrices, std::move(dims), threads);
  return dispatch(dtype,
                  [&]<class T>() { return typed<double, T>(matrices, std::move(dims), threads); });
}

}  // namespace ortrain::ops
