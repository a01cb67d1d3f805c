// Det: determinants of a batch of square matrices [..., n, n] -> [...], by elimination with row
// pivots in double precision; 1 for n = 0.
//
// Gradient (ortrain.DetGrad): dA = dy adj(A)^T, the cofactors. Elimination with full pivots gives
// A = P' L U Q' with det L = 1, so adj(A) = det(P) det(Q) Q adj(U) L^-1 P. With U = [U1 u; 0 d],
// adj(U) = det(U1) [d U1^-1, -U1^-1 u; 0, 1], which divides by no zero as long as the rank is n-1
// or n; below that the cofactors are zero. So singular matrices have their exact gradient, as
// PyTorch's (it takes another path to the same numbers).
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/ref.h"

namespace ortrain::ops {

namespace {

void check_square(InferCtx& c, int i) {
  if (!is_float(c.dtype(i))) c.fail(cat("takes floats, not ", name_of(c.dtype(i))));
  const Shape& x = c.shape(i);
  if (x.rank() < 2 || prove_equal(x[x.rank() - 1], x[x.rank() - 2]) == Tri::kNo)
    c.fail(cat("takes square matrices, not ", x.str()));
}
void infer(InferCtx& c) {
  check_square(c, 0);
  Shape y;
  for (int d = 0; d + 2 < c.rank(0); ++d) y.push_back(c.shape(0)[d]);
  c.out(0, c.dtype(0), y);
}
void infer_grad(InferCtx& c) {
  check_square(c, 1);
  c.out(0, c.dtype(1), c.shape(1));
}

// a [n, n] is destroyed.
double determinant(double* a, int64_t n) {
  double det = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t best = k;
    for (int64_t i = k + 1; i < n; ++i)
      if (std::abs(a[i * n + k]) > std::abs(a[best * n + k])) best = i;
    const double pivot = a[best * n + k];
    if (best != k) {
      std::swap_ranges(a + k * n, a + k * n + n, a + best * n);
      det = -det;
    }
    det *= pivot;
    if (pivot == 0) return 0;
    for (int64_t i = k + 1; i < n; ++i) {
      const double by = a[i * n + k] / pivot;
      for (int64_t j = k + 1; j < n; ++j) a[i * n + j] -= by * a[k * n + j];
    }
  }
  return det;
}

// The adjugate of a (destroyed) in adj, both [n, n], n >= 1; l has n * n places, perm 2 n.
void adjugate(double* a, double* adj, double* l, int64_t* perm, int64_t n) {
  int64_t *rows = perm, *columns = perm + n;  // row i of P A Q is row rows[i] of A
  for (int64_t i = 0; i < n; ++i) rows[i] = columns[i] = i;
  double sign = 1, det = 1;  // of U1
  std::fill(adj, adj + n * n, 0.0);
  for (int64_t k = 0; k + 1 < n; ++k) {
    int64_t r = k, c = k;
    for (int64_t i = k; i < n; ++i)
      for (int64_t j = k; j < n; ++j)
        if (std::abs(a[i * n + j]) > std::abs(a[r * n + c])) r = i, c = j;
    if (a[r * n + c] == 0) return;  // rank below n - 1
    if (r != k) {
      std::swap_ranges(a + k * n, a + k * n + n, a + r * n);
      std::swap(rows[k], rows[r]);
      sign = -sign;
    }
    if (c != k) {
      for (int64_t i = 0; i < n; ++i) std::swap(a[i * n + k], a[i * n + c]);
      std::swap(columns[k], columns[c]);
      sign = -sign;
    }
    det *= a[k * n + k];
    for (int64_t i = k + 1; i < n; ++i) {
      const double by = a[i * n + k] / a[k * n + k];
      a[i * n + k] = by;
      for (int64_t j = k + 1; j < n; ++j) a[i * n + j] -= by * a[k * n + j];
    }
  }
  const double d = a[n * n - 1], scale = sign * det;
  // l = L^-1, lower triangular with ones.
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < n; ++i) {
      double v = i == j ? 1 : 0;
      for (int64_t k = j; k < i; ++k) v -= a[i * n + k] * l[k * n + j];
      l[i * n + j] = i < j ? 0 : v;
    }
  // Column j of adj(U) L^-1, solved from below: rows of U1 times it give d l (first rows) minus u
  // times the last row of l. `adj` takes row i to columns[i], column j to rows[j].
  const int64_t m = n - 1;
  for (int64_t j = 0; j < n; ++j) {
    const double last = l[m * n + j];
    const auto at = [&](int64_t i) -> double& { return adj[columns[i] * n + rows[j]]; };
    at(m) = last;
    for (int64_t i = m; i-- > 0;) {
      double v = d * l[i * n + j] - a[i * n + m] * last;
      for (int64_t k = i + 1; k < m; ++k) v -= a[i * n + k] * at(k);
      at(i) = v / a[i * n + i];
    }
    for (int64_t i = 0; i < n; ++i) at(i) *= scale;
  }
}

struct Batch {
  int64_t n, count, grain;
  int threads;
  size_t places;  // doubles per thread
  Batch(const KernelQuery& q, size_t x, int64_t squares)
      : n(q.in[x].dims.back()), threads(q.threads) {
    const Dims& dims = q.in[x].dims;
    count = element_count(Dims(dims.begin(), dims.end() - 2));
    grain = 1 + 20000 / (1 + n * n * n);
    places = static_cast<size_t>(squares * n * n + 2 * n + 1);
  }
  size_t workspace() const {
    if (count == 0) return 0;
    return places * sizeof(double) * static_cast<size_t>(threads);
  }
  // Calls f(matrix, workspace) spread over threads.
  template <class F>
  void each(void* workspace, F&& f) const {
    const int64_t pieces = std::min<int64_t>(threads, std::max<int64_t>(1, count / grain));
    parallel_for(threads, pieces, 1, [&](int64_t piece, int64_t end) {
      for (; piece < end; ++piece) {
        double* own = static_cast<double*>(workspace) + static_cast<size_t>(piece) * places;
        for (int64_t i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) f(i, own);
      }
    });
  }
};

Kernel prepare(const KernelQuery& q) {
  const Batch b(q, 0, 1);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {b.workspace(), [b](const KernelArgs& a) {
              b.each(a.workspace, [&](int64_t i, double* m) {
                const T* x = a.x<T>(0) + i * b.n * b.n;
                for (int64_t k = 0; k < b.n * b.n; ++k) m[k] = load(x[k]);
                a.y<T>(0)[i] = store<T>(determinant(m, b.n));
              });
            }};
  });
}

Kernel prepare_grad(const KernelQuery& q) {
  const Batch b(q, 1, 3);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {b.workspace(), [b](const KernelArgs& a) {
              if (b.n == 0) return;
              b.each(a.workspace, [&](int64_t i, double* m) {
                const int64_t size = b.n * b.n;
                const T* x = a.x<T>(1) + i * size;
                for (int64_t k = 0; k < size; ++k) m[k] = load(x[k]);
                double* adj = m + size;
                adjugate(m, adj, adj + size, reinterpret_cast<int64_t*>(adj + 2 * size), b.n);
                const double dy = load(a.x<T>(0)[i]);
                T* dx = a.y<T>(0) + i * size;
                for (int64_t r = 0; r < b.n; ++r)
                  for (int64_t c = 0; c < b.n; ++c)
                    dx[r * b.n + c] = store<T>(dy * adj[c * b.n + r]);
              });
            }};
  });
}

}  // namespace

void register_det(OpTable& table) {
  table.add({
      .name = "Det",
      .inputs = {"X"},
      .outputs = {"Y"},
      .since = 11,
      .infer = infer,
      .grad = {grad("X",
                    [](Grad& g) {
                      return g.b.op("ortrain.DetGrad", {g.dy(), g.x(0)});
                    })},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({3, 3})}},
                   {.in = {f({2, 3, 5, 5})}},
                   {.in = {f({4, 1, 1})}},
                   {.in = {floats({3, 3}, {1, 2, 3, 2, 4, 6, 0, 1, 1})}},
                   {.in = {floats({3, 3}, {1, 2, 3, 2, 4, 6, 3, 6, 9})}},
                   {.in = {floats({2, 2}, {0, 0, 0, 0})}},
                   {.in = {f({2, 0, 0})}},
                   {.in = {f({0, 3, 3})}}},
      .note = "singular matrices have their exact gradient (the cofactors)",
  });
  table.add({
      .name = "ortrain.DetGrad",
      .inputs = {"dy", "x"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare_grad}},
      .examples = {{.in = {f({2}), f({2, 4, 4})}}},
  });
}

}  // namespace ortrain::ops
