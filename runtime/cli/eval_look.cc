// See eval_look.h.
#include "runtime/cli/eval_look.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/error.h"
#include "runtime/cli/history.h"
#include "runtime/cli/png.h"

namespace ortrain::cli {
using nlohmann::ordered_json;
namespace {

// Elements as doubles, quickly for f32.
class Reader {
 public:
  explicit Reader(const HostTensor& t)
      : tensor_(t), f32_(t.dtype() == DType::kF32 ? static_cast<const float*>(t.raw()) : nullptr) {}
  double operator()(int64_t i) const {
    return f32_ ? static_cast<double>(f32_[i]) : tensor_.as_double(i);
  }

 private:
  const HostTensor& tensor_;
  const float* f32_;
};

std::string input_text(const data::Batch& batch, int64_t row) {
  if (batch.arrays.empty()) return {};
  const data::BatchArray& a = batch.arrays[0];
  if (a.dims.empty() || a.dims[0] != batch.count) return {};
  const HostTensor t = a.tensor();
  const int64_t size = batch.count ? t.count() / batch.count : 0;
  std::string out =
      cat(a.name, " ", name_of(a.dtype), Shape(Dims(a.dims.begin() + 1, a.dims.end())).str(), ": ");
  for (int64_t i = 0; i < std::min<int64_t>(size, 12); ++i) {
    char text[32];
    std::snprintf(text, sizeof text, i ? ", %.4g" : "%.4g", t.as_double(row * size + i));
    out += text;
  }
  return out + (size > 12 ? ", ..." : "");
}

}  // namespace

Picture picture_of(const data::Batch& batch, int64_t row) {
  constexpr int64_t kLeast = 4, kMost = 2048, kShown = 160;
  for (const data::BatchArray& a : batch.arrays) {
    if (a.dims.size() != 4 || a.dims[0] != batch.count) continue;
    if (a.dtype != DType::kF32 && a.dtype != DType::kU8) continue;
    const bool first = a.dims[1] == 1 || a.dims[1] == 3;
    if (!first && a.dims[3] != 1 && a.dims[3] != 3) continue;
    const int64_t c = first ? a.dims[1] : a.dims[3], h = first ? a.dims[2] : a.dims[1],
                  w = first ? a.dims[3] : a.dims[2];
    if (h < kLeast || w < kLeast || h > kMost || w > kMost) continue;
    const HostTensor t = a.tensor();
    const Reader x(t);
    const auto at = [&](int64_t y, int64_t z, int64_t channel) {
      return x(row * c * h * w + (first ? (channel * h + y) * w + z : (y * w + z) * c + channel));
    };
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < c * h * w; ++i) {
      const double v = x(row * c * h * w + i);
      if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
    }
    if (!(low < high)) low = 0, high = 1;
    const int64_t skip = std::max<int64_t>(1, (std::max(h, w) + kShown - 1) / kShown);
    Picture p{static_cast<int>(w / skip), static_cast<int>(h / skip), static_cast<int>(c), {}};
    if (p.width == 0 || p.height == 0) continue;
    std::vector<uint8_t> pixels;
    for (int64_t y = 0; y < p.height; ++y)
      for (int64_t z = 0; z < p.width; ++z)
        for (int64_t k = 0; k < c; ++k) {
          const double v = (at(y * skip, z * skip, k) - low) / (high - low);
          pixels.push_back(
              static_cast<uint8_t>(std::isfinite(v) ? std::clamp(v * 255 + 0.5, 0.0, 255.0) : 0));
        }
    p.png = encode_png(p.width, p.height, p.channels, pixels);
    return p;
  }
  return {};
}

void EvalLook::reset() {
  looked_ = elements_ = classes_ = 0;
  binary_ = numbers_ = false;
  confusion_.clear();
  worst_.clear();
  pictures_.clear();
}

void EvalLook::keep(Sample s, const data::Batch& batch, int64_t row) {
  if (!std::isfinite(s.loss)) s.loss = 1e30;
  const bool shown = batch.step == 0 && pictures_.size() < kPictures;
  const bool bad = worst_.size() < kWorst || s.loss > worst_.back().loss;
  if (!shown && !bad) return;
  s.picture = picture_of(batch, row);
  if (s.picture.png.empty()) s.input = input_text(batch, row);
  if (shown && !s.picture.png.empty()) pictures_.push_back(s);
  if (!bad) return;
  if (worst_.size() == kWorst) worst_.pop_back();
  const auto place =
      std::upper_bound(worst_.begin(), worst_.end(), s,
                       [](const Sample& a, const Sample& b) { return a.loss > b.loss; });
  worst_.insert(place, std::move(s));
}

void EvalLook::add(Program& program, const data::Batch& batch, const std::vector<Target>& targets) {
  if (batch.step == 0) reset();
  if (targets.empty() || elements_ > kMostElements) return;
  const Target& t = targets[0];
  const int output = program.plan().output(t.output);
  if (output < 0 || batch.count == 0) return;
  for (const data::BatchArray& a : batch.arrays) {
    if (a.name != t.label) continue;
    const HostTensor x = program.executor().output(output), y = a.tensor();
    elements_ += x.count();
    if (x.count() == 0 || y.count() == 0 || y.count() % batch.count != 0) return;
    if (t.metric.kind == MetricSpec::Kind::kClasses)
      add_classes(x, y, batch, t);
    else if (t.metric.kind != MetricSpec::Kind::kNone)
      add_numbers(x, y, batch, t);
    return;
  }
}

void EvalLook::add_classes(const HostTensor& x, const HostTensor& y, const data::Batch& batch,
                           const Target& t) {
  const auto axis = static_cast<size_t>(t.metric.class_axis);
  if (axis == 0 || axis >= x.dims().size()) return;
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < x.dims().size(); ++i)
    (i < axis ? outer : inner) *= i == axis ? 1 : x.dims()[i];
  const int64_t c = x.dims()[axis], positions = outer * inner / batch.count;
  const bool soft = is_float(y.dtype());
  if (c < 1 || y.count() != (soft ? x.count() : outer * inner) || positions < 1) return;
  if (classes_ == 0) {
    classes_ = c;
    if (c <= kMostClasses) confusion_.assign(static_cast<size_t>(c * c), 0);
  }
  const Reader out(x);
  for (int64_t row = 0; row < batch.count; ++row) {
    Sample s{.sample = batch.sample[static_cast<size_t>(row)]};
    double sum = 0, most = -1;
    int64_t valid = 0;
    for (int64_t p = row * positions; p < (row + 1) * positions; ++p) {
      const int64_t o = p / inner, i = p % inner;
      const auto at = [&](int64_t k) { return (o * c + k) * inner + i; };
      int64_t label = soft ? 0 : y.as_int(p), said = 0;
      if (soft)
        for (int64_t k = 1; k < c; ++k)
          if (y.as_double(at(k)) > y.as_double(at(label))) label = k;
      if (label < 0 || label >= c || (!soft && label == t.metric.ignore_index)) continue;
      double best = out(at(0)), least = best, total = 0, scale = 0;
      for (int64_t k = 0; k < c; ++k) {
        const double v = out(at(k));
        if (v > best) best = v, said = k;
        least = std::min(least, v);
        total += v;
      }
      // A model that ends in Softmax gives probabilities, any other one logits (or their
      // logarithms).
      const bool probabilities = least >= 0 && std::abs(total - 1) < 1e-3;
      if (!probabilities)
        for (int64_t k = 0; k < c; ++k) scale += std::exp(out(at(k)) - best);
      const auto chance = [&](int64_t k) {
        return probabilities ? out(at(k)) : std::exp(out(at(k)) - best) / scale;
      };
      const double loss = -std::log(std::max(chance(label), 1e-30));
      sum += loss;
      ++valid;
      if (!confusion_.empty()) ++confusion_[static_cast<size_t>(label * c + said)];
      if (loss > most) most = loss, s.label = label, s.said = said, s.probability = chance(said);
    }
    ++looked_;
    if (valid == 0) continue;
    s.loss = sum / static_cast<double>(valid);
    keep(std::move(s), batch, row);
  }
}

void EvalLook::add_numbers(const HostTensor& x, const HostTensor& y, const data::Batch& batch,
                           const Target& t) {
  binary_ = t.metric.kind == MetricSpec::Kind::kBinary;
  numbers_ = !binary_;
  if (x.count() != y.count()) return;
  if (binary_ && confusion_.empty()) classes_ = 2, confusion_.assign(4, 0);
  const int64_t size = y.count() / batch.count;
  const Reader out(x);
  for (int64_t row = 0; row < batch.count; ++row) {
    Sample s{.sample = batch.sample[static_cast<size_t>(row)]};
    double sum = 0, most = -1;
    for (int64_t i = row * size; i < (row + 1) * size; ++i) {
      const double v = out(i), want = y.as_double(i);
      double loss = (v - want) * (v - want);
      if (binary_) {
        const double p = t.metric.threshold > 0 ? v : 1 / (1 + std::exp(-v));
        const bool yes = want > 0.5, said = v > t.metric.threshold;
        loss = -std::log(std::max(yes ? p : 1 - p, 1e-30));
        ++confusion_[static_cast<size_t>(yes) * 2 + said];
        if (loss > most) s.label = yes, s.said = said, s.probability = said ? p : 1 - p;
      }
      if (loss > most) most = loss, s.target = want, s.output = v;
      sum += loss;
    }
    ++looked_;
    s.loss = sum / static_cast<double>(size);
    keep(std::move(s), batch, row);
  }
}

ordered_json EvalLook::json() const {
  ordered_json j{{"looked", looked_},
                 {"kind", numbers_ ? "numbers" : "classes"},
                 {"classes", classes_},
                 {"names", class_names}};
  j["confusion"] = ordered_json::array();
  if (!confusion_.empty())
    for (int64_t label = 0; label < classes_; ++label) {
      const auto row = confusion_.begin() + label * classes_;
      j["confusion"].push_back(std::vector<int64_t>(row, row + classes_));
    }
  const auto list = [&](const std::vector<Sample>& samples) {
    ordered_json out = ordered_json::array();
    for (const Sample& s : samples) {
      ordered_json e{{"sample", s.sample}, {"loss", rounded(s.loss)}};
      if (numbers_)
        e["target"] = rounded(s.target), e["output"] = rounded(s.output);
      else
        e["label"] = s.label, e["said"] = s.said, e["probability"] = rounded(s.probability);
      if (!s.picture.png.empty())
        e["picture"] = "data:image/png;base64," + base64(s.picture.png);
      else
        e["input"] = s.input;
      out.push_back(std::move(e));
    }
    return out;
  };
  j["worst"] = list(worst_);
  j["pictures"] = list(pictures_);
  return j;
}

}  // namespace ortrain::cli
