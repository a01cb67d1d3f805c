// `ortrain eval`: loss and metrics of a model over a data set; --json FILE or - writes them as
// JSON.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/metrics.h"

namespace ortrain::cli {

int run_eval(Context& c) {
  const std::string& paths =
      c.config.has("eval-data") ? c.config.text("eval-data") : c.config.text("data");
  if (paths.empty()) explain_missing_data(c, "eval");
  DataRun r(c, paths, Mode::kEval);
  const Target target = find_target(c.file->graph(), r.spec());
  const std::string& label = r.spec().loss.label;
  if (target.classes > 0) r.data().check_labels(label, target.classes, r.spec().loss.ignore_index);
  Metrics metrics(target.metric);
  double loss = 0, weight = 0;
  r.run([&](const data::Batch& b, Program& p) {
    int64_t counted = b.count;
    const int output = p.plan().output(target.output), loss_at = p.plan().output("loss");
    for (const data::BatchArray& a : b.arrays) {
      if (a.name != label || output < 0) continue;
      const int64_t labels = metrics.add(p.executor().output(output), a.tensor());
      if (target.classes > 0) counted = labels;  // the loss is a mean over the labels that count
    }
    if (loss_at < 0 || counted == 0) return;
    loss += p.executor().output(loss_at).as_double(0) * static_cast<double>(counted);
    weight += static_cast<double>(counted);
  });
  if (weight == 0)
    fail(ErrorCode::kData, "nothing to evaluate: ", r.data().where(), " (", r.data().summary(),
         ") has no labels; name them with --label");
  const double mean = loss / weight;
  const std::vector<Metric> values = metrics.values(mean);
  if (c.config.has("json")) {
    nlohmann::ordered_json j{{"samples", r.data().samples()}, {"loss", mean}};
    for (const Metric& m : values) j[m.name] = m.value;
    const std::string& path = c.config.text("json");
    if (path == "-") return std::printf("%s\n", j.dump().c_str()), 0;
    std::ofstream out(path);
    out << j.dump() << "\n";
    if (!out.flush()) fail(ErrorCode::kIo, "cannot write ", path);
  }
  for (const std::string& n : r.notes()) std::printf("note: %s\n", n.c_str());
  std::printf("%s samples of %s\nloss %.6g\n", count_text(r.data().samples()).c_str(),
              r.data().where().c_str(), mean);
  for (const Metric& m : values) std::printf("%s %.6g\n", m.name.c_str(), m.value);
  return 0;
}

}  // namespace ortrain::cli
