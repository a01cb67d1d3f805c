// See update_groups.h.
#include "ops/common/update_groups.h"

#include <algorithm>
#include <cstring>

#include "graph/error.h"

namespace ortrain::ops {
namespace {

constexpr int kInplaceGroups = 1024;

double read_scalar(const void* p, DType dtype) {
  switch (dtype) {
    case DType::kF64: return *static_cast<const double*>(p);
    case DType::kF32: return static_cast<double>(*static_cast<const float*>(p));
    default: return 0;
  }
}

}  // namespace

UpdateGroups::UpdateGroups(const KernelQuery& q, size_t per_group)
    : inputs(per_group), outputs(per_group - 1) {
  const std::vector<int64_t> touched = q.attrs.ints("touched");
  count = (q.in.size() - kUpdateFixed - touched.size()) / inputs;
  dtype = q.in[kUpdateFixed].dtype;
  lr = q.in[0].dtype;
  if (q.has_in(3)) scale = q.in[3].dtype;
  decay = q.attrs.floats("weight_decay");
  decay.resize(count, decay.size() == 1 ? decay[0] : 0);
  factor = q.attrs.floats("lr_factor");
  factor.resize(count, 1);
  limit = q.attrs.f("clip_value", std::numeric_limits<double>::infinity());
  slots.resize(count, 0);
  inner.resize(count, 0);
  for (size_t i = 0; i < touched.size(); ++i) {
    const auto group = static_cast<size_t>(touched[i]);
    slots[group] = kUpdateFixed + count * inputs + i;
    const TensorDesc& p = q.in[kUpdateFixed + group * inputs];
    inner[group] = p.count() / std::max<int64_t>(1, p.dims[0]);
  }
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    start.push_back(total);
    total += q.in[kUpdateFixed + i * inputs].count();
  }
  start.push_back(total);
}

double UpdateGroups::rate(const KernelArgs& args) const { return read_scalar(args.in[0], lr); }
double UpdateGroups::gradient_scale(const KernelArgs& args) const {
  return scale == DType::kUndefined ? 1 : read_scalar(args.in[3], scale);
}

size_t UpdateGroups::group_at(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(start.begin(), start.end(), position) -
                             start.begin() - 1);
}

void UpdateGroups::keep_all(const KernelArgs& args) const {
  for (size_t i = 0; i < count; ++i)
    for (size_t o = 0; o < outputs; ++o) {
      const void* from = args.in[kUpdateFixed + i * inputs + (o == 0 ? 0 : o + 1)];
      void* to = args.out[i * outputs + o];
      const size_t bytes = static_cast<size_t>(start[i + 1] - start[i]) * size_of(dtype);
      if (to != from && to && bytes) std::memcpy(to, from, bytes);
    }
}

void infer_update_groups(InferCtx& c, int per_group) {
  const std::vector<int64_t> touched = c.attrs().ints("touched");
  const int fixed = static_cast<int>(kUpdateFixed),
            n = c.input_count() - fixed - static_cast<int>(touched.size());
  if (n < per_group || n % per_group != 0 || c.output_count() != n / per_group * (per_group - 1))
    c.fail(cat("expected groups of ", per_group, " inputs and ", per_group - 1, " outputs"));
  if (c.dtype(2) != DType::kBool || c.dtype(1) != DType::kI64)
    c.fail("step must be i64 and apply bool");
  for (int i = 0; i < n / per_group; ++i) {
    const int first = fixed + i * per_group;
    const auto at = std::find(touched.begin(), touched.end(), i);
    const Shape table = c.shape(first);
    for (int k = 0; k < per_group; ++k) {
      Shape expected = table;
      if (k == 1 && at != touched.end()) {
        const int slots = fixed + n + static_cast<int>(at - touched.begin());
        if (table.rank() < 1 || c.rank(first + 1) != table.rank() ||
            c.dtype(slots) != DType::kI32 ||
            prove_equal(c.shape(slots), Shape{table[0]}) == Tri::kNo)
          c.fail(cat("group ", i, ": slots do not fit ", table.str()));
        expected[0] = c.shape(first + 1)[0];
      }
      if (c.dtype(first + k) != c.dtype(fixed) ||
          prove_equal(c.shape(first + k), expected) == Tri::kNo)
        c.fail(cat("group ", i, " mixes types or shapes"));
    }
    for (int o = 0; o < per_group - 1; ++o)
      c.out(i * (per_group - 1) + o, c.dtype(first), c.shape(first));
  }
  if (c.dtype(fixed) != DType::kF32 && c.dtype(fixed) != DType::kF64)
    c.fail("parameters must be f32 or f64");
}

std::vector<std::pair<int, int>> update_inplace(int per_group) {
  std::vector<std::pair<int, int>> out;
  for (int i = 0; i < kInplaceGroups; ++i)
    for (int o = 0; o < per_group - 1; ++o)
      out.emplace_back(i * (per_group - 1) + o,
                       static_cast<int>(kUpdateFixed) + i * per_group + (o == 0 ? 0 : o + 1));
  return out;
}

std::vector<ExampleInput> update_example(double lr, int64_t step, bool apply, double scale,
                                         const std::vector<std::vector<ExampleInput>>& groups) {
  std::vector<ExampleInput> in{
      floats({}, {lr}), iconst({}, {step}),
      ExampleInput{ExampleInput::Kind::kBool, {}, 0, 2, {apply ? 1.0 : 0.0}, false},
      scale == 0 ? absent() : floats({}, {scale})};
  for (const std::vector<ExampleInput>& g : groups) in.insert(in.end(), g.begin(), g.end());
  return in;
}

}  // namespace ortrain::ops
