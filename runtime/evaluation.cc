// See evaluation.h.
#include "runtime/evaluation.h"

#include "graph/error.h"

namespace ortrain {

Evaluation::Evaluation(std::vector<Target> targets) {
  for (Target& t : targets) {
    Metrics metrics(t.metric);
    heads_.push_back({std::move(t), std::move(metrics)});
  }
}

void Evaluation::add(Program& program, const data::Batch& batch) {
  const Plan& plan = program.plan();
  const auto scalar = [&](int i) { return program.executor().output(i).as_double(0); };
  for (Head& h : heads_) {
    const int output = plan.output(h.target.output);
    for (const data::BatchArray& a : batch.arrays)
      if (a.name == h.target.label && output >= 0)
        h.metrics.add(program.executor().output(output), a.tensor());
    const std::string name = h.target.name.empty() ? "loss" : "loss/" + h.target.name;
    const int loss = plan.output(name), divisor = plan.output(name + "/divisor");
    const double weight = divisor >= 0 ? scalar(divisor) : static_cast<double>(batch.count);
    if (loss < 0 || weight == 0) continue;
    h.loss += scalar(loss) * weight;
    h.weight += weight;
  }
}

EvalValues Evaluation::values() const {
  EvalValues v;
  v.has_loss = true;
  for (const Head& h : heads_) {
    const double mean = h.weight > 0 ? h.loss / h.weight : 0;
    v.has_loss = v.has_loss && h.weight > 0;
    v.loss += h.target.factor * mean;
    if (!h.target.name.empty() && h.weight > 0) v.losses.emplace_back(h.target.name, mean);
    for (Metric m : h.metrics.values(mean)) {
      if (!h.target.name.empty()) m.name = h.target.name + "/" + m.name;
      v.metrics.push_back(std::move(m));
    }
  }
  return v;
}

void check_labels(const std::vector<Target>& targets, const data::Dataset& data) {
  for (const Target& t : targets)
    if (t.classes > 0 && data.has(t.label))
      data.check_labels(t.label, t.classes, t.metric.ignore_index);
}

}  // namespace ortrain
