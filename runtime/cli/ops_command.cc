// `ortrain ops`: the support matrix, from the op table and nothing else.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "graph/structure.h"
#include "runtime/cli/commands.h"

namespace ortrain::cli {
namespace {

struct Row {
  std::string op, domain, gradient, kernels, note;
  int since = 1;
};

std::string gradient_of(const OpDef& op) {
  if (is_structural(op)) return "yes (that of what it becomes)";
  if (op.grad.empty()) return op.decompose ? "yes (by decomposition)" : "no";
  std::string with, without, refused;
  for (const GradRule& r : op.grad) {
    std::string& list = r.kind == GradRule::Kind::kFormula ? with
                        : r.kind == GradRule::Kind::kZero  ? without
                                                           : refused;
    list += (list.empty() ? "" : ", ") + r.input;
  }
  if (with.empty()) return refused.empty() ? "zero" : "no: " + op.grad[0].why;
  return with;
}

std::vector<Row> rows(const OpTable& table) {
  std::vector<Row> out;
  for (const OpDef* op : table.all()) {
    if (op->name.starts_with("ortrain.")) continue;
    const size_t dot = op->name.rfind('.');
    Row r{dot == std::string::npos ? op->name : op->name.substr(dot + 1),
          dot == std::string::npos ? "ai.onnx" : op->name.substr(0, dot),
          gradient_of(*op),
          {},
          op->note,
          op->since};
    for (const KernelEntry& k : op->kernels)
      r.kernels += (r.kernels.empty() ? "" : ", ") + std::string(k.name);
    if (op->view) r.kernels = "view";
    if (r.kernels.empty()) r.kernels = is_structural(*op) ? "dissolved" : "decomposed";
    out.push_back(std::move(r));
  }
  return out;
}

}  // namespace

int run_ops(Context& c) {
  const std::vector<Row> all = rows(c.ops);
  if (c.config.has("json")) {
    nlohmann::json j = nlohmann::json::array();
    for (const Row& r : all)
      j.push_back({{"op", r.op},
                   {"domain", r.domain},
                   {"since", r.since},
                   {"gradient", r.gradient},
                   {"cpu", r.kernels},
                   {"note", r.note}});
    std::printf("%s\n", j.dump(1).c_str());
    return 0;
  }
  const bool markdown = c.config.on("markdown");
  if (markdown) {
    std::printf(
        "# Operators\n\nWritten by `ortrain ops --markdown`. Gradient: the inputs that receive "
        "one. CPU: kernels, best first.\n\n");
    std::printf(
        "| op | domain | since | gradient | CPU | edge values |\n|---|---|--:|---|---|---|\n");
  }
  for (const Row& r : all) {
    if (markdown)
      std::printf("| %s | %s | %d | %s | %s | %s |\n", r.op.c_str(), r.domain.c_str(), r.since,
                  r.gradient.c_str(), r.kernels.c_str(), r.note.c_str());
    else
      std::printf("%-28s %-14s %3d  %-32s %s\n", r.op.c_str(), r.domain.c_str(), r.since,
                  r.gradient.c_str(), r.kernels.c_str());
  }
  if (!markdown) std::printf("%zu operators\n", all.size());
  return 0;
}

}  // namespace ortrain::cli
