// See watch.h.
#include "runtime/watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "graph/error.h"

namespace ortrain {
namespace {

struct Limits {
  double normal, largest;
};
Limits limits_of(DType t) {
  switch (t) {
    case DType::kF16: return {0x1p-14, 65504};
    case DType::kBF16: return {0x1p-126, 0x1.FEp127};
    case DType::kF32: return {0x1p-126, 0x1.FFFFFEp127};
    default: return {0x1p-1022, 0x1.FFFFFFFFFFFFFp1023};
  }
}

std::string percent(double share) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, share < 0.1 ? "%.2g %%" : "%.0f %%", 100 * share);
  return buffer;
}
std::string number(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2g", v);
  return buffer;
}

constexpr double kHighRatio = 0.1;       // the usual one is about 1e-3
constexpr double kManyUnderflow = 0.1;   // of the values that are not 0
constexpr double kManySaturated = 1e-4;  // a share of values at the type's end

bool has_update(const PlanStep& s) {
  return std::any_of(s.out.begin(), s.out.end(),
                     [](const PlanTensor& t) { return t.place.kind == Place::Kind::kFixed; });
}

}  // namespace

void Shares::add(DType limits, DType dtype, int64_t n, const void* data, double* squares) {
  const Limits range =
      limits_of(limits);  // not a structured binding: clang 14 captures none in a lambda
  count += n;
  dispatch(dtype, [&]<class T>() {
    if constexpr (!std::is_integral_v<T>) {
      const T* x = static_cast<const T*>(data);
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        double v = 0;
        if constexpr (std::is_same_v<T, double>)
          v = std::fabs(x[i]);
        else
          v = std::fabs(static_cast<double>(static_cast<float>(x[i])));
        zero += v == 0;
        subnormal += v > 0 && v < range.normal;
        saturated += !(v < range.largest);
        sum += v * v;
      }
      if (squares) *squares += sum;
    }
  });
}

std::vector<std::string> watch_warnings(const WatchReport& r) {
  std::vector<std::pair<double, std::string>> found;
  const std::string type(name_of(r.type));
  const std::string scaling = r.type != DType::kF16 ? ""
                              : r.scaled            ? ": a larger --loss-scale keeps them"
                                         : ": loss scaling (--loss-scale dynamic) keeps them";
  for (const WatchedParam& p : r.params) {
    if (p.rank > 1 && p.update_ratio > kHighRatio)
      found.emplace_back(p.update_ratio / kHighRatio,
                         cat("'", p.name, "': update/weight ratio ", number(p.update_ratio),
                             " (usual 1e-3): a smaller --lr or a --warmup"));
    const Shares& g = p.gradient;
    if (g.underflowed() > kManyUnderflow)
      found.emplace_back(g.underflowed() / kManyUnderflow,
                         cat(percent(g.underflowed()), " of the gradients of '", p.name,
                             "' that are not 0 underflow in ", type, scaling));
    if (g.count > 0 && g.zero == g.count)
      found.emplace_back(1, cat("all gradients of '", p.name, "' are 0",
                                r.type == DType::kF16 ? cat(" in ", type, scaling) : ""));
    if (g.share(g.saturated) > 0)
      found.emplace_back(100, cat(percent(g.share(g.saturated)), " of the gradients of '", p.name,
                                  "' are at the end of ", type, " or beyond",
                                  r.scaled ? ": a smaller --loss-scale" : ""));
  }
  for (const WatchedNode& n : r.nodes)
    if (n.values.share(n.values.saturated) > kManySaturated)
      found.emplace_back(10, cat(percent(n.values.share(n.values.saturated)), " of what ", n.node,
                                 " makes are at the end of ", type, " or beyond"));
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> out;
  for (auto& [worth, text] : found) out.push_back(std::move(text));
  return out;
}

NumericsWatch::NumericsWatch(const ParamStore& store, DType narrow, DType compute, bool scaled)
    : store_(store),
      type_(narrow != DType::kUndefined ? narrow : compute),
      narrow_(narrow != DType::kUndefined) {
  size_t bytes = 0;
  for (const StoreEntry& e : store.entries())
    if (e.trainable) bytes += e.bytes;
  old_ = Buffer(bytes);
  report_.type = type_;
  report_.scaled = scaled;
}

void NumericsWatch::before_step() {
  std::byte* to = old_.data();
  for (const StoreEntry& e : store_.entries()) {
    if (!e.trainable) continue;
    if (e.bytes) std::memcpy(to, e.data, e.bytes);
    to += e.bytes;
  }
}

bool NumericsWatch::after(size_t step, const KernelArgs& args) {
  if (!narrow_) return true;
  const PlanStep& s = plan_->steps[step];
  if (has_update(s)) return true;
  WatchedNode n{s.node, {}};
  for (size_t o = 0; o < s.out.size(); ++o)
    if (args.out[o] && s.out[o].dtype == type_)
      n.values.add(type_, type_, element_count(s.out[o].dims), args.out[o]);
  if (n.values.count > 0) report_.nodes.push_back(std::move(n));
  return true;
}

const WatchReport& NumericsWatch::report(const Executor& executor, int64_t step, bool skipped) {
  const Plan& plan = executor.plan();
  report_.step = step;
  report_.skipped = skipped;
  report_.params.clear();
  const int unscale = plan.output("watch/unscale");
  const double factor = unscale < 0 ? 1 : executor.output(unscale).as_double(0);
  const std::byte* old = old_.data();
  for (const StoreEntry& e : store_.entries()) {
    if (!e.trainable) continue;
    WatchedParam p{.name = e.name, .rank = static_cast<int>(e.dims.size())};
    const int64_t n = element_count(e.dims);
    double gradient = 0, weight = 0, update = 0;
    if (const int at = plan.output("grad/" + e.name); at >= 0) {
      const HostTensor g = executor.output(at);
      p.gradient.add(type_, g.dtype(), g.count(), g.raw(), &gradient);
    }
    for (int64_t i = 0; i < n; ++i) {
      double was = 0, is = 0;
      if (e.dtype == DType::kF64) {
        was = reinterpret_cast<const double*>(old)[i];
        is = reinterpret_cast<const double*>(e.data)[i];
      } else {
        was = static_cast<double>(reinterpret_cast<const float*>(old)[i]);
        is = static_cast<double>(reinterpret_cast<const float*>(e.data)[i]);
      }
      weight += was * was;
      update += (is - was) * (is - was);
    }
    p.grad_norm = std::sqrt(gradient) * factor;
    p.weight_norm = std::sqrt(weight);
    p.update_ratio = weight > 0 ? std::sqrt(update / weight) : 0;
    report_.params.push_back(std::move(p));
    old += e.bytes;
  }
  return report_;
}

}  // namespace ortrain
