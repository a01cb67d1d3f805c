// Passes by example, text in and text out: the cases of texts/*.txt, with the real operators.
//
// A case: "==== what it shows", lines "passes: NAME, ..." and optionally "set: KEY=VALUE ...", the
// graph, "---->", the graph after the passes and what they told ("says ..."). Expected graphs are
// written anew with ORTRAIN_REGENERATE=1 and reviewed as a diff. That the numbers stay equal is
// held elsewhere (tests/golden/passes).
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/error.h"
#include "graph/passes/passes.h"
#include "ortrain_test_paths.h"
#include "runtime/evaluate.h"
#include "tests/graph/passes/pass_tests.h"
#include "tests/ops/interpreter.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;

struct Case {
  std::string title, passes, set, in, out;
};

std::vector<Case> read_cases(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Case> cases;
  bool after = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("==== ")) {
      cases.push_back({line.substr(5), {}, {}, {}, {}});
      after = false;
    } else if (cases.empty()) {
      ADD_FAILURE() << path << " does not begin with a title";
      return cases;
    } else if (line.starts_with("passes: ")) {
      cases.back().passes = line.substr(8);
    } else if (line.starts_with("set: ")) {
      cases.back().set = line.substr(5);
    } else if (line == "---->") {
      after = true;
    } else if (!line.empty()) {
      (after ? cases.back().out : cases.back().in) += line + "\n";
    }
  }
  return cases;
}

void write_cases(const fs::path& path, const std::vector<Case>& cases) {
  std::ofstream file(path);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    file << (i ? "\n" : "") << "==== " << c.title << "\npasses: " << c.passes << "\n";
    if (!c.set.empty()) file << "set: " << c.set << "\n";
    file << c.in << "---->\n" << c.out;
  }
}

StepSpec spec_of(const std::string& text) {
  StepSpec s;
  s.optimizer.name = "sgd";
  s.optimizer.lr = 0.5;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const size_t eq = word.find('=');
    const std::string key = word.substr(0, eq), value = word.substr(eq + 1);
    if (key == "mode") {
      s.mode = value == "grads" ? Mode::kGrads : value == "eval" ? Mode::kEval : Mode::kPredict;
    } else if (key == "compute") {
      s.compute = DType::kF64;
    } else if (key == "dropout") {
      s.dropout = std::stod(value);
    } else if (key == "lora") {
      s.lora.rank = std::stoll(value);
      s.lora.alpha = 2 * std::stod(value);
    } else if (key == "targets") {
      s.lora.targets = {value};
    } else if (key == "window") {
      using Phase = WindowSpec::Phase;
      s.window = {.phase = value == "first"    ? Phase::kFirst
                           : value == "middle" ? Phase::kMiddle
                                               : Phase::kLast,
                  .accumulate = 3,
                  .samples = 2,
                  .nominal = 2};
    } else {
      ADD_FAILURE() << "unknown setting " << word;
    }
  }
  return s;
}

// The graph after the passes; an Error is shown as it is.
std::string run(const Case& c) {
  const StepSpec spec = spec_of(c.set);
  const Evaluate evaluate = make_evaluator();
  std::vector<std::string> messages;
  PassContext ctx{spec, evaluate, messages, {}};
  try {
    Graph g = parse_graph(c.in, test::all_ops());
    if (!c.passes.starts_with("infer")) {
      for (NodeId n : g.topo()) g.infer(n);
      g.stage = Stage::kInferred;
    }
    std::istringstream names(c.passes);
    for (std::string name; std::getline(names >> std::ws, name, ',');) {
      const auto pass = std::find_if(passes().begin(), passes().end(),
                                     [&](const Pass& p) { return p.name == name; });
      if (pass == passes().end()) return "no pass " + name + "\n";
      pass->run(g, ctx);
      EXPECT_EQ(verify(g), "") << c.title;
    }
    std::string text = print_graph(parse_graph(print_graph(g, true), test::all_ops()), true);
    for (std::string& said : messages) {
      std::replace(said.begin(), said.end(), '\n', ';');
      text += "says " + said + "\n";
    }
    return text;
  } catch (const Error& e) {
    return cat("error ", e.what(), "\n");
  }
}

TEST(Texts, PassesGiveTheseGraphs) {
  const bool regenerate = std::getenv("ORTRAIN_REGENERATE") != nullptr;
  int count = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(test::kSourceDir) / "tests/graph/passes/texts")) {
    std::vector<Case> cases = read_cases(entry.path());
    for (Case& c : cases) {
      const std::string got = run(c);
      if (!regenerate) {
        EXPECT_EQ(got, c.out) << entry.path().filename() << ": " << c.title;
      }
      c.out = got;
      ++count;
    }
    if (regenerate) write_cases(entry.path(), cases);
  }
  EXPECT_GT(count, 30);
}

}  // namespace
}  // namespace ortrain
