// See rebatch_check.h.
#include "runtime/rebatch_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "graph/error.h"
#include "runtime/program.h"

namespace ortrain {
namespace {

using Tensors = std::map<std::string, HostTensor>;

// `samples` rows for each input that has the batch, the same for all for the others. Integers are 0
// and 1, which every table of an embedding and every mask has.
Tensors random_inputs(const Graph& source, int64_t batch, int64_t samples) {
  std::mt19937_64 random(7);
  Tensors out;
  for (const ValueId v : source.inputs()) {
    const Value& x = source.value(v);
    if (x.uses.empty()) continue;
    Dims dims = x.shape.values();
    if (!dims.empty() && dims[0] == batch) dims[0] = samples;
    HostTensor t(is_float(x.dtype) ? DType::kF64 : DType::kI64, dims);
    for (int64_t i = 0; i < t.count(); ++i) {
      const uint64_t bits = random();
      t.set_double(i, is_float(x.dtype) ? static_cast<double>(bits >> 11) * 0x1p-52 - 1
                                        : static_cast<double>(bits >> 63));
    }
    out.emplace(x.name, t.cast(x.dtype));
  }
  return out;
}

// Rows [begin, begin + count) of the inputs with a batch.
Tensors rows(const Tensors& all, int64_t samples, int64_t begin, int64_t count) {
  Tensors out;
  for (const auto& [name, t] : all) {
    Dims dims = t.dims();
    if (dims.empty() || dims[0] != samples) {
      out.emplace(name, t.share());
      continue;
    }
    dims[0] = count;
    const size_t row = t.bytes() / static_cast<size_t>(samples);
    HostTensor part(t.dtype(), dims);
    std::memcpy(part.mutable_raw(),
                static_cast<const std::byte*>(t.raw()) + static_cast<size_t>(begin) * row,
                static_cast<size_t>(count) * row);
    out.emplace(name, std::move(part));
  }
  return out;
}

std::vector<HostTensor> outputs_of(const Graph& g, const Tensors& inputs) {
  StepSpec spec;
  spec.mode = Mode::kPredict;
  spec.compute = DType::kF64;
  for (const auto& [name, t] : inputs) spec.input_dims[name] = t.dims();
  ParamStore store;
  Arena arena;
  Program p(g, spec, store, arena, {.threads = 1});
  arena.allocate();
  p.start(arena);
  std::vector<const void*> arrays;
  for (const data::ArraySpec& a : p.arrays()) arrays.push_back(inputs.at(a.name).raw());
  p.run(arrays);
  std::vector<HostTensor> out;
  for (size_t i = 0; i < p.plan().outputs.size(); ++i)
    out.push_back(p.executor().output(static_cast<int>(i)).clone());
  return out;
}

// The largest difference between sample `sa` of a and `sb` of b, relative to the largest value.
double difference(const HostTensor& a, int64_t batch_a, int64_t sa, const HostTensor& b,
                  int64_t batch_b, int64_t sb, const BatchPlace& place) {
  int64_t outer = 1, inner = a.count();
  if (place.axis >= 0) {
    outer = place.outer;
    for (int i = 0; i < place.axis; ++i) outer *= a.dims()[static_cast<size_t>(i)];
    inner = a.count() / std::max<int64_t>(outer * batch_a, 1);
  } else {
    batch_a = batch_b = 1, sa = sb = 0;
  }
  if (a.count() * batch_b != b.count() * batch_a) return INFINITY;
  double worst = 0, size = 1e-30;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      const double x = a.as_double((o * batch_a + sa) * inner + i);
      const double y = b.as_double((o * batch_b + sb) * inner + i);
      size = std::max({size, std::fabs(x), std::fabs(y)});
      if (!(x == y || (std::isnan(x) && std::isnan(y)))) worst = std::max(worst, std::fabs(x - y));
      if (std::isnan(x) != std::isnan(y)) return INFINITY;
    }
  return worst / size;
}

constexpr double kEqual = 1e-9;  // float64 sums in another order

}  // namespace

void check_rebatched(const Graph& source, const Rebatched& now) {
  const int64_t b = now.was, samples = 2 * b;
  const Tensors all = random_inputs(source, b, samples);
  std::vector<std::vector<HostTensor>> file;
  for (int64_t k = 0; k < 2; ++k) file.push_back(outputs_of(source, rows(all, samples, k * b, b)));
  std::vector<int64_t> sizes{b, 2 * b};
  if (b > 1) sizes.push_back(1);
  for (const int64_t size : sizes) {
    for (int64_t begin = 0; begin < samples; begin += size) {
      const std::vector<HostTensor> got = outputs_of(now.graph, rows(all, samples, begin, size));
      for (size_t o = 0; o < got.size(); ++o)
        for (int64_t s = 0; s < size; ++s) {
          const int64_t sample = begin + s;
          const double off = difference(file[static_cast<size_t>(sample / b)][o], b, sample % b,
                                        got[o], size, s, now.outputs[o]);
          if (off > kEqual)
            fail(ErrorCode::kUnsupported, "--rebatch: output '", source.output_names()[o],
                 "' of a sample at batch ", size, " differs from the file's at batch ", b, " by ",
                 off,
                 " of its size: samples of a batch depend on one another, or rows of a "
                 "built-in tensor differ",
                 now.replaced.empty() ? "" : "; replaced were ",
                 now.replaced.empty() ? "" : now.replaced[0],
                 now.replaced.size() > 1 ? cat(" and ", now.replaced.size() - 1, " more") : "");
        }
    }
  }
}

}  // namespace ortrain
