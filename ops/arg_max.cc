// ArgMax, ArgMin: the index (i64) of the largest or smallest element along `axis`; the first one,
// or the last with select_last_index; a NaN counts as the extreme, as in PyTorch. No gradient.
#include <algorithm>
#include <type_traits>

#include "graph/error.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

namespace {

void infer_arg(InferCtx& c) {
  const int axis = normalize_axis(c.attrs().i("axis", 0), c.rank(0));
  const bool keep = c.attrs().i("keepdims", 1) != 0;
  Shape out;
  for (int d = 0; d < c.rank(0); ++d) {
    if (d != axis)
      out.push_back(c.shape(0)[d]);
    else if (keep)
      out.push_back(Dim(1));
  }
  if (c.shape(0)[axis] == Dim(0)) c.fail("no largest element along an empty axis");
  c.out(0, DType::kI64, std::move(out));
}

template <class T>
auto number(T v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<float>(v);
  else
    return v;
}

template <class T, bool largest>
void run(const Dims& dims, size_t axis, bool last, int threads, const KernelArgs& args) {
  int64_t outer = 1, inner = 1;
  const int64_t n = dims[axis];
  for (size_t d = 0; d < axis; ++d) outer *= dims[d];
  for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
  const T* x = args.x<T>(0);
  int64_t* y = args.y<int64_t>(0);
  parallel_for(threads, outer * inner, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const T* from = x + i / inner * n * inner + i % inner;
                   int64_t best = 0;
                   auto top = number(from[0]);
                   for (int64_t k = 1; k < n; ++k) {
                     const auto v = number(from[k * inner]);
                     const bool beyond = largest ? v > top : v < top;
                     const bool takes = (beyond || v != v || (last && v == top)) && top == top;
                     if (takes || (last && v != v)) top = v, best = k;
                   }
                   y[i] = best;
                 }
               });
}

template <bool largest>
Kernel prepare(const KernelQuery& q) {
  const Dims dims = q.in[0].dims;
  const size_t axis = static_cast<size_t>(normalize_axis(q.attrs.i("axis", 0), q.in[0].rank()));
  const bool last = q.attrs.i("select_last_index", 0) != 0;
  return dispatch(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {.run = [dims, axis, last, threads = q.threads](const KernelArgs& args) {
      run<T, largest>(dims, axis, last, threads, args);
    }};
  });
}

OpDef arg_extreme(const char* name, Kernel (*prepare_kernel)(const KernelQuery&)) {
  const auto with = [](int64_t axis, int64_t keep, int64_t last) {
    return Attrs{{"axis", axis}, {"keepdims", keep}, {"select_last_index", last}};
  };
  const ExampleInput ties = floats({2, 4}, {1, 3, 3, 0, -1, -1, -2, -2});
  return {.name = name,
          .inputs = {"data"},
          .outputs = {"reduced"},
          .infer = infer_arg,
          .grad = {no_grad("data")},
          .kernels = {{"cpu", "ref", nullptr, prepare_kernel}},
          .examples = {{.in = {f({2, 3})}},
                       {.in = {f({2, 3, 4})}, .attrs = with(1, 0, 0)},
                       {.in = {ties}, .attrs = with(-1, 1, 0)},
                       {.in = {ties}, .attrs = with(-1, 1, 1)},
                       {.in = {ints({3, 5}, -3, 3)}, .attrs = with(0, 0, 0)},
                       {.in = {f({0, 3})}, .attrs = with(1, 0, 0)}}};
}

}  // namespace

void register_arg_max(OpTable& table) {
  table.add(arg_extreme("ArgMax", prepare<true>));
  table.add(arg_extreme("ArgMin", prepare<false>));
}

}  // namespace ortrain::ops
