// THE ordered list of passes and its runner: bind symbols, then per pass run, time, verify, dump.
// Refuses shapes that stay open (Error(kShape), naming input and axis), unknown pass names, and
// switching off a pass that the graph needs.
#include "graph/pipeline.h"

#include <algorithm>
#include <chrono>

#include "graph/error.h"
#include "graph/passes/passes.h"

namespace ortrain {
namespace {

// Only f32 kernels gain from channels-last data.
bool with_f32(const StepSpec& s) { return s.compute == DType::kF32; }
bool with_gradients(const StepSpec& s) { return s.mode == Mode::kTrain || s.mode == Mode::kGrads; }
bool with_dropout(const StepSpec& s) { return s.dropout >= 0 && with_gradients(s); }
bool with_lora(const StepSpec& s) { return s.lora.rank > 0 && s.mode != Mode::kPredict; }
bool with_recompute(const StepSpec& s) { return with_gradients(s) && s.recompute.mode != "off"; }
bool with_pads(const StepSpec& s) { return with_gradients(s) && s.pad_multiple > 1; }
bool with_narrow(const StepSpec& s) { return s.narrow != DType::kUndefined; }
bool with_tf32(const StepSpec& s) { return s.tf32; }
bool with_updates(const StepSpec& s) { return s.mode == Mode::kTrain; }

}  // namespace

const std::vector<Pass>& passes() {
  static const std::vector<Pass> list = {
      {"infer",
       "everything later may trust dtype and shape; shape chains fold, control flow dissolves",
       pass_infer, nullptr, Switch::kNeeded},
      {"dropout", "before canonicalize, which turns Dropout nodes into masks", pass_dropout,
       with_dropout, Switch::kMayBeOff},
      {"lora", "adapters while weights are still where the file has them", pass_lora, with_lora,
       Switch::kNeeded},
      {"canonicalize",
       "one form for the passes after it; training-mode policy of norms and dropout",
       pass_canonicalize, nullptr, Switch::kNeeded},
      {"attach_loss", "the loss node; which parameters train, and why", pass_attach_loss, nullptr,
       Switch::kNeeded},
      {"check_trainable", "all problems are told before any time is spent", pass_check_trainable,
       with_gradients, Switch::kMayBeOff},
      {"fuse_forward", "before autodiff: the fused op's own gradient is then used",
       pass_fuse_forward, nullptr, Switch::kMayBeOff},
      {"pad_dims", "before autodiff: gradients of Pad and Slice come by rule", pass_pad_dims,
       with_pads, Switch::kMayBeOff},
      {"sparse_head", "behind fuse_forward, which makes Linear; before autodiff: its own gradients",
       pass_sparse_head, with_gradients, Switch::kMayBeOff},
      {"layout", "channels-last where conv-like ops want it; transposes pushed to the borders",
       pass_layout, with_f32, Switch::kMayBeOff},
      {"cast_precision", "before autodiff: Cast's own gradient yields f32 master gradients",
       pass_cast_precision, with_narrow, Switch::kMayBeOff},
      {"autodiff", "gradients by the formulas of the operator records", pass_autodiff,
       with_gradients, Switch::kNeeded},
      {"round_tf32", "inputs of products, forward and backward, as a GPU's tensor cores read them",
       pass_round_tf32, with_tf32, Switch::kMayBeOff},
      {"optimizer", "clip, all-finite test, skip and update are nodes: no host round trip",
       pass_optimizer, with_updates, Switch::kNeeded},
      {"simplify", "common subexpressions, dead code, cast and transpose pairs", pass_simplify,
       nullptr, Switch::kMayBeOff},
      // place: a device per node, copies at the borders.
      // grad_sync: collectives as nodes, between accumulation and unscale.
      {"fuse_late", "elementwise chains into one pass over memory, epilogues into library calls",
       pass_fuse_late, nullptr, Switch::kMayBeOff},
      {"schedule", "one total order", pass_schedule, nullptr, Switch::kNeeded},
      // Behind fuse_late: the same kernels on the same operands give the same bits; behind
      // schedule: what is alive when is known, and a copy goes right before its user.
      {"recompute", "under a byte budget, forward regions again next to their backward users",
       pass_recompute, with_recompute, Switch::kMayBeOff},
  };
  return list;
}

Binding bind_inputs(const Graph& source, const std::map<std::string, Dims>& input_dims) {
  struct Place {
    std::string input;
    int axis;
  };
  Binding binding;
  std::map<std::string, Place> from;
  std::string problems;
  const auto problem = [&](const auto&... parts) {
    problems += cat(problems.empty() ? "" : "\n", parts...);
  };
  for (const ValueId v : source.inputs()) {
    const Value& x = source.value(v);
    const auto it = input_dims.find(x.name);
    if (it == input_dims.end()) continue;
    const Dims& dims = it->second;
    if (static_cast<int>(dims.size()) != x.shape.rank()) {
      problem("input '", x.name, "' has shape ", x.shape.str(), " in the model, ",
              Shape(dims).str(), " in the data");
      continue;
    }
    for (int a = 0; a < x.shape.rank(); ++a) {
      std::vector<std::string> symbols;
      x.shape[a].symbols(symbols);
      if (symbols.size() != 1 || !(x.shape[a] == Dim::symbol(symbols[0]))) continue;
      const int64_t size = dims[static_cast<size_t>(a)];
      const auto [known, fresh] = binding.emplace(symbols[0], size);
      if (fresh)
        from[symbols[0]] = {x.name, a};
      else if (known->second != size)
        problem("size '", symbols[0], "' is ", known->second, " by axis ", from[symbols[0]].axis,
                " of input '", from[symbols[0]].input, "', but ", size, " by axis ", a,
                " of input '", x.name, "'");
    }
  }
  for (const ValueId v : source.inputs()) {  // numbers and expressions must then agree
    const Value& x = source.value(v);
    const auto it = input_dims.find(x.name);
    if (it == input_dims.end() || static_cast<int>(it->second.size()) != x.shape.rank()) continue;
    for (int a = 0; a < x.shape.rank(); ++a) {
      const Dim d = x.shape[a].bind(binding);
      const int64_t size = it->second[static_cast<size_t>(a)];
      if (d.is_const() && d.value() != size && binding.count(x.shape[a].str()) == 0)
        problem("input '", x.name, "' axis ", a, ": the model says ", x.shape[a].str(),
                d == x.shape[a] ? "" : " = " + d.str(), ", the data has ", size);
    }
  }
  if (!problems.empty()) throw Error(ErrorCode::kShape, problems);
  return binding;
}

namespace {

void bind_shapes(Graph& g, const StepSpec& spec, bool all_known) {
  Binding binding = bind_inputs(g, spec.input_dims);
  for (const auto& [symbol, size] : spec.binding) {
    if (size < 0) fail(ErrorCode::kShape, "size '", symbol, "' is negative: ", size);
    const auto [it, fresh] = binding.emplace(symbol, size);
    if (!fresh && it->second != size)
      fail(ErrorCode::kShape, "size '", symbol, "' is ", it->second, " by the data, but ", size,
           " was asked for");
  }
  for (ValueId v = 0; v < g.value_count(); ++v) g.value(v).shape = g.value(v).shape.bind(binding);
  if (!all_known) return;
  std::string open;
  for (ValueId v : g.inputs()) {
    const Value& x = g.value(v);
    if (x.uses.empty() && x.shape.is_const()) continue;
    for (int a = 0; a < x.shape.rank(); ++a)
      if (!x.shape[a].is_const())
        open += cat("\n  input '", x.name, "' axis ", a, " ('", x.shape[a].str(),
                    "'): an array named '", x.name, "' in --data gives it",
                    a == 0 ? ", with --batch-size" : "");
  }
  if (!open.empty()) fail(ErrorCode::kShape, "sizes that nothing gives:", open);
}

std::string pass_names() {
  std::string names;
  for (const Pass& p : passes()) names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

void check_names(const StepSpec& spec, const CompileOptions& options) {
  const auto find = [](const std::string& name) {
    const auto it = std::find_if(passes().begin(), passes().end(),
                                 [&](const Pass& p) { return p.name == name; });
    if (it == passes().end())
      fail(ErrorCode::kUsage, "no pass is named '", name, "'; there are ", pass_names());
    return *it;
  };
  if (!options.until.empty()) find(options.until);
  for (const std::string& name : spec.disabled)
    if (find(name).can_disable == Switch::kNeeded)
      fail(ErrorCode::kUsage, "pass '", name, "' cannot be switched off: ", find(name).why);
}

// Up to here a graph with open sizes makes sense, for `inspect` without data.
bool symbolic_until(const std::string& pass) {
  return pass == "infer" || pass == "dropout" || pass == "lora" || pass == "canonicalize" ||
         pass == "attach_loss" || pass == "check_trainable";
}

}  // namespace

CompileResult compile(const Graph& source, const StepSpec& spec, const CompileOptions& options) {
  check_names(spec, options);
  CompileResult result{source.share(), {}, {}, {}};
  Graph& g = result.graph;
  bind_shapes(g, spec, !symbolic_until(options.until));
  for (const Pass& pass : passes()) {
    PassNote note{pass.name, pass.why, {}, 0};
    if (spec.disabled.count(pass.name)) {
      note.did = "switched off";
    } else if (!pass.wanted || pass.wanted(spec)) {
      PassContext ctx{spec, options.evaluate, result.messages, {}, options.memory};
      const auto start = std::chrono::steady_clock::now();
      pass.run(g, ctx);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      note.did = std::move(ctx.did);
      if (ctx.recompute.arena_after > 0) result.recompute = ctx.recompute;
      note.ms = took.count();
      const std::string problems = verify(g);
      ORTRAIN_CHECK(problems.empty(),
                    cat("after pass ", pass.name, ":\n", problems, print_graph(g)));
      if (options.after_pass) options.after_pass(pass.name, g);
    }
    result.notes.push_back(std::move(note));
    if (options.until == pass.name) break;
  }
  return result;
}

}  // namespace ortrain
