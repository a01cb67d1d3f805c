// Parameter groups, layer-wise learning rates and Muon's choice on a small network with a table,
// three numbered layers, a norm and a head; and on one whose names say nothing.
#include "graph/passes/param_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/builder.h"
#include "graph/error.h"
#include "tests/ops/interpreter.h"

namespace ortrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ids -> table -> three times Tanh(x w + b) -> x * scale -> x head.
Graph network(bool numbered) {
  Graph g(test::all_ops());
  Builder b(g, "net");
  int fresh = 0;
  const auto param = [&](const std::string& name, Dims dims) {
    const std::string anonymous = cat("p", std::string(1, static_cast<char>('a' + fresh++)));
    const ValueId v =
        g.add_param(HostTensor(DType::kF32, std::move(dims)), numbered ? name : anonymous);
    g.params[v] = {.trainable = true, .reason = "", .perm = {}};
    return b.wrap(v);
  };
  // Made in another order than used.
  const Expr head = param("head.weight", {4, 5}), scale = param("norm.scale", {4});
  std::vector<Expr> w, bias;
  for (int i : {2, 0, 1}) {
    w.push_back(param(cat("h.", i, ".fc.weight"), {4, 4}));
    bias.push_back(param(cat("h.", i, ".fc.bias"), {4}));
  }
  const Expr ids = b.wrap(g.add_input("ids", DType::kI64, Shape{3}));
  Expr x = b.op("Gather", {param("embed.weight", {7, 4}), ids}, {{"axis", int64_t{0}}});
  for (size_t i : {1, 2, 0}) {
    const Expr turned = b.transpose(b.transpose(w[i], {1, 0}), {1, 0});  // work on weights alone
    x = b.unary("Tanh", b.matmul(x, turned) + bias[i]);
  }
  g.add_output(b.matmul(x * scale, head).id(), "y");
  return g;
}

std::map<std::string, double> factors(const Graph& g, const OptimizerSpec& spec) {
  const ParamGroups groups(g, spec);
  std::map<std::string, double> out;
  for (const auto& [v, info] : g.params) out[g.value(v).name] = groups.of(v).lr_factor;
  return out;
}

TEST(ParamGroups, LayersByNumberedNames) {
  const Graph g = network(true);
  OptimizerSpec spec;
  spec.layer_lr_decay = 0.5;
  const auto f = factors(g, spec);
  EXPECT_EQ(f.at("embed.weight"), 1.0 / 16);  // the table, three layers, norm and head
  EXPECT_EQ(f.at("h.0.fc.weight"), 1.0 / 8);
  EXPECT_EQ(f.at("h.0.fc.bias"), 1.0 / 8);
  EXPECT_EQ(f.at("h.1.fc.weight"), 1.0 / 4);
  EXPECT_EQ(f.at("h.2.fc.bias"), 1.0 / 2);
  EXPECT_EQ(f.at("norm.scale"), 1);
  EXPECT_EQ(f.at("head.weight"), 1);
  EXPECT_THAT(ParamGroups(g, spec).text(),
              ElementsAre("learning rate by layer (tensors), 5 layers: embed.weight (1) x 0.0625; "
                          "h.0 (2) x 0.125; h.1 (2) x 0.25; h.2 (2) x 0.5; norm.scale (2) x 1"));
}

TEST(ParamGroups, LayersByUseWithoutNumbers) {
  const Graph g = network(false);
  OptimizerSpec spec;
  spec.layer_lr_decay = 0.5;
  const auto f = factors(g, spec);
  EXPECT_EQ(f.at("pi"), 1.0 / 16);  // the table
  EXPECT_EQ(f.at("pe"), 1.0 / 8);   // h.0
  EXPECT_EQ(f.at("pf"), 1.0 / 8);
  EXPECT_EQ(f.at("pg"), 1.0 / 4);  // h.1
  EXPECT_EQ(f.at("pc"), 1.0 / 2);  // h.2
  EXPECT_EQ(f.at("pd"), 1.0 / 2);
  EXPECT_EQ(f.at("pb"), 1.0 / 2);  // the norm belongs to the matrix before it
  EXPECT_EQ(f.at("pa"), 1);        // the head
}

TEST(ParamGroups, FirstGroupCountsAndNoDecayWins) {
  const Graph g = network(true);
  OptimizerSpec spec;
  spec.lr = 0.01;
  spec.weight_decay = 0.1;
  spec.no_decay = {"norm_bias", "embed"};
  spec.layer_lr_decay = 0.5;
  spec.groups = {{.regex = "h\\.0", .lr = 0.02, .weight_decay = 0.3},
                 {.regex = "weight$", .lr_factor = 3}};
  const ParamGroups groups(g, spec);
  std::map<std::string, ParamGroups::Setting> of;
  for (const auto& [v, info] : g.params) of[g.value(v).name] = groups.of(v);
  EXPECT_EQ(of["h.0.fc.weight"].lr_factor, 2.0 / 8);
  EXPECT_EQ(of["h.0.fc.weight"].weight_decay, 0.3);
  EXPECT_EQ(of["h.0.fc.bias"].lr_factor, 2.0 / 8);
  EXPECT_EQ(of["h.0.fc.bias"].weight_decay, 0);
  EXPECT_EQ(of["h.1.fc.weight"].lr_factor, 3.0 / 4);
  EXPECT_EQ(of["h.1.fc.weight"].weight_decay, 0.1);
  EXPECT_EQ(of["h.1.fc.bias"].lr_factor, 1.0 / 4);
  EXPECT_EQ(of["embed.weight"].weight_decay, 0);
  EXPECT_EQ(groups.text()[0], "group h\\.0: 2 tensors, lr 0.02, weight decay 0.3");
  EXPECT_EQ(groups.text()[1], "group weight$: 4 tensors, lr 0.03, weight decay 0.1");
  EXPECT_EQ(groups.text()[2], "no group: 3 tensors, lr 0.01, weight decay 0.1");
}

std::vector<std::string> messages(const Graph& g, const OptimizerSpec& optimizer) {
  StepSpec spec;
  spec.optimizer = optimizer;
  spec.loss.label = "labels";
  spec.loss.label_dtype = DType::kI64;
  spec.loss.label_dims = {3};
  return compile(g, spec, {}).messages;
}

TEST(ParamGroups, MuonTakesHiddenMatrices) {
  OptimizerSpec spec;
  spec.name = "muon";
  EXPECT_THAT(messages(network(true), spec),
              testing::Contains("muon updates 3 matrices, adamw the other 6 tensors; of the "
                                "matrices 'embed.weight' (looked up by index), 'head.weight' (the "
                                "last layer)"));
}

}  // namespace
}  // namespace ortrain
