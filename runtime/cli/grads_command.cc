// `ortrain grads`: loss and gradients of the first batch, for comparison with another framework.
//
// With a dynamic loss scale (--loss-scale; fp16 has one unless told otherwise) the scale is halved
// until every gradient is finite. Writes an .npz with "loss" and one array per trainable parameter,
// under its name and in the file's layout, in the precision computed in. With --check N the
// gradients are compared with central differences of the loss in N random directions through all
// parameters at once; where the largest relative difference is above kWorst the command fails.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/data/loader.h"
#include "runtime/data/npz.h"

namespace ortrain::cli {
namespace {

constexpr double kStep =
    1e-7;  // small, for few kinks; relative to each parameter's root mean square
constexpr double kWorst = 1e-3;  // relative difference that is no longer rounding

// Each parameter p moves along p + h rms(p) d with d from N(0, 1): (L(h) - L(-h)) / 2h against the
// sum of gradient times direction.
void check_gradients(DataRun& r, const data::Batch& batch, const std::vector<std::string>& names,
                     const std::vector<HostTensor>& gradients, int64_t directions) {
  std::vector<HostTensor> start;
  std::vector<double> scale;
  for (size_t i = 1; i < names.size(); ++i) {
    start.push_back(r.store().get(names[i]).clone());
    const HostTensor& p = start.back();
    double sum = 0;
    for (int64_t k = 0; k < p.count(); ++k) sum += p.as_double(k) * p.as_double(k);
    scale.push_back(sum > 0 ? std::sqrt(sum / static_cast<double>(p.count())) : 1);
  }
  const auto loss_at = [&](double h, uint64_t seed, double* slope) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < start.size(); ++i) {
      HostTensor moved = start[i].clone();
      for (int64_t k = 0; k < moved.count(); ++k) {
        const double d = scale[i] * normal(random);
        if (slope) *slope += d * gradients[i + 1].as_double(k);
        moved.set_double(k, start[i].as_double(k) + h * d);
      }
      r.store().set(names[i + 1], moved);
    }
    r.run_one(batch);
    return r.program().executor().output(0).as_double(0);
  };
  double worst = 0;
  for (int64_t n = 0; n < directions; ++n) {
    double slope = 0;
    const auto seed = static_cast<uint64_t>(n);
    const double above = loss_at(kStep, seed, &slope), below = loss_at(-kStep, seed, nullptr);
    const double difference = (above - below) / (2 * kStep);
    const double size = std::max({std::fabs(difference), std::fabs(slope), 1e-12});
    const double relative = std::fabs(difference - slope) / size;
    std::printf("direction %lld: gradient %.10g, differences %.10g, relative difference %.1e\n",
                static_cast<long long>(n + 1), slope, difference, relative);
    worst = std::isnan(relative) ? INFINITY : std::max(worst, relative);
  }
  std::printf("largest relative difference %.1e in %lld directions\n", worst,
              static_cast<long long>(directions));
  if (!(worst <= kWorst))
    fail(ErrorCode::kModel, "gradients differ from finite differences by ", worst,
         " (relative, at most ", kWorst,
         " expected); a step across a kink (Relu, Max, a rounding) can do that in single "
         "directions, a wrong gradient does it in all");
}

bool finite(const Executor& executor, size_t outputs) {
  for (size_t i = 1; i < outputs; ++i) {
    const HostTensor& t = executor.output(static_cast<int>(i));
    for (int64_t k = 0; k < t.count(); ++k)
      if (!std::isfinite(t.as_double(k))) return false;
  }
  return true;
}

// As training does it, within one step. Returns the dynamic scale that it ended with, else 0.
double run_with_scale(DataRun& r, const data::Batch& batch, const LossScaleSpec& spec) {
  r.run_one(batch);
  if (spec.kind != LossScaleSpec::Kind::kDynamic) return 0;
  double scale = spec.init;
  while (!finite(r.program().executor(), r.program().plan().outputs.size()) && scale > spec.min) {
    scale = std::max(spec.min, scale / 2);
    r.store().set(kLossScaleName, HostTensor::scalar<float>(static_cast<float>(scale)));
    r.run_one(batch);
  }
  return scale;
}

}  // namespace

int run_grads(Context& c) {
  if (!c.config.has("data")) explain_missing_data(c, "grads");
  if (!c.config.has("out")) fail(ErrorCode::kUsage, "grads writes a file: add --out grads.npz");
  const int64_t directions = c.config.integer("check");
  if (directions > 0 && c.config.text("precision") != "fp64")
    fail(ErrorCode::kUsage,
         "--check compares differences of the loss: that needs --precision fp64");
  DataRun r(c, c.config.text("data"), Mode::kGrads);
  const data::Sampler sampler({.samples = r.data().samples(),
                               .batch_size = r.batch(),
                               .shuffle = c.config.text("shuffle") != "none",
                               .seed = static_cast<uint64_t>(c.config.integer("seed"))});
  data::Loader loader(r.data(), r.program().arrays(), sampler, {.threaded = false});
  const data::Batch& batch = *loader.next();
  const double scale = run_with_scale(r, batch, r.spec().loss_scale);
  const std::vector<PlanTensor>& outputs = r.program().plan().outputs;
  std::vector<HostTensor> kept;
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = outputs[i].name;
    names.push_back(name.starts_with("grad/") ? name.substr(5) : name);
    kept.push_back(r.program().executor().output(static_cast<int>(i)).clone());
  }
  std::vector<data::NpzEntry> entries;
  for (size_t i = 0; i < kept.size(); ++i) entries.push_back({names[i], kept[i]});
  data::write_npz(c.config.text("out"), entries);
  std::printf("loss %.9g, %zu gradients of %lld samples%s: %s\n", kept[0].as_double(0),
              kept.size() - 1, static_cast<long long>(r.batch()),
              scale > 0 ? cat(", loss scale ", scale).c_str() : "", c.config.text("out").c_str());
  if (directions > 0) check_gradients(r, batch, names, kept, directions);
  return 0;
}

}  // namespace ortrain::cli
