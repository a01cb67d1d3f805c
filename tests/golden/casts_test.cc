// ctest-timeout: 300
// The casts of a 16-bit step, in every golden model file, bf16 and fp16: a program (the whole step,
// or each micro-batch of an accumulated one) casts a parameter at most once, whatever views of it
// are read and by how many (a tied weight); nothing is cast to a type and back, through views
// either; and what may follow in 16 bits is made f32 only where something else in f32 meets it.
//
// Read off the graphs behind cast_precision and behind the last pass, with the operators' own
// records of their precision. Hand-made graphs show that each finding can be found.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/rewrite.h"
#include "importers/onnx.h"
#include "ortrain_test_paths.h"
#include "runtime/evaluate.h"
#include "runtime/program.h"
#include "tests/ops/interpreter.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

struct Casts {
  const Graph& g;
  DType narrow;

  DType type(ValueId v) const { return v == kNone ? DType::kUndefined : g.value(v).dtype; }
  // What v is a view or a transpose of.
  ValueId root(ValueId v) const {
    for (const Node* n = producer(g, v); n && (n->op->view || n->op->name == "Transpose");
         n = producer(g, v))
      v = n->inputs[0];
    return v;
  }
  bool widened(ValueId v) const {
    const Node* n = v == kNone ? nullptr : producer(g, root(v), "Cast");
    return n && type(v) == DType::kF32 && type(n->inputs[0]) == narrow;
  }
  // Per parameter: how many nodes make 16-bit numbers of it alone.
  std::map<std::string, int> of_parameters() const {
    std::map<std::string, int> times;
    for (NodeId n : g.topo()) {
      const Node& x = g.node(n);
      if (x.op->name != "Cast" && x.op->name != "ortrain.FusedElementwise") continue;
      if (std::none_of(x.outputs.begin(), x.outputs.end(),
                       [&](ValueId v) { return type(v) == narrow; }))
        continue;
      for (ValueId v : x.inputs)
        if (v != kNone && g.value(root(v)).source == Source::kParam) ++times[g.value(root(v)).name];
    }
    return times;
  }
  std::string back_and_forth() const {
    std::string found;
    for (NodeId n : g.topo()) {
      const Node& x = g.node(n);
      if (x.op->name != "Cast") continue;
      const Node* before = producer(g, root(x.inputs[0]), "Cast");
      const DType to = type(x.outputs[0]), middle = type(x.inputs[0]);
      if (before && (to == narrow || middle == narrow) && type(before->inputs[0]) == to)
        found += "\n  there and back: " + g.describe(n);
    }
    return found;
  }
  // Nodes that read widened numbers although their record and other inputs let them be 16-bit.
  std::string widened_for_nothing() const {
    std::string found;
    for (NodeId n : g.topo()) {
      const Node& x = g.node(n);
      if (x.op->precision != Precision::kFollow || x.op->name == "Cast") continue;
      bool any = false, reason = false;
      for (ValueId v : x.inputs) {
        if (type(v) != DType::kF32) continue;
        any |= widened(v);
        reason |= !widened(v) && !(uniform(g, v) && g.tensor(v)->count() == 1);
      }
      if (any && !reason) found += "\n  f32 for nothing: " + g.describe(n);
    }
    return found;
  }
};

std::string problems(const Graph& g, DType narrow, const std::string& pass) {
  const Casts casts{g, narrow};
  std::string found = casts.back_and_forth();
  if (pass == "cast_precision") found += casts.widened_for_nothing();
  for (const auto& [name, times] : casts.of_parameters())
    if (times != 1) found += cat("\n  ", times, " casts of '", name, "'");
  return found;
}

std::string flag(const json& flags, const std::string& name) {
  const auto at = std::find(flags.begin(), flags.end(), name);
  return at == flags.end() ? "" : (at + 1)->get<std::string>();
}

TEST(Casts, EveryGoldenModelCastsAWeightOnceAndNothingThereAndBack) {
  int files = 0, cast = 0;
  for (const auto& folder :
       fs::directory_iterator(std::string(test::kSourceDir) + "/tests/golden")) {
    std::ifstream in(folder.path() / "case.json");
    if (!in) continue;
    const json c = json::parse(in);
    if (!c.contains("files") || !fs::exists(folder.path() / flag(c["flags"], "--data"))) continue;
    const data::Dataset data =
        data::Dataset::open((folder.path() / flag(c["flags"], "--data")).string());
    const int64_t batch = std::min(8, std::stoi(flag(c["flags"], "--batch-size")));
    for (const auto& file : fs::directory_iterator(folder.path())) {
      if (file.path().extension() != ".onnx") continue;
      SCOPED_TRACE(file.path().string());
      const auto model = OnnxFile::open(file.path().string(), test::all_ops());
      ++files;
      for (const DType narrow : {DType::kBF16, DType::kF16})
        for (const auto phase : {WindowSpec::Phase::kOnly, WindowSpec::Phase::kFirst,
                                 WindowSpec::Phase::kMiddle, WindowSpec::Phase::kLast}) {
          StepSpec spec;
          spec.narrow = narrow;
          spec.loss.kind = flag(c["flags"], "--loss");
          spec.optimizer.name = "adamw";
          spec.optimizer.clip_norm = 1;
          if (narrow == DType::kF16) spec.loss_scale.kind = LossScaleSpec::Kind::kDynamic;
          if (phase != WindowSpec::Phase::kOnly)
            spec.window = {.phase = phase, .accumulate = 3, .samples = batch, .nominal = batch};
          CompileOptions options;
          options.evaluate = make_evaluator();
          options.after_pass = [&](const std::string& pass, const Graph& g) {
            if (pass != "cast_precision" && pass != "schedule") return;
            EXPECT_EQ(problems(g, narrow, pass), "") << "after " << pass;
            if (pass == "schedule")
              cast += static_cast<int>(Casts{g, narrow}.of_parameters().size());
          };
          compile(model->graph(), spec_for_data(model->graph(), data, spec, batch), options);
        }
    }
  }
  EXPECT_GE(files, 50);
  EXPECT_GE(cast, 8 * 4 * files);  // programs, and at least four parameters of each
}

std::string found_in(const std::string& text) {
  Graph g = parse_graph("graph \"g\" inferred\n" + text, test::all_ops());
  for (NodeId n : g.topo()) g.infer(n);
  return problems(g, DType::kBF16, "cast_precision");
}

TEST(Casts, TheFindingsCanBeFound) {
  EXPECT_NE(found_in("param %0:f32[2,3] \"w\"\n%1 = Cast(%0) {to=\"bf16\"} #a\n"
                     "%2 = Transpose(%0) {perm=[1, 0]} #t\n%3 = Cast(%2) {to=\"bf16\"} #b\n"
                     "output %1 \"x\"\noutput %3 \"y\"\n")
                .find("2 casts of 'w'"),
            std::string::npos);
  EXPECT_NE(found_in("input %0:bf16[2,3] \"x\"\n%1 = Cast(%0) {to=\"f32\"} #a\n"
                     "%2 = Transpose(%1) {perm=[1, 0]} #t\n%3 = Cast(%2) {to=\"bf16\"} #b\n"
                     "output %3 \"y\"\n")
                .find("there and back"),
            std::string::npos);
  EXPECT_NE(found_in("input %0:bf16[2,3] \"x\"\n%1 = Cast(%0) {to=\"f32\"} #a\n"
                     "%2 = Relu(%1) #relu\noutput %2 \"y\"\n")
                .find("f32 for nothing"),
            std::string::npos);
}

}  // namespace
}  // namespace ortrain
