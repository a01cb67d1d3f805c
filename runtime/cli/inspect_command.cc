// `ortrain inspect`: what the model is, what would train and why, what is missing, what it costs.
//
// Without data, sizes stay symbolic and memory is not known; what could train from the model's own
// outputs, and every place that stops a gradient, are still listed.
// Exit status 1 when the model cannot be trained as it is.
#include <algorithm>
#include <cstdio>

#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/passes/param_groups.h"
#include "graph/trainable.h"
#include "runtime/cli/setup.h"
#include "runtime/pad_gain.h"

namespace ortrain::cli {
namespace {

void print_interface(const Graph& g) {
  for (ValueId v : g.inputs())
    std::printf("input   %-24s %s%s\n", g.value(v).name.c_str(),
                std::string(name_of(g.value(v).dtype)).c_str(), g.value(v).shape.str().c_str());
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    const Value& x = g.value(g.outputs()[i]);
    std::printf("output  %-24s %s\n", g.output_names()[i].c_str(),
                x.typed ? cat(name_of(x.dtype), x.shape.str()).c_str() : "");
  }
}

void print_params(const Graph& g) {
  int64_t trained = 0, count = 0;
  for (const auto& [v, info] : g.params) {
    const Value& x = g.value(v);
    const int64_t n = x.shape.is_const() ? element_count(x.shape.values()) : 0;
    if (info.trainable) trained += n, ++count;
    std::printf("  %-8s %-40s %-16s %s\n", info.trainable ? "train" : "fixed", x.name.c_str(),
                x.shape.str().c_str(), info.reason.c_str());
  }
  std::printf("%s parameters in %s tensors train\n", count_text(trained).c_str(),
              count_text(count).c_str());
}

// Which parameters a loss on the float outputs would train. Returns what stops gradients on the
// way, each place once.
std::vector<std::string> decide_without_loss(Graph& g, const StepSpec& spec) {
  std::vector<ValueId> roots, wanted;
  for (ValueId v : g.outputs())
    if (is_float(g.value(v).dtype)) roots.push_back(v);
  PerValue<bool> path = reaches(g, roots);
  for (ValueId v : g.sources(Source::kParam)) {
    g.params[v] = judge(g, v, spec, path[v], "no gradient path leads from it to an output");
    if (g.params[v].trainable) wanted.push_back(v);
  }
  std::vector<std::string> problems;
  for (ValueId root : roots)
    for (std::string& p : gradient_problems(g, root, wanted))
      if (std::find(problems.begin(), problems.end(), p) == problems.end())
        problems.push_back(std::move(p));
  return problems;
}

// What padding does to this step, measured; for `auto`, which pads nothing on a CPU, what could be.
void print_padding(const Context& c, const StepSpec& spec) {
  const std::string& asked = c.config.text("pad-dims");
  if (asked == "off" || spec.disabled.contains("pad_dims")) return;
  const bool measure = asked != "auto";
  const int64_t multiple = measure ? std::stoll(asked) : 8;
  const PadGain gain = pad_gain(c.file->graph(), spec, multiple, select_options(c), measure);
  if (gain.did.empty())
    std::printf("pad-dims: every extent of a product is a multiple of %lld already\n",
                static_cast<long long>(multiple));
  else
    std::printf("pad-dims %s%s\n",
                measure ? cat(multiple, ": ").c_str() : "auto: off on a CPU; 8 would pad ",
                pad_gain_text(gain).c_str());
}

void print_notes(const std::vector<PassNote>& notes) {
  for (const PassNote& n : notes)
    std::printf("  %-16s %8.2f ms  %s\n%29s%s\n", n.pass.c_str(), n.ms,
                n.did.empty() ? "nothing to do" : n.did.c_str(), "", n.why.c_str());
}

}  // namespace

int run_inspect(Context& c) {
  const Graph& source = c.file->graph();
  int nodes = 0;
  for (NodeId n = 0; n < source.node_count(); ++n) nodes += source.node(n).op != nullptr;
  std::printf("%s: %d nodes\n", c.model_path.c_str(), nodes);
  for (const std::string& p : c.file->problems()) std::printf("note: %s\n", p.c_str());

  const std::string& paths =
      c.config.has("data") ? c.config.text("data") : c.config.text("eval-data");
  if (paths.empty()) {
    print_interface(source);
    const StepSpec spec =
        make_spec(c, c.config.has("lora") ? Mode::kGrads : Mode::kPredict);  // with the adapters
    CompileOptions options = compile_options(c);
    options.until = "lora";
    CompileResult typed = compile(source, spec, options);
    for (size_t i = 0; i < typed.graph.outputs().size(); ++i)
      std::printf("typed   %-24s %s\n", typed.graph.output_names()[i].c_str(),
                  typed.graph.value(typed.graph.outputs()[i]).shape.str().c_str());
    const std::vector<std::string> problems = decide_without_loss(typed.graph, spec);
    std::printf("\nwith a loss on its outputs:\n");
    print_params(typed.graph);
    const ParamGroups groups(typed.graph, spec.optimizer);
    for (const std::string& line : groups.text()) std::printf("  %s\n", line.c_str());
    for (const std::string& p : problems) std::printf("  stops the gradient: %s\n", p.c_str());
    std::printf("\nMemory, passes and the loss itself need --data (and --label, --loss).\n");
    if (!problems.empty())
      fail(ErrorCode::kUnsupported, c.model_path, " cannot be trained as it is: ", problems.size(),
           problems.size() == 1 ? " place stops" : " places stop",
           " the gradient; --freeze the parameters behind them, or train another "
           "output");
    return 0;
  }
  std::vector<std::string> said;
  const data::Dataset set = open_data(c, paths, DataUse::kTrain);
  const int64_t batch = batch_size(c, set.samples(), said);
  const StepSpec spec = data_spec(c, set, Mode::kTrain, batch, said);
  CompileOptions options = compile_options(c);
  options.until = "attach_loss";  // the next pass refuses what cannot train; the list comes first
  const CompileResult checked = compile(source, spec, options);
  print_interface(source);
  std::printf("data    %s\n\n", set.summary().c_str());
  print_params(checked.graph);

  const DataRun run(c, paths, Mode::kTrain, false);
  const Program& p = run.program();
  for (const std::string& m : p.messages()) said.push_back(m);
  std::printf("\n");
  for (const std::string& m : said) std::printf("note: %s\n", m.c_str());
  std::printf("one step of %lld samples: %zu steps, %.3f GFLOP\nmemory: %s\n",
              static_cast<long long>(batch), p.plan().steps.size(), p.plan().flops / 1e9,
              memory_text(p.plan()).c_str());
  if (p.recompute().copies > 0)
    std::printf("%s; %zu bytes in all instead of %zu\n", recompute_text(p.recompute()).c_str(),
                run.fit().used.total(), run.fit().unconstrained);
  print_padding(c, run.spec());
  std::printf("%s", window_text(c, run).c_str());
  if (c.config.on("passes")) {
    std::printf("\npasses, in order:\n");
    print_notes(p.notes());
  }
  if (c.config.text("kernels") == "show") {
    std::printf("\nkernels:\n");
    for (const std::string& k : p.plan().kernels) std::printf("  %s\n", k.c_str());
  }
  return 0;
}

}  // namespace ortrain::cli
