// CumProd: running products along `axis` (a constant input); `exclusive` leaves the element itself
// out, `reverse` runs from the end. Floats multiply in double.
//
// Gradient (ortrain.CumProdGrad) without a division, so that zeros in x are exact, as PyTorch's
// cumprod: dx_k = (product of what comes before k) * S_k with the sum S_k = dy_k + x_{k+1} S_{k+1},
// for exclusive S_k = dy_{k+1} + x_{k+1} S_{k+1}. Two sweeps over each line.
#include <algorithm>
#include <array>
#include <type_traits>

#include "graph/error.h"
#include "ops/common/ref.h"

namespace ortrain::ops {

namespace {

void check_axis(InferCtx& c, int input, int data) {
  const auto axis = c.need_ints(input, "the axis of CumProd");
  if (axis.size() != 1 || !axis[0].is_const()) c.fail("axis must be one number");
  normalize_axis(axis[0].value(), c.rank(data));
}
void infer(InferCtx& c) {
  check_axis(c, 1, 0);
  c.out(0, c.dtype(0), c.shape(0));
}
void infer_grad(InferCtx& c) {
  check_axis(c, 2, 1);
  c.out(0, c.dtype(1), c.shape(1));
}

constexpr int64_t kWide = 64;

struct Lines {
  int64_t n = 1, inner = 1, count = 0;
  bool exclusive = false, reverse = false;
  int threads = 1;
  Lines(const KernelQuery& q, size_t data, size_t axis_input) : threads(q.threads) {
    const Dims& dims = q.in[data].dims;
    const int64_t named = q.need_ints(axis_input, "the axis of CumProd").at(0);
    const auto axis = static_cast<size_t>(normalize_axis(named, q.in[data].rank()));
    n = dims[axis];
    int64_t outer = 1;
    for (size_t d = 0; d < axis; ++d) outer *= dims[d];
    for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
    count = outer * inner;
    exclusive = q.attrs.i("exclusive", 0) != 0;
    reverse = q.attrs.i("reverse", 0) != 0;
  }
  // Calls f(base, width) for neighbouring lines, at most kWide: element k, in running order, of
  // line j lies at base + at(k) + j, so that the inner loops run over contiguous memory.
  template <class F>
  void each(F&& f) const {
    parallel_for(threads, count, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end;) {
                     const int64_t column = i % inner;
                     const int64_t width = std::min({kWide, end - i, inner - column});
                     f(i / inner * n * inner + column, width);
                     i += width;
                   }
                 });
  }
  int64_t at(int64_t k) const { return (reverse ? n - 1 - k : k) * inner; }
};

Kernel prepare(const KernelQuery& q) {
  return dispatch(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [l = Lines(q, 0, 1)](const KernelArgs& a) {
              const T* x = a.x<T>(0);
              T* y = a.y<T>(0);
              // Integers wrap: in unsigned arithmetic.
              using P = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
              const auto step = [&](int64_t i, P& product) {
                const P v = static_cast<P>(load(x[i]));
                if (!l.exclusive) product *= v;
                y[i] = store<T>(static_cast<Acc<T>>(product));
                if (l.exclusive) product *= v;
              };
              l.each([&](int64_t base, int64_t width) {
                P one = 1;
                if (width == 1) {
                  for (int64_t k = 0; k < l.n; ++k) step(base + l.at(k), one);
                  return;
                }
                std::array<P, kWide> all;
                all.fill(1);
                for (int64_t k = 0; k < l.n; ++k)
                  for (int64_t j = 0; j < width; ++j)
                    step(base + l.at(k) + j, all[static_cast<size_t>(j)]);
              });
            }};
  });
}

Kernel prepare_grad(const KernelQuery& q) {
  Kernel out;
  out.workspace = static_cast<size_t>(q.in[0].count()) * sizeof(double);  // products before k
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [l = Lines(q, 1, 2)](const KernelArgs& a) {
      const T *dy = a.x<T>(0), *x = a.x<T>(1);
      T* dx = a.y<T>(0);
      double* before = static_cast<double*>(a.workspace);
      struct Line {
        double product = 1, sum = 0, later_dy = 0, later_x = 0;
      };
      const auto forward = [&](int64_t i, Line& line) {
        before[i] = line.product;
        line.product *= load(x[i]);
      };
      const auto backward = [&](int64_t i, Line& line) {
        const double d = load(dy[i]);
        line.sum = (l.exclusive ? line.later_dy : d) + line.later_x * line.sum;
        line.later_dy = d, line.later_x = load(x[i]);
        dx[i] = store<T>(before[i] * line.sum);
      };
      l.each([&](int64_t base, int64_t width) {
        if (width == 1) {
          Line line;
          for (int64_t k = 0; k < l.n; ++k) forward(base + l.at(k), line);
          for (int64_t k = l.n; k-- > 0;) backward(base + l.at(k), line);
          return;
        }
        std::array<Line, kWide> lines{};
        for (int64_t k = 0; k < l.n; ++k)
          for (int64_t j = 0; j < width; ++j)
            forward(base + l.at(k) + j, lines[static_cast<size_t>(j)]);
        for (int64_t k = l.n; k-- > 0;)
          for (int64_t j = 0; j < width; ++j)
            backward(base + l.at(k) + j, lines[static_cast<size_t>(j)]);
      });
    };
  });
  return out;
}

Expr gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  return g.b.op("ortrain.CumProdGrad", {g.dy(), g.x(0), g.x(1)}, attrs);
}

}  // namespace

void register_cum_prod(OpTable& table) {
  const auto with = [](int64_t exclusive, int64_t reverse) {
    return Attrs{{"exclusive", exclusive}, {"reverse", reverse}};
  };
  table.add({
      .name = "CumProd",
      .inputs = {"x", "axis"},
      .outputs = {"y"},
      .since = 26,
      .infer = infer,
      .grad = {grad("x", gradient), no_grad("axis")},
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 3, 4}), iconst({}, {1})}},
                   {.in = {f({2, 3, 70}), iconst({}, {1})}},
                   {.in = {f({2, 5}), iconst({}, {-1})}, .attrs = with(1, 0)},
                   {.in = {f({2, 5}), iconst({1}, {0})}, .attrs = with(0, 1)},
                   {.in = {f({2, 5}), iconst({}, {1})}, .attrs = with(1, 1)},
                   {.in = {floats({2, 4}, {2, 0, 3, 0.5, 0, 1.5, 0, 2}), iconst({}, {1})}},
                   {.in = {floats({5}, {2, 0, 3, 0, 2}), iconst({}, {0})}, .attrs = with(1, 1)},
                   {.in = {ints({2, 5}, -9, 9), iconst({}, {1})}},
                   {.in = {f({2, 1}), iconst({}, {1})}, .attrs = with(1, 0)},
                   {.in = {f({0, 5}), iconst({}, {1})}}},
      .note = "zeros in x have their exact gradient (PyTorch); integers wrap",
  });
  table.add({
      .name = "ortrain.CumProdGrad",
      .inputs = {"dy", "x", "axis"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare_grad}},
      .examples = {{.in = {f({2, 3, 4}), f({2, 3, 4}), iconst({}, {1})}},
                   {.in = {f({2, 5}), f({2, 5}), iconst({}, {1})}, .attrs = with(1, 1)}},
  });
}

}  // namespace ortrain::ops
