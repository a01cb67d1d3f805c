// NonZero (positions of nonzero elements) and Compress (slices where a condition holds). How much
// they give depends on the contents, so these must be known before training; refused otherwise.
// Compress means a Gather at the true positions, which also gives its gradient.
#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

[[noreturn]] void data_dependent(const char* what) {
  fail(ErrorCode::kUnsupported, "the size of the result depends on ", what,
       ", which is not known before training; ortrain plans before step 1");
}

// Which elements of input i are nonzero; nullopt when not known.
std::optional<std::vector<bool>> nonzero(const InferCtx& c, int i) {
  std::vector<bool> out;
  if (const HostTensor* t = c.constant(i)) {
    for (int64_t k = 0; k < t->count(); ++k) out.push_back(t->as_double(k) != 0);
    return out;
  }
  const auto ints = c.ints(i);
  if (!ints) return std::nullopt;
  for (Dim d : *ints) {
    if (!d.is_const()) return std::nullopt;
    out.push_back(d.value() != 0);
  }
  return out;
}

void infer_non_zero(InferCtx& c) {
  const auto hits = nonzero(c, 0);
  if (!hits || !c.shape(0).is_const()) data_dependent("the input");
  const Dims dims = c.shape(0).values();
  std::vector<std::vector<int64_t>> found(dims.size());
  int64_t n = 0;
  for (size_t i = 0; i < hits->size(); ++i) {
    if (!(*hits)[i]) continue;
    ++n;
    auto rest = static_cast<int64_t>(i);
    for (size_t k = dims.size(); k-- > 0;) {
      found[k].push_back(rest % dims[k]);
      rest /= dims[k];
    }
  }
  c.out(0, DType::kI64, Shape{Dim(c.rank(0)), Dim(n)});
  if (n * c.rank(0) > 4096) return;
  std::vector<Dim> all;
  for (const auto& axis : found) all.insert(all.end(), axis.begin(), axis.end());
  c.out_ints(0, std::move(all));
}

Kernel non_zero_kernel(const KernelQuery& q) {
  return {0,
          [dims = q.in[0].dims, n = q.out[0].dims[1], dtype = q.in[0].dtype](const KernelArgs& a) {
            int64_t at = 0;
            dispatch(dtype, [&]<class T>() {
              for (int64_t i = 0, count = product(dims); i < count && at < n; ++i) {
                if (static_cast<Acc<T>>(a.x<T>(0)[i]) == Acc<T>{}) continue;
                int64_t rest = i;
                for (size_t k = dims.size(); k-- > 0;) {
                  a.y<int64_t>(0)[static_cast<int64_t>(k) * n + at] = rest % dims[k];
                  rest /= dims[k];
                }
                ++at;
              }
            });
          }};
}

std::vector<int64_t> chosen(const InferCtx& c) {
  const auto hits = nonzero(c, 1);
  if (!hits) data_dependent("the condition");
  std::vector<int64_t> out;
  for (size_t i = 0; i < hits->size(); ++i)
    if ((*hits)[i]) out.push_back(static_cast<int64_t>(i));
  return out;
}

void infer_compress(InferCtx& c) {
  const auto n = static_cast<int64_t>(chosen(c).size());
  if (!c.attrs().has("axis")) return c.out(0, c.dtype(0), Shape{Dim(n)});
  Shape out = c.shape(0);
  out[normalize_axis(c.attrs().i("axis", 0), out.rank())] = n;
  c.out(0, c.dtype(0), out);
}

std::vector<Expr> compress(Decompose& d) {
  const std::vector<int64_t> at = chosen(InferCtx(d.b.graph(), d.n));
  if (d.attrs().has("axis"))
    return {d.b.op("Gather", {d.x(0), d.b.ints(at)}, {{"axis", d.attrs().i("axis", 0)}})};
  return {d.b.op("Gather", {d.b.reshape(d.x(0), {-1}), d.b.ints(at)}, {{"axis", 0}})};
}

}  // namespace

void register_non_zero(OpTable& table) {
  table.add({
      .name = "NonZero",
      .inputs = {"X"},
      .outputs = {"Y"},
      .since = 9,
      .infer = infer_non_zero,
      .grad = {no_grad("X")},
      .kernels = {{"cpu", "ref", nullptr, non_zero_kernel}},
      .examples = {{.in = {iconst({2, 3}, {0, 1, 2, 3, 0, -1})}},
                   {.in = {ivals({0, 0})}},
                   {.in = {iconst({}, {5})}}},
  });
  table.add({
      .name = "Compress",
      .inputs = {"input", "condition"},
      .outputs = {"output"},
      .since = 9,
      .infer = infer_compress,
      .decompose = compress,
      .examples = {{.in = {f({3, 2}), ivals({0, 1, 1})}, .attrs = {{"axis", 0}}},
                   {.in = {f({3, 2}), ivals({0, 1})}, .attrs = {{"axis", -1}}},
                   {.in = {f({3, 2}), ivals({0, 1, 0, 0, 1})}},
                   {.in = {f({2}), ivals({0, 0})}, .attrs = {{"axis", 0}}}},
  });
}

}  // namespace ortrain::ops
