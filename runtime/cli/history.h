// History: the curves of a run, from the rows of its log; what reports and comparisons draw.
//
// Promises: at most kMost points however long the run: beyond that neighbours are merged, with
// mean, least and greatest value. Up to kMost steps every point is a row. Rows that are not
// understood are skipped: a log may have been cut by a kill.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ortrain::cli {

class History {
 public:
  static constexpr size_t kMost = 2000;
  static History read(const std::string& log);  // empty where there is no such file

  void add(const nlohmann::ordered_json& row);  // of a step or of an evaluation
  bool empty() const { return steps_.empty(); }
  int64_t last_step() const { return last_step_; }
  double milliseconds() const { return ms_; }  // of all steps
  int64_t epoch() const { return epoch_; }
  // (step, mean) of a column such as "loss"; points without a finite value are left out.
  std::vector<std::pair<double, double>> curve(const std::string& column) const;
  // The same of evaluations: "loss", "accuracy".
  std::vector<std::pair<double, double>> evaluations(const std::string& metric) const;
  double last(const std::string& column) const;  // NaN: none
  // {"stride", "step": [..], "columns": {NAME: {"mean": [..], "low": [..], "high": [..]}},
  //  "eval": [{"step", NAME: ..}]}. Numbers have 7 digits; null: none.
  nlohmann::ordered_json json() const;

 private:
  struct Point {
    double sum = 0, low = 0, high = 0;
    int64_t count = 0;
    void add(const Point& p);
  };
  void merge_neighbours();
  int64_t stride_ = 1, in_last_ = 0, last_step_ = 0, epoch_ = 0;
  double ms_ = 0;
  std::vector<int64_t> steps_;  // the last step of each point
  std::vector<std::string> order_;
  std::map<std::string, std::vector<Point>> columns_;
  std::map<std::string, double> last_;
  std::vector<std::pair<int64_t, nlohmann::ordered_json>> evals_;
};

// Whether a greater value of the metric is better: all but losses and errors.
bool higher_is_better(const std::string& metric);
// 7 digits; null where not finite.
nlohmann::ordered_json rounded(double v);

}  // namespace ortrain::cli
