// Unique: the different elements of X, or its different slices along `axis`; where each first
// occurs, which one each place holds, how often each occurs. Sorted, or in order of first
// occurrence (sorted = 0). NaNs count as equal and come last, as in numpy.
//
// How many there are depends on the contents, so X must be known before training; refused
// otherwise.
#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

struct Found {
  std::vector<int64_t> first, inverse, counts;
};

struct Slices {
  int64_t outer = 1, count = 0, inner = 1;
};

Slices slices_of(const Dims& dims, const Attrs& attrs) {
  Slices s;
  if (!attrs.has("axis")) {
    s.count = element_count(dims);
    return s;
  }
  const auto axis =
      static_cast<size_t>(normalize_axis(attrs.i("axis", 0), static_cast<int>(dims.size())));
  for (size_t i = 0; i < dims.size(); ++i)
    (i < axis   ? s.outer
     : i > axis ? s.inner
                : s.count) = i == axis  ? dims[i]
                             : i < axis ? s.outer * dims[i]
                                        : s.inner * dims[i];
  return s;
}

template <class T>
int compare(const T& a, const T& b) {
  const auto x = load(a), y = load(b);
  if (x < y) return -1;
  if (y < x) return 1;
  return x == y ? 0 : static_cast<int>(x != x) - static_cast<int>(y != y);
}

template <class T>
Found find(const T* x, const Slices& s, bool sorted) {
  const auto order_of = [&](int64_t a, int64_t b) {
    for (int64_t o = 0; o < s.outer; ++o)
      for (int64_t i = 0; i < s.inner; ++i)
        if (const int c =
                compare(x[(o * s.count + a) * s.inner + i], x[(o * s.count + b) * s.inner + i]))
          return c;
    return 0;
  };
  std::vector<int64_t> order(static_cast<size_t>(s.count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return order_of(a, b) < 0; });
  Found f;
  f.inverse.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order_of(order[i - 1], order[i]) != 0)
      f.first.push_back(order[i]), f.counts.push_back(0);
    f.inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(f.first.size()) - 1;
    ++f.counts.back();
  }
  if (sorted) return f;
  std::vector<size_t> by_place(f.first.size());
  std::iota(by_place.begin(), by_place.end(), size_t{0});
  std::sort(by_place.begin(), by_place.end(),
            [&](size_t a, size_t b) { return f.first[a] < f.first[b]; });
  Found out;
  std::vector<int64_t> rank(by_place.size());
  for (size_t i = 0; i < by_place.size(); ++i) {
    rank[by_place[i]] = static_cast<int64_t>(i);
    out.first.push_back(f.first[by_place[i]]);
    out.counts.push_back(f.counts[by_place[i]]);
  }
  for (int64_t i : f.inverse) out.inverse.push_back(rank[static_cast<size_t>(i)]);
  return out;
}

Found solve(const HostTensor* x, const Attrs& attrs) {
  if (!x)
    fail(ErrorCode::kUnsupported,
         "the size of the result depends on X, which is not known before training; ortrain plans "
         "before step 1");
  return dispatch(x->dtype(), [&]<class T>() {
    return find(x->data<T>(), slices_of(x->dims(), attrs), attrs.i("sorted", 1) != 0);
  });
}

void infer(InferCtx& c) {
  const HostTensor* x = c.constant(0);
  const Found f = solve(x, c.attrs());
  const Dim n = static_cast<int64_t>(f.first.size());
  Shape y{n};
  if (c.attrs().has("axis")) {
    y = c.shape(0);
    y[normalize_axis(c.attrs().i("axis", 0), y.rank())] = n;
  }
  c.out(0, c.dtype(0), y);
  c.out(1, DType::kI64, {n});
  c.out(2, DType::kI64, {static_cast<int64_t>(f.inverse.size())});
  c.out(3, DType::kI64, {n});
}

Kernel kernel(const KernelQuery& q) {
  Found found = solve(q.constant(0), q.attrs);
  return {0, [f = std::move(found), s = slices_of(q.in[0].dims, q.attrs),
              dtype = q.in[0].dtype](const KernelArgs& a) {
            if (a.out[0])
              dispatch(dtype, [&]<class T>() {
                T* y = a.y<T>(0);
                for (int64_t o = 0; o < s.outer; ++o)
                  for (int64_t k : f.first) {
                    std::copy_n(a.x<T>(0) + (o * s.count + k) * s.inner, s.inner, y);
                    y += s.inner;
                  }
              });
            const std::vector<int64_t>* lists[] = {&f.first, &f.inverse, &f.counts};
            for (size_t i = 0; i < 3; ++i)
              if (a.out[i + 1]) std::copy(lists[i]->begin(), lists[i]->end(), a.y<int64_t>(i + 1));
          }};
}

}  // namespace

void register_unique(OpTable& table) {
  const ExampleInput x = iconst({2, 3, 2}, {4, 1, 0, 2, 4, 1, 4, 1, 7, 2, 4, 1});
  table.add({
      .name = "Unique",
      .inputs = {"X"},
      .outputs = {"Y", "indices?", "inverse_indices?", "counts?"},
      .since = 11,
      .infer = infer,
      .grad = {no_grad("X")},
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {x}, .outputs = 4},
                   {.in = {x}, .attrs = {{"sorted", 0}}, .outputs = 4},
                   {.in = {x}, .attrs = {{"axis", -2}}, .outputs = 4},
                   {.in = {x}, .attrs = {{"axis", 1}, {"sorted", 0}}, .outputs = 4},
                   {.in = {iconst({0}, {})}, .outputs = 4}},
      .note = "X must be known before training, so nothing trains through it",
  });
}

}  // namespace ortrain::ops
