// See history.h.
#include "runtime/cli/history.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace ortrain::cli {
using nlohmann::ordered_json;

ordered_json rounded(double v) {
  if (!std::isfinite(v)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", v);
  return std::strtod(text, nullptr);
}

bool higher_is_better(const std::string& metric) {
  const std::string name = metric.substr(metric.rfind('/') + 1);
  return name != "loss" && !metric.starts_with("loss") && name != "perplexity" && name != "mae" &&
         name != "rmse";
}

void History::Point::add(const Point& p) {
  if (p.count == 0) return;
  low = count ? std::min(low, p.low) : p.low;
  high = count ? std::max(high, p.high) : p.high;
  sum += p.sum;
  count += p.count;
}

void History::merge_neighbours() {
  const size_t n = steps_.size() / 2;
  for (size_t i = 0; i < n; ++i) steps_[i] = steps_[2 * i + 1];
  steps_.resize(n);
  for (auto& [name, points] : columns_) {
    for (size_t i = 0; i < n; ++i) {
      Point p = points[2 * i];
      p.add(points[2 * i + 1]);
      points[i] = p;
    }
    points.resize(n);
  }
  stride_ *= 2;
  in_last_ = stride_;
}

void History::add(const ordered_json& row) {
  if (!row.is_object()) return;
  const auto at = row.find("step");
  if (at == row.end() || !at->is_number_integer()) return;
  const int64_t step = *at;
  if (const auto eval = row.find("eval"); eval != row.end()) {
    if (eval->is_object()) evals_.emplace_back(step, *eval);
    return;
  }
  if (!row.contains("loss")) return;
  if (steps_.empty() || in_last_ == stride_) {
    if (steps_.size() == kMost) merge_neighbours();
    if (steps_.empty() || in_last_ == stride_) {
      steps_.push_back(step);
      for (auto& [name, points] : columns_) points.emplace_back();
      in_last_ = 0;
    }
  }
  ++in_last_;
  steps_.back() = last_step_ = step;
  for (const auto& [name, value] : row.items()) {
    if (name == "step") continue;
    if (name == "epoch" && value.is_number_integer()) epoch_ = value;
    if (!value.is_number()) continue;
    const double v = value;
    if (name == "ms") ms_ += v;
    if (name == "epoch") continue;
    auto& points = columns_[name];
    if (points.empty()) order_.push_back(name);
    points.resize(steps_.size());
    points.back().add({v, v, v, 1});
    last_[name] = v;
  }
}

History History::read(const std::string& log) {
  History h;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);)
    h.add(ordered_json::parse(line, nullptr, /*allow_exceptions=*/false));
  return h;
}

std::vector<std::pair<double, double>> History::curve(const std::string& column) const {
  std::vector<std::pair<double, double>> out;
  const auto it = columns_.find(column);
  if (it == columns_.end()) return out;
  for (size_t i = 0; i < steps_.size(); ++i)
    if (const Point& p = it->second[i]; p.count > 0)
      out.emplace_back(static_cast<double>(steps_[i]), p.sum / static_cast<double>(p.count));
  return out;
}

std::vector<std::pair<double, double>> History::evaluations(const std::string& metric) const {
  std::vector<std::pair<double, double>> out;
  for (const auto& [step, values] : evals_)
    if (const auto v = values.find(metric); v != values.end() && v->is_number())
      out.emplace_back(static_cast<double>(step), v->get<double>());
  return out;
}

double History::last(const std::string& column) const {
  const auto it = last_.find(column);
  return it == last_.end() ? std::nan("") : it->second;
}

ordered_json History::json() const {
  ordered_json out{{"stride", stride_}, {"step", steps_}, {"columns", ordered_json::object()}};
  for (const std::string& name : order_) {
    ordered_json mean = ordered_json::array(), low = mean, high = mean;
    for (const Point& p : columns_.at(name)) {
      const bool has = p.count > 0;
      mean.push_back(has ? rounded(p.sum / static_cast<double>(p.count)) : ordered_json());
      low.push_back(has ? rounded(p.low) : ordered_json());
      high.push_back(has ? rounded(p.high) : ordered_json());
    }
    out["columns"][name]["mean"] = std::move(mean);
    if (stride_ == 1) continue;
    out["columns"][name]["low"] = std::move(low);
    out["columns"][name]["high"] = std::move(high);
  }
  out["eval"] = ordered_json::array();
  for (const auto& [step, values] : evals_) {
    ordered_json e{{"step", step}};
    e.update(values);
    out["eval"].push_back(std::move(e));
  }
  return out;
}

}  // namespace ortrain::cli
