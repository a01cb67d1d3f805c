// Reduction kernels over collapsed dims.
//
// Neighbouring axes that are both kept or both reduced merge, so a reduction is an alternation of
// kept and reduced dims. Two forms: "rows" (the innermost dim is reduced: each result gathers whole
// contiguous rows) and "columns" (the innermost dim is kept: rows of the innermost dim are added
// into an accumulator). Floats accumulate in double, integers in 64 bits. Work is split over
// results, or, when there are few, over pieces of the reduced part whose partial results are joined
// in piece order: the result depends on the number of threads but repeats bit for bit.
#include "ops/common/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "graph/error.h"
#include "ops/common/reduce_simd.h"

namespace ortrain::ops {

namespace {

constexpr int64_t kGrain = 16 * 1024;
constexpr int64_t kChunk = 1024;  // columns per accumulator

struct Dims2 {
  std::vector<int64_t> size, stride;
  int64_t count = 1;
  void add(int64_t n, int64_t s) { size.push_back(n), stride.push_back(s), count *= n; }
  int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (size_t d = size.size(); d-- > 0;) at += i % size[d] * stride[d], i /= size[d];
    return at;
  }
};

struct Form {
  Dims2 kept, reduced;  // outer dims, without the innermost
  bool rows = true;     // the innermost dim is reduced
  int64_t inner = 1;    // its size
  int64_t results = 1, per_result = 1;
};

Form form_of(const Dims& dims, const std::vector<int>& axes) {
  std::vector<int64_t> size;
  std::vector<char> reduced;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    const char r = std::find(axes.begin(), axes.end(), static_cast<int>(d)) != axes.end();
    if (!size.empty() && reduced.back() == r)
      size.back() *= dims[d];
    else
      size.push_back(dims[d]), reduced.push_back(r);
  }
  Form f;
  if (!size.empty()) {
    f.rows = reduced.back();
    f.inner = size.back();
    int64_t stride = f.inner;
    std::vector<int64_t> strides(size.size(), 1);
    for (size_t d = size.size() - 1; d-- > 0;) strides[d] = stride, stride *= size[d];
    for (size_t d = 0; d + 1 < size.size(); ++d)
      (reduced[d] ? f.reduced : f.kept).add(size[d], strides[d]);
  }
  f.results = f.kept.count * (f.rows ? 1 : f.inner);
  f.per_result = f.reduced.count * (f.rows ? f.inner : 1);
  return f;
}

// --- ref: every type, one result after the other ------------------------------------------------
template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, double> ||
                           std::is_same_v<T, f16> || std::is_same_v<T, bf16>,
                       double, std::conditional_t<std::is_same_v<T, uint64_t>, uint64_t, int64_t>>;

template <class T>
Accumulator<T> widen(T v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<double>(static_cast<float>(v));
  else
    return static_cast<Accumulator<T>>(v);
}
template <class T>
T narrow(Accumulator<T> v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return T(static_cast<float>(v));
  else
    return static_cast<T>(v);
}

template <class T>
Accumulator<T> start_of(Reduce op) {
  using A = Accumulator<T>;
  if (op == Reduce::kProd) return 1;
  if (op != Reduce::kMax && op != Reduce::kMin) return 0;
  if constexpr (std::is_floating_point_v<A>) {
    const double inf = std::numeric_limits<double>::infinity();
    return op == Reduce::kMax ? -inf : inf;
  } else {
    return static_cast<A>(op == Reduce::kMax ? std::numeric_limits<T>::min()
                                             : std::numeric_limits<T>::max());
  }
}

template <class A>
A join(Reduce op, A a, A b) {
  const auto wrap = [](uint64_t v) { return static_cast<A>(v); };
  switch (op) {
    case Reduce::kMax: return a != a ? a : (b != b || b > a) ? b : a;
    case Reduce::kMin: return a != a ? a : (b != b || b < a) ? b : a;
    case Reduce::kProd:
      if constexpr (std::is_integral_v<A>)
        return wrap(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      else
        return a * b;
    default:
      if constexpr (std::is_integral_v<A>)
        return wrap(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      else
        return a + b;
  }
}

template <class A>
A finish(Reduce op, A a, int64_t n) {
  if (op != Reduce::kMean) return a;
  if constexpr (std::is_floating_point_v<A>)
    return a / static_cast<A>(n);
  else
    return n == 0 ? A(0) : static_cast<A>(a / static_cast<A>(n));
}

template <class T>
void run_ref(Reduce op, const Form& f, int threads, const KernelArgs& args) {
  const T* x = args.x<T>(0);
  T* y = args.y<T>(0);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, f.per_result));
  parallel_for(threads, f.results, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = x + f.kept.offset(f.rows ? i : i / f.inner) + (f.rows ? 0 : i % f.inner);
      Accumulator<T> a = start_of<T>(op);
      for (int64_t r = 0; r < f.reduced.count; ++r) {
        const T* row = from + f.reduced.offset(r);
        const int64_t n = f.rows ? f.inner : 1;
        for (int64_t k = 0; k < n; ++k) a = join(op, a, widen(row[k]));
      }
      y[i] = narrow<T>(finish(op, a, f.per_result));
    }
  });
}

// --- simd: f32 ----------------------------------------------------------------------------------
double join_extreme(Reduce op, double a, double b) { return join(op, a, b); }

double reduce_row(Reduce op, const float* x, int64_t n) {
  const ReduceSimd& s = reduce_simd();
  if (op == Reduce::kMax) return static_cast<double>(s.max(x, n));
  if (op == Reduce::kMin) return static_cast<double>(s.min(x, n));
  return s.sum(x, n);
}

struct RowPlan {
  Reduce op;
  Form f;
  int threads;
  int64_t pieces = 1;  // > 1: the reduced part of each result is split
};

void run_rows(const RowPlan& p, const KernelArgs& args) {
  const Form& f = p.f;
  const float* x = args.x<float>(0);
  float* y = args.y<float>(0);
  // Outer reduced rows when there are several, else pieces of the one row.
  const int64_t outer = f.reduced.count;
  const auto part = [&](const float* from, int64_t piece) {
    double a = start_of<float>(p.op);
    if (outer >= p.pieces) {
      const int64_t end = outer * (piece + 1) / p.pieces;
      for (int64_t r = outer * piece / p.pieces; r < end; ++r)
        a = join_extreme(p.op, a, reduce_row(p.op, from + f.reduced.offset(r), f.inner));
      return a;
    }
    const int64_t begin = f.inner * piece / p.pieces, end = f.inner * (piece + 1) / p.pieces;
    for (int64_t r = 0; r < outer; ++r)
      a = join_extreme(p.op, a, reduce_row(p.op, from + f.reduced.offset(r) + begin, end - begin));
    return a;
  };
  if (p.pieces == 1) {
    const int64_t grain = std::max<int64_t>(1, kGrain / f.per_result);
    parallel_for(p.threads, f.results, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        y[i] = static_cast<float>(finish(p.op, part(x + f.kept.offset(i), 0), f.per_result));
    });
    return;
  }
  double* partial = static_cast<double*>(args.workspace);
  parallel_for(p.threads, f.results * p.pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u)
      partial[u] = part(x + f.kept.offset(u / p.pieces), u % p.pieces);
  });
  for (int64_t i = 0; i < f.results; ++i) {
    double a = start_of<float>(p.op);
    for (int64_t k = 0; k < p.pieces; ++k) a = join_extreme(p.op, a, partial[i * p.pieces + k]);
    y[i] = static_cast<float>(finish(p.op, a, f.per_result));
  }
}

// Columns: units are (outer result, chunk of columns, piece of the reduced rows). `fold`
// neighbouring rows count as one wide row when rows are short.
struct ColumnPlan {
  Reduce op;
  Form f;
  int threads;
  int64_t fold = 1, width = 1, chunk = 1, chunks = 1, pieces = 1;
};

template <class A>
void run_columns(const ColumnPlan& p, const KernelArgs& args) {
  const Form& f = p.f;
  const ReduceSimd& simd = reduce_simd();
  const float* x = args.x<float>(0);
  float* y = args.y<float>(0);
  A* space = static_cast<A*>(args.workspace);  // [unit][chunk]
  const A start = static_cast<A>(start_of<float>(p.op));
  const auto rows = [&](const float* from, int64_t count, int64_t pitch, int64_t n, A* acc) {
    if constexpr (std::is_same_v<A, double>)
      simd.sum_rows(from, count, pitch, n, acc);
    else if (p.op == Reduce::kMax)
      simd.max_rows(from, count, pitch, n, acc);
    else
      simd.min_rows(from, count, pitch, n, acc);
  };
  const auto store = [&](float* to, const A* acc, int64_t n) {
    for (int64_t j = 0; j < n; ++j)
      to[j] = static_cast<float>(finish(p.op, static_cast<double>(acc[j]), f.per_result));
  };
  // The last reduced dim holds the rows that follow one another; the others are walked by offset.
  const size_t levels = f.reduced.size.size();
  const int64_t run = f.reduced.size[levels - 1], pitch = f.reduced.stride[levels - 1];
  const int64_t runs = f.reduced.count / run;
  const int64_t units = f.kept.count * p.chunks * p.pieces;
  const auto work = [&](int64_t unit, A* acc) {
    const int64_t piece = unit % p.pieces, chunk = unit / p.pieces % p.chunks;
    const float* base = x + f.kept.offset(unit / p.pieces / p.chunks);
    const int64_t first = chunk * p.chunk, n = std::min(p.chunk, p.width - first);
    std::fill(acc, acc + p.chunk, start);
    const int64_t wide = run / p.fold;  // rows of `width` in one run
    const int64_t begin = runs * wide * piece / p.pieces,
                  end = runs * wide * (piece + 1) / p.pieces;
    for (int64_t r = begin; r < end;) {
      const int64_t within = r % wide, count = std::min(end - r, wide - within);
      const float* from = base + f.reduced.offset(r / wide * run) + within * p.fold * pitch + first;
      rows(from, count, p.fold * pitch, n, acc);
      r += count;
    }
    if (p.fold > 1 && piece == p.pieces - 1)  // rows left over by folding
      for (int64_t k = 0; k < runs; ++k)
        for (int64_t r = wide * p.fold; r < run; ++r)
          rows(base + f.reduced.offset(k * run + r), 1, 0, f.inner, acc);
  };
  const auto fold = [&](A* acc) {
    for (int64_t k = 1; k < p.fold; ++k)
      for (int64_t j = 0; j < f.inner; ++j)
        acc[j] = static_cast<A>(join(p.op, acc[j], acc[k * f.inner + j]));
  };
  const int64_t unit_size = std::max<int64_t>(1, f.per_result * f.inner / (p.chunks * p.pieces));
  const int64_t grain = std::max<int64_t>(1, kGrain / unit_size);
  if (p.pieces == 1) {
    parallel_for(p.threads, units, grain, [&](int64_t begin, int64_t end) {
      A acc[kChunk];
      for (int64_t u = begin; u < end; ++u) {
        work(u, acc);
        fold(acc);
        const int64_t first = u % p.chunks * p.chunk;
        store(y + u / p.chunks * f.inner + first, acc,
              p.fold > 1 ? f.inner : std::min(p.chunk, p.width - first));
      }
    });
    return;
  }
  parallel_for(p.threads, units, 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) work(u, space + u * p.chunk);
  });
  for (int64_t u = 0; u < units; u += p.pieces) {
    A* acc = space + u * p.chunk;
    for (int64_t k = 1; k < p.pieces; ++k)
      for (int64_t j = 0; j < p.chunk; ++j)
        acc[j] = static_cast<A>(join(p.op, acc[j], acc[k * p.chunk + j]));
    fold(acc);
    const int64_t group = u / p.pieces, first = group % p.chunks * p.chunk;
    store(y + group / p.chunks * f.inner + first, acc,
          p.fold > 1 ? f.inner : std::min(p.chunk, p.width - first));
  }
}

Kernel prepare_simd(Reduce op, Form f, int threads) {
  const int64_t total = f.results * f.per_result;
  const int64_t useful = std::max<int64_t>(1, total / kGrain);
  if (f.rows) {
    RowPlan p{op, std::move(f), threads, 1};
    if (p.f.results < threads) p.pieces = std::clamp<int64_t>(useful / p.f.results, 1, threads);
    return {static_cast<size_t>(p.pieces > 1 ? p.f.results * p.pieces : 0) * sizeof(double),
            [p = std::move(p)](const KernelArgs& args) { run_rows(p, args); }};
  }
  if (f.reduced.size.empty()) f.reduced.add(1, 0);  // nothing is reduced: a copy
  ColumnPlan p{op, std::move(f), threads};
  const int64_t run = p.f.reduced.size.back(), pitch = p.f.reduced.stride.back();
  if (p.f.inner < 64 && pitch == p.f.inner && run > 1)
    p.fold = std::clamp<int64_t>(512 / p.f.inner, 1, run);
  p.width = p.f.inner * p.fold;
  p.chunk = std::min(p.width, kChunk);
  p.chunks = (p.width + p.chunk - 1) / p.chunk;
  const int64_t units = p.f.kept.count * p.chunks;
  if (units < threads)
    p.pieces =
        std::clamp<int64_t>(std::min(useful / units, p.f.reduced.count / p.fold), 1, threads);
  const bool sum = op == Reduce::kSum || op == Reduce::kMean;
  const size_t cell = sum ? sizeof(double) : sizeof(float);
  const size_t space = p.pieces > 1 ? static_cast<size_t>(units * p.pieces * p.chunk) * cell : 0;
  return {space, [p = std::move(p), sum](const KernelArgs& args) {
            if (sum)
              run_columns<double>(p, args);
            else
              run_columns<float>(p, args);
          }};
}

std::vector<int> axes_of(const KernelQuery& q) {
  std::vector<int64_t> axes;
  if (q.has_in(1)) axes = q.need_ints(1, "the axes of a reduction");
  return reduced_axes(axes, q.attrs.i("noop_with_empty_axes", 0) != 0, q.in[0].rank());
}

template <Reduce op>
std::string simd_reject(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "float32 only";
  return op == Reduce::kProd ? "no vector form of products" : "";
}
template <Reduce op>
Kernel simd_entry(const KernelQuery& q) {
  return prepare_reduce(op, q.in[0], axes_of(q), q.in[0].dtype, q.threads, true);
}
template <Reduce op>
Kernel ref_entry(const KernelQuery& q) {
  return prepare_reduce(op, q.in[0], axes_of(q), q.in[0].dtype, q.threads, false);
}

}  // namespace

std::vector<int> reduced_axes(const std::vector<int64_t>& axes, bool noop_with_empty_axes,
                              int rank) {
  if (!axes.empty()) return normalize_axes(axes, rank);
  std::vector<int> all;
  if (!noop_with_empty_axes)
    for (int i = 0; i < rank; ++i) all.push_back(i);
  return all;
}

Kernel prepare_reduce(Reduce op, const TensorDesc& x, const std::vector<int>& axes, DType dtype,
                      int threads, bool simd) {
  Form f = form_of(x.dims, axes);
  if (f.results == 0) return {.run = [](const KernelArgs&) {}};
  if (simd && dtype == DType::kF32 && op != Reduce::kProd && f.per_result > 0)
    return prepare_simd(op, std::move(f), threads);
  return dispatch(dtype, [&]<class T>() -> Kernel {
    return {.run = [op, f, threads](const KernelArgs& args) { run_ref<T>(op, f, threads, args); }};
  });
}

template <Reduce op>
std::vector<KernelEntry> reduce_kernels() {
  return {{"cpu", "simd", simd_reject<op>, simd_entry<op>}, {"cpu", "ref", nullptr, ref_entry<op>}};
}
template std::vector<KernelEntry> reduce_kernels<Reduce::kSum>();
template std::vector<KernelEntry> reduce_kernels<Reduce::kMean>();
template std::vector<KernelEntry> reduce_kernels<Reduce::kMax>();
template std::vector<KernelEntry> reduce_kernels<Reduce::kMin>();
template std::vector<KernelEntry> reduce_kernels<Reduce::kProd>();

}  // namespace ortrain::ops
