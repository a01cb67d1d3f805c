// See watch_text.h.
#include "runtime/cli/watch_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/error.h"

namespace ortrain::cli {
namespace {
constexpr size_t kShown = 5, kWarnings = 8;

nlohmann::json finite(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}
void add_shares(nlohmann::ordered_json& j, const Shares& s) {
  j["zero"] = s.share(s.zero);
  j["underflow"] = s.underflowed();
  j["saturated"] = s.share(s.saturated);
}
}  // namespace

std::vector<std::string> watch_lines(const WatchReport& r) {
  std::vector<std::string> out;
  std::vector<const WatchedParam*> order;
  for (const WatchedParam& p : r.params) order.push_back(&p);
  const auto distance = [](const WatchedParam* p) {
    return p->update_ratio > 0 ? std::fabs(std::log10(p->update_ratio) + 3) : 0;
  };
  std::stable_sort(order.begin(), order.end(), [&](const WatchedParam* a, const WatchedParam* b) {
    return distance(a) > distance(b);
  });
  out.push_back(cat("step ", r.step, "  watch ", r.params.size(), " parameters",
                    r.skipped ? ", step skipped" : "",
                    "     gradient    weight  update/w     zero  underflow saturated"));
  for (size_t i = 0; i < order.size() && i < kShown; ++i) {
    const WatchedParam& p = *order[i];
    char line[160];
    std::snprintf(line, sizeof line, "  %-38.38s %9.3g %9.3g %9.2g %7.2g%% %9.2g%% %8.2g%%",
                  p.name.c_str(), p.grad_norm, p.weight_norm, p.update_ratio,
                  100 * p.gradient.share(p.gradient.zero), 100 * p.gradient.underflowed(),
                  100 * p.gradient.share(p.gradient.saturated));
    out.emplace_back(line);
  }
  if (order.size() > kShown)
    out.push_back(cat("  and ", order.size() - kShown, " more in the log"));
  const std::vector<std::string> warnings = watch_warnings(r);
  for (size_t i = 0; i < warnings.size() && i < kWarnings; ++i)
    out.push_back("  warning: " + warnings[i]);
  if (warnings.size() > kWarnings)
    out.push_back(cat("  and ", warnings.size() - kWarnings, " more warnings"));
  return out;
}

nlohmann::ordered_json watch_json(const WatchReport& r) {
  nlohmann::ordered_json params = nlohmann::ordered_json::object(), nodes = params, j;
  for (const WatchedParam& p : r.params) {
    nlohmann::ordered_json& x = params[p.name];
    x["grad_norm"] = finite(p.grad_norm);
    x["weight_norm"] = finite(p.weight_norm);
    x["update_ratio"] = finite(p.update_ratio);
    add_shares(x, p.gradient);
  }
  for (const WatchedNode& n : r.nodes) add_shares(nodes[n.node], n.values);
  j["step"] = r.step;
  j["watch"]["type"] = std::string(name_of(r.type));
  j["watch"]["params"] = std::move(params);
  if (!r.nodes.empty()) j["watch"]["nodes"] = std::move(nodes);
  j["watch"]["warnings"] = watch_warnings(r);
  return j;
}

}  // namespace ortrain::cli
