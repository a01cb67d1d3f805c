// The composition root: picks the command, catches errors once, sets the exit status.
//
// Exit: 0 done; 1 the model, data or machine is not fit for it; 2 usage; 3 does not fit in memory;
// 128 + signal after a clean interrupted checkpoint. Errors go to standard error as one message.
#include <cstdio>
#include <exception>
#include <new>

#include "graph/error.h"
#include "ops/all_ops.h"
#include "ops/common/isa.h"
#include "ortrain_config.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/flags.h"
#include "runtime/crowding.h"
#include "runtime/threads.h"

namespace ortrain::cli {
namespace {

struct Command {
  const char* name;
  const char* usage;
  const char* help;
  int (*run)(Context&);
  bool needs_model;
  size_t most = 1;  // arguments
};
constexpr Command kCommands[] = {
    {"train", "ortrain [train] MODEL", "train the model; also what a bare MODEL does", run_train,
     true},
    {"init", "ortrain init MODEL", "write the recipe that trains MODEL on --data: MODEL.toml",
     run_init, true},
    {"inspect", "ortrain inspect MODEL", "inputs, parameters and why, problems, memory, passes",
     run_inspect, true},
    {"eval", "ortrain eval MODEL", "loss and metrics on --eval-data (or --data)", run_eval, true},
    {"predict", "ortrain predict MODEL", "outputs for --data to --out FILE.npz", run_predict, true},
    {"grads", "ortrain grads MODEL", "loss and gradients of the first step to --out FILE.npz",
     run_grads, true},
    {"bench", "ortrain bench MODEL", "ms per step, samples/s, memory; --json FILE or -", run_bench,
     true},
    {"export", "ortrain export MODEL", "newest checkpoint to ONNX or safetensors: --run, --out",
     run_export, true},
    {"runs", "ortrain runs [DIR]", "the runs of a folder: state, steps, best evaluation", run_runs,
     false},
    {"compare", "ortrain compare RUN RUN...", "runs side by side: table, curves; --out FILE.html",
     run_compare, false, 1000},
    {"ops", "ortrain ops", "the support matrix; --markdown, --json -", run_ops, false, 0},
};

void print_help() {
  std::printf("ortrain %s trains ONNX models.\n\n", kVersion);
  for (const Command& c : kCommands) std::printf("  %-24s %s\n", c.usage, c.help);
  std::printf("%s\nEvery flag is also a key of the recipe MODEL.toml beside the model.\n",
              flags_help().c_str());
}

int run(int argc, char** argv) {
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.emplace_back(c.name);
  OpTable table;
  ops::register_all(table);
  Context context{table, parse_command_line(argc, argv, names), {}, {}, nullptr};
  const CommandLine& line = context.line;
  if (line.version) return std::printf("ortrain %s (oneDNN %s)\n", kVersion, kOneDnnVersion), 0;
  if (line.help || (line.command.empty() && line.positional.empty())) {
    print_help();
    return line.help ? 0 : exit_status(ErrorCode::kUsage);
  }
  const std::string wanted = line.command.empty() ? "train" : line.command;
  for (const Command& c : kCommands) {
    if (wanted != c.name) continue;
    if (line.positional.size() > c.most)
      fail(ErrorCode::kUsage, "unexpected argument '", line.positional[c.most],
           "'; usage: ", c.usage, " [flags]");
    if (c.needs_model) {
      if (line.positional.empty())
        fail(ErrorCode::kUsage, "which model? usage: ", c.usage, " [flags]");
      context.model_path = line.positional[0];
      load_model(context);
    } else {
      for (const auto& [key, value] : line.flags) context.config.set(key, value, "--" + key);
    }
    return c.run(context);
  }
  return exit_status(ErrorCode::kUsage);
}

}  // namespace
}  // namespace ortrain::cli

int main(int argc, char** argv) {
  ortrain::bound_spinning(argv);
  ortrain::ops::limit_instruction_set();
  const ortrain::CrowdingWatch watch;
  try {
    return ortrain::cli::run(argc, argv);
  } catch (const ortrain::Error& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "ortrain: %s\n", e.what());
    return ortrain::exit_status(e.code());
  } catch (const std::bad_alloc&) {
    std::fflush(stdout);
    std::fprintf(stderr, "ortrain: out of memory\n");
    return ortrain::exit_status(ortrain::ErrorCode::kMemory);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "ortrain: %s\n", e.what());
    return 1;
  }
}
