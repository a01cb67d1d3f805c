// `ortrain eval`: loss and metrics of a model over a data set; --json FILE or - writes them as
// JSON.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/evaluation.h"

namespace ortrain::cli {
namespace {
bool labelled(const std::vector<Target>& targets, const data::Dataset& data) {
  return std::all_of(targets.begin(), targets.end(),
                     [&](const Target& t) { return data.has(t.label); });
}
}  // namespace

int run_eval(Context& c) {
  const std::string& paths =
      c.config.has("eval-data") ? c.config.text("eval-data") : c.config.text("data");
  if (paths.empty()) explain_missing_data(c, "eval");
  DataRun r(c, paths, Mode::kEval);
  check_labels(r.targets(), r.data());
  Evaluation evaluation(r.targets());
  r.run([&](const data::Batch& b, Program& p) { evaluation.add(p, b); });
  const EvalValues values = evaluation.values();
  if (!values.has_loss)
    fail(ErrorCode::kData, "nothing to evaluate: ", r.data().where(), " (", r.data().summary(),
         ") ",
         labelled(r.targets(), r.data())
             ? "has no label that counts: all are ignored or weigh nothing"
             : "has no labels; name them with --label");
  if (c.config.has("json")) {
    nlohmann::ordered_json j{{"samples", r.data().samples()}, {"loss", values.loss}};
    for (const auto& [name, loss] : values.losses) j["loss/" + name] = loss;
    for (const Metric& m : values.metrics) j[m.name] = m.value;
    const std::string& path = c.config.text("json");
    if (path == "-") return std::printf("%s\n", j.dump().c_str()), 0;
    std::ofstream out(path);
    out << j.dump() << "\n";
    if (!out.flush()) fail(ErrorCode::kIo, "cannot write ", path);
  }
  for (const std::string& n : r.notes()) std::printf("note: %s\n", n.c_str());
  std::printf("%s samples of %s\nloss %.6g\n", count_text(r.data().samples()).c_str(),
              r.data().where().c_str(), values.loss);
  for (const auto& [name, loss] : values.losses) std::printf("loss/%s %.6g\n", name.c_str(), loss);
  for (const Metric& m : values.metrics) std::printf("%s %.6g\n", m.name.c_str(), m.value);
  return 0;
}

}  // namespace ortrain::cli
