// `ortrain init`: what the opened data gives each input, and its mean and deviation.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "runtime/cli/init_parts.h"
#include "runtime/cli/setup.h"

namespace ortrain::cli {
using data::ArraySpec;

void tell_inputs(RecipeWriter& r, const data::Dataset& set) {
  Context& c = r.context();
  const auto inputs = open_options(c, DataUse::kPredict).inputs;
  for (const ArraySpec& s : inputs)
    if (const data::StoredArray* a = set.find(s.name))
      r.tell("input", cat(s.name, " ", data::describe(s.dtype, s.dims), " takes ",
                          data::describe(a->dtype, a->dims),
                          set.shared(s.name) ? ", the same for all samples" : ""));
  for (const std::string& note : set.notes)
    if (note.find("is taken for") != std::string::npos ||
        note.find("together are") != std::string::npos)
      r.tell("", note);
  // Mean and deviation of what one input takes: pictures per channel, rows of a table per column.
  for (const ArraySpec& s : inputs) {
    const data::StoredArray* a = set.find(s.name);
    const bool pictures = a && a->rows && set.heavy() && a->dims.size() == 4;
    if (!a || a->dtype != DType::kF32 || !speakable(s.name) || set.shared(s.name)) continue;
    if (!pictures && !(a->dims.size() == 2 && a->dims[1] <= 32 && !a->rows)) continue;
    const size_t last = a->dims.size() - 1;
    const data::Prepare* p = data::find_prepare(set.prepared, s.name);
    if (p && (!p->mean.empty() || !p->std.empty())) continue;
    const size_t axis = pictures && !(p && p->layout == "hwc") ? 1 : last;
    size_t inner = 1, row = 1;
    for (size_t i = 1; i <= last; ++i) (i > axis ? inner : row) *= static_cast<size_t>(a->dims[i]);
    row *= inner;
    const auto k = static_cast<size_t>(a->dims[axis]);
    std::vector<double> sum(k, 0), square(k, 0);
    std::vector<float> values(row);
    const int64_t n = a->dims[0], looked = std::min<int64_t>(n, pictures ? 200 : 100'000);
    int64_t seen = 0;
    for (int64_t i = 0; i < looked; ++i) {
      const int64_t sample = i * n / looked;
      if (a->rows) {
        try {
          a->rows->read({.sample = sample}, reinterpret_cast<std::byte*>(values.data()));
        } catch (const Error&) {
          continue;  // training leaves it out, too
        }
      } else {
        std::memcpy(values.data(), a->data + static_cast<size_t>(sample) * row * 4, row * 4);
      }
      ++seen;
      for (size_t j = 0; j < row; ++j) {
        sum[j / inner % k] += values[j];
        square[j / inner % k] += static_cast<double>(values[j]) * values[j];
      }
    }
    std::string mean, deviation;
    const double each = static_cast<double>(seen) * static_cast<double>(row / k);
    for (size_t j = 0; j < k && seen > 0; ++j) {
      const double m = sum[j] / each, v = std::sqrt(std::max(0.0, square[j] / each - m * m));
      char text[64];
      std::snprintf(text, sizeof text, "%.4g", m);
      mean += (j ? "/" : "") + std::string(text);
      std::snprintf(text, sizeof text, "%.4g", v > 1e-12 ? v : 1.0);
      deviation += (j ? "/" : "") + std::string(text);
    }
    if (seen == 0) continue;
    r.offer_prepare(
        s.name, "mean", mean,
        pictures
            ? "of these pictures; a model that was trained elsewhere wants what it was trained with"
            : "of these columns: (x - mean) / std, as models that start anew like it");
    r.offer_prepare(
        s.name, "std", deviation,
        pictures && k == 3
            ? "torchvision's models: mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]"
            : "");
  }
}

}  // namespace ortrain::cli
