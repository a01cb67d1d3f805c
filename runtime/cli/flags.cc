// The flag table itself, value checks and the help text.
#include "runtime/cli/flags.h"

#include <charconv>

#include "graph/error.h"
#include "graph/passes/losses.h"
#include "graph/spelling.h"
#include "runtime/cli/words.h"

namespace ortrain::cli {

const std::vector<Flag>& flag_table() {
  using enum FlagType;
  constexpr double kBig = kNoBound;
  static const std::vector<Flag> table = {
      {"data", kPath, "", "Data",
       "training data: .npz, .npy, .safetensors, .csv, .tsv, .bin (tokens), .txt, a folder of "
       "pictures "
       "(class per folder), of .npy or of ONNX test data; several, globs, A:0.7,B:0.3; - = stdin"},
      {"eval-data", kPath, "", "Data", "evaluation arrays, same form"},
      {"label", kText, "", "Data",
       "name of the label array (default: labels, label, target, targets, y)"},
      {"map", kParts, "", "Data",
       "INPUT:ARRAY: the array that a graph input is made of; repeatable"},
      {"prepare", kParts, "", "Data",
       "INPUT:resize=256,crop=224,flip,mean=0.5,std=0.2,...; repeatable, see docs/data.md"},
      {"split", kText, "", "Data",
       "hold out for evaluation: a fraction, or a file with a sample per line"},
      {"window", kInt, "", "Data", "tokens per sample (default: what the model takes)", 1, kBig},
      {"stride", kInt, "", "Data", "tokens from one sample to the next (default: the window)", 1,
       kBig},
      {"tokens", kChoice, "uint16", "Data", "type of .bin files", 0, 0, {"uint16", "uint32"}},
      {"text", kChoice, "", "Data", ".txt files as bytes or characters", 0, 0, {"bytes", "chars"}},
      {"strict", kSwitch, "false", "Data",
       "stop at a sample that cannot be read; else it is left out"},
      {"workers", kInt, "0", "Data", "loader threads; 0 = by the kind of data", 0, 256},
      {"prefetch", kInt, "0", "Data", "batches in memory; 0 = by the kind of data", 0, 1000},
      {"pin-workers", kSwitch, "false", "Data", "bind loader threads to CPUs that do not compute"},
      {"batch-size", kInt, "32", "Data", "samples per step, or per micro-batch with --accumulate",
       1, kBig},
      {"accumulate", kInt, "1", "Data", "micro-batches per step: the exact mean over all of them",
       1, 1e9},
      {"shuffle",
       kChoice,
       "epoch",
       "Data",
       "new order every epoch, or file order",
       0,
       0,
       {"epoch", "none"}},
      {"last-batch",
       kChoice,
       "keep",
       "Data",
       "an epoch's short last batch: keep, drop, fill from the next",
       0,
       0,
       {"keep", "drop", "wrap"}},
      {"seed", kInt, "0", "Data", "seed of shuffling and dropout", 0, kBig},

      {"loss", kText, "auto", "Loss",
       "kind, or OUTPUT:KIND(LABEL)*FACTOR, several with commas; auto: the graph's scalar output, "
       "else by the label's type",
       0, 0, loss_kinds()},
      {"output", kText, "", "Loss",
       "model output the loss applies to (default: the first float one)"},
      {"class-weights", kText, "", "Loss",
       "one number per class, or auto = balanced; bce: of positives. Several losses: "
       "OUT:W,W;OUT:auto"},
      {"ignore-index", kInt, "-100", "Loss", "class label that does not count", -kBig, kBig},
      {"label-smoothing", kNumber, "0", "Loss", "share of probability spread over all classes", 0,
       1},
      {"huber-delta", kNumber, "1", "Loss", "where huber turns linear (smooth_l1: beta)", 1e-12,
       1e12},
      {"focal-gamma", kNumber, "2", "Loss", "focal: how much sure answers count less", 0, 100},
      {"blank", kInt, "0", "Loss", "ctc: class of the blank; as a label it is padding", 0, kBig},

      {"optimizer",
       kChoice,
       "adamw",
       "Optimizer",
       "PyTorch's formulas",
       0,
       0,
       {"sgd", "adam", "adamw", "adagrad", "rmsprop", "lamb", "lion", "adafactor", "muon"}},
      {"lr", kNumber, "0.001", "Optimizer", "learning rate", 0, 1e6},
      {"momentum", kNumber, "", "Optimizer", "sgd, rmsprop: 0; muon: 0.95", 0, 1},
      {"dampening", kNumber, "0", "Optimizer", "sgd", 0, 1},
      {"nesterov", kSwitch, "false", "Optimizer", "sgd; muon: on unless --nesterov=false"},
      {"betas", kText, "", "Optimizer", "adam, adamw, lamb, muon: 0.9,0.999; lion: 0.9,0.99"},
      {"eps", kNumber, "", "Optimizer", "1e-8; adagrad: 1e-10; lamb: 1e-6", 0, 1},
      {"weight-decay", kNumber, "0", "Optimizer",
       "L2 for sgd, adam, adagrad, rmsprop; decoupled for the others", 0, 1e3},
      {"optimizer-args", kList, "", "Optimizer",
       "PyTorch's other arguments: amsgrad=true, centered=true, alpha=0.9, ..."},
      {"no-decay", kList, "", "Optimizer",
       "no weight decay: regexes, or norm_bias for all 1-D parameters"},
      {"group", kParts, "", "Optimizer",
       "REGEX:lr=X,lr-factor=X,weight-decay=X for parameters; repeatable, the first match counts"},
      {"layer-lr-decay", kNumber, "1", "Optimizer",
       "learning rate times X per layer on the way from the output", 1e-6, 1},
      {"schedule",
       kChoice,
       "constant",
       "Optimizer",
       "learning rate after the warm-up",
       0,
       0,
       {"constant", "linear", "cosine", "polynomial", "step", "inverse_sqrt", "one_cycle"}},
      {"schedule-args", kList, "", "Optimizer",
       "power=1; step_size=N, gamma=0.1; pct_start=0.3, div_factor=25, ..."},
      {"warmup", kInt, "0", "Optimizer", "steps of linear warm-up", 0, kBig},
      {"min-lr", kNumber, "0", "Optimizer", "where the schedule ends", 0, 1e6},
      {"clip-norm", kNumber, "0", "Optimizer", "largest global gradient norm; 0 = no clipping", 0,
       1e12},
      {"clip-value", kNumber, "0", "Optimizer",
       "largest magnitude in a gradient, after --clip-norm; 0 = no clipping", 0, 1e12},
      {"ema", kNumber, "0", "Optimizer",
       "evaluate and export averages of the weights with this decay; 0 = none", 0, 0.999999999},

      {"epochs", kInt, "", "Run", "passes over the data (1 when --steps is not given either)", 1,
       kBig},
      {"steps", kInt, "", "Run", "optimizer steps; wins over --epochs", 1, kBig},
      {"eval-every", kInt, "0", "Run", "evaluate every N steps; 0 = after each epoch", 0, kBig},
      {"train", kList, "", "Run", "regexes of parameters to train (default: all that are found)"},
      {"freeze", kList, "", "Run", "regexes of parameters to keep as they are"},
      {"dropout", kText, "file", "Run",
       "file: as the model has it; off: none; a ratio: of all, added at the usual places"},
      {"lora", kText, "", "Run",
       "adapters beside 2-D weights: r=8,alpha=16,dropout=0.05,targets=REGEX (targets: default "
       "all)"},
      {"lora-export",
       kChoice,
       "merged",
       "Run",
       "adapters merged into the model, beside it as PEFT-like safetensors, or both",
       0,
       0,
       {"merged", "adapters", "both"}},
      {"batch-norm",
       kChoice,
       "train",
       "Run",
       "batch statistics, or keep the running ones",
       0,
       0,
       {"train", "frozen"}},
      {"rebatch", kSwitch, "false", "Run",
       "a file with a fixed batch trains with any, where that is provably the same"},
      {"reset-head",
       kText,
       "",
       "Run",
       "OUTPUT=CLASSES: the last layer before that output starts anew, with so many classes",
       0,
       0,
       {},
       true,
       false},
      {"tie", kText, "off", "Run",
       "tensors that are one parameter: auto (embedding and head with equal contents), off, A=B"},
      {"untie",
       kChoice,
       "on",
       "Run",
       "scales and biases that the exporter merged: on = train them apart, off = as one",
       0,
       0,
       {"on", "off"}},
      {"training-mode",
       kChoice,
       "run",
       "Run",
       "norms and dropout train when the run does, or by their training_mode in the file",
       0,
       0,
       {"run", "file"}},
      {"loss-scale", kList, "auto", "Run",
       "off, X, or dynamic[,init=65536,growth=2,interval=2000,min=1,max=16777216]; auto: dynamic "
       "for fp16"},
      {"memory-budget", kText, "", "Run",
       "most bytes a run may take, such as 4GiB, or a share of what it would take, 80%"},
      {"recompute",
       kChoice,
       "auto",
       "Run",
       "forward values again in backward: never, to fit the memory, all but ~sqrt(n) checkpoints",
       0,
       0,
       {"off", "auto", "sqrt"}},
      {"pad-dims",
       kChoice,
       "auto",
       "Run",
       "extents of products rounded up to a multiple, exactly; auto: where this device gains",
       0,
       0,
       {"auto", "off", "8", "16", "64", "128"}},
      {"precision",
       kChoice,
       "fp32",
       "Run",
       "of products and what follows them; weights stay fp32 (fp64 is for checking)",
       0,
       0,
       {"fp32", "tf32", "bf16", "fp16", "fp64"}},
      {"on-nan",
       kChoice,
       "stop",
       "Run",
       "loss or gradients not finite: stop and name the first bad node, or skip",
       0,
       0,
       {"stop", "skip"}},
      {"watch", kInt, "0", "Run",
       "numerics every N steps: norms, update/weight ratios, underflow, saturation; 0 = never", 0,
       kBig},
      {"threads", kInt, "0", "Run", "0 = one per usable core", 0, 4096},
      {"deterministic", kSwitch, "false", "Run",
       "bit-identical runs at a fixed number of threads, which a resumed run must keep"},
      {"resume",
       kSwitch,
       "false",
       "Run",
       "continue the run in --out, or the newest run of this model",
       0,
       0,
       {},
       false},

      {"out",
       kPath,
       "",
       "Output",
       "run folder (runs/MODEL-N); grads, predict, export: the file",
       0,
       0,
       {},
       false},
      {"checkpoint-every", kInt, "0", "Output", "steps between checkpoints; 0 = every epoch", 0,
       kBig},
      {"keep", kInt, "2", "Output", "checkpoints to keep", 1, 1000000},
      {"log",
       kPath,
       "",
       "Output",
       "JSON lines, one per step (default OUT/run.jsonl)",
       0,
       0,
       {},
       false},
      {"log-to", kList, "report,tensorboard", "Output",
       "what else a run writes: report, tensorboard, histograms (of parameters), mlflow, "
       "mlflow=FOLDER; none"},
      {"run",
       kPath,
       "",
       "Output",
       "export: the run folder to take the checkpoint from",
       0,
       0,
       {},
       false},
      {"loader",
       kSwitch,
       "false",
       "Output",
       "bench: batches without training, to see how fast data is read and prepared",
       0,
       0,
       {},
       false},
      {"json",
       kPath,
       "",
       "Output",
       "bench, eval: figures as JSON to this file, - = standard output",
       0,
       0,
       {},
       false},
      {"config",
       kPath,
       "",
       "Output",
       "a recipe (TOML) read after the model's own",
       0,
       0,
       {},
       false},
      {"force",
       kSwitch,
       "false",
       "Output",
       "init: write over the recipe that is there",
       0,
       0,
       {},
       false},
      {"print-config",
       kSwitch,
       "false",
       "Output",
       "show every setting and its origin, then stop",
       0,
       0,
       {},
       false},
      {"quiet", kSwitch, "false", "Output", "errors and the summary only", 0, 0, {}, false},

      {"passes",
       kSwitch,
       "false",
       "Looking inside",
       "inspect: every pass, why it is there, what it did",
       0,
       0,
       {},
       false},
      {"kernels",
       kChoice,
       "auto",
       "Looking inside",
       "ref: reference kernels only, slow, for checking; show (or alone): inspect lists the kernel "
       "of "
       "every node and why others refused",
       0,
       0,
       {"auto", "ref", "show"},
       false,
       true,
       "show"},
      {"check",
       kInt,
       "0",
       "Looking inside",
       "grads: against finite differences in N random directions (--precision fp64)",
       0,
       1e6,
       {},
       false},
      {"profile",
       kInt,
       "0",
       "Looking inside",
       "timeline of N steps (5 when alone) to OUT/timeline.json; bench: time per node, timeline to "
       "--out",
       0,
       100000,
       {},
       false,
       true,
       "5"},
      {"dump-after",
       kText,
       "",
       "Looking inside",
       "print the graph after this pass (all = after each)",
       0,
       0,
       {},
       false},
      {"disable-pass", kList, "", "Looking inside", "switch optional passes off"},
      {"markdown",
       kSwitch,
       "false",
       "Looking inside",
       "ops: the matrix as Markdown",
       0,
       0,
       {},
       false},
  };
  return table;
}

const Flag* find_flag(const std::string& name) {
  for (const Flag& f : flag_table())
    if (name == f.name) return &f;
  return nullptr;
}

std::string check_value(const Flag& flag, const std::string& text) {
  const Range range{.low = flag.low, .high = flag.high};
  const auto in_range = [&](double v) {
    return flag.low >= flag.high || holds(range, v) ? "" : "expected " + text_of(range);
  };
  switch (flag.type) {
    case FlagType::kInt: {
      int64_t v = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
      const bool whole = error == std::errc() && end == text.data() + text.size();
      return whole ? in_range(static_cast<double>(v)) : "expected a whole number";
    }
    case FlagType::kNumber: {
      double v = 0;
      return parse_number(text, v) ? in_range(v) : "expected a number";
    }
    case FlagType::kSwitch:
      return text == "true" || text == "false" ? "" : "expected true or false";
    case FlagType::kChoice: {
      std::string all;
      for (const char* c : flag.choices) {
        if (text == c) return {};
        all += (all.empty() ? "" : ", ") + std::string(c);
      }
      return "expected one of " + all;
    }
    default: return {};
  }
}

std::string nearest_flag(const std::string& name) {
  std::vector<std::string> names;
  for (const Flag& f : flag_table()) names.emplace_back(f.name);
  return nearest_name(name, names);
}

std::string flags_help() {
  constexpr size_t kColumn = 30;
  std::string out, group;
  for (const Flag& f : flag_table()) {
    if (group != f.group) out += cat("\n", group = f.group, ":\n");
    std::string left = cat("  --", f.name), choices;
    for (const char* c : f.choices) choices += (choices.empty() ? "" : "|") + std::string(c);
    switch (f.type) {
      case FlagType::kChoice: left += choices.size() < 20 ? " " + choices : " NAME"; break;
      case FlagType::kInt: left += " N"; break;
      case FlagType::kNumber: left += " X"; break;
      case FlagType::kPath: left += " PATH"; break;
      case FlagType::kList: left += " A,B"; break;
      case FlagType::kParts: left += " TEXT"; break;
      case FlagType::kText: left += " TEXT"; break;
      case FlagType::kSwitch: break;
    }
    left += left.size() < kColumn ? std::string(kColumn - left.size(), ' ')
                                  : "\n" + std::string(kColumn, ' ');
    out += left + f.help;
    if (*f.fallback && std::string(f.fallback) != "false") out += cat(" [", f.fallback, "]");
    out += "\n";
    if (choices.size() >= 20) out += std::string(kColumn, ' ') + choices + "\n";
  }
  return out;
}

}  // namespace ortrain::cli
