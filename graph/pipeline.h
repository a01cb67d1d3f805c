// The whole path from an imported forward graph to a scheduled training step: options in, graph
// out.
//
// compile() binds symbols to numbers first (every pass sees integers), then runs THE ordered list
// of passes (pipeline.cc), each followed by verify. A plan belongs to one binding; another batch
// size compiles again.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// What the step computes.
enum class Mode : uint8_t {
  kTrain,    // loss, backward, optimizer
  kGrads,    // loss and one output "grad/NAME" per trainable parameter, no update
  kEval,     // loss (when labels are there) and the model's own outputs, inference-mode norms, no
             // dropout
  kPredict,  // the model's own outputs only
};

struct LossSpec {
  std::string kind = "auto";  // one of loss_kinds(), the one list of them
                              // (passes/losses.h)
  std::string output;         // model output it applies to; "" = the first float one
  std::string label;          // name of the label array
  DType label_dtype = DType::kUndefined;
  Dims label_dims;  // with the batch axis bound; from the data set
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double huber_delta = 1;
  double focal_gamma = 2;
  int64_t blank = 0;  // ctc: the class that means nothing
  double factor = 1;  // of this loss in the sum of several
  // cross_entropy, nll: one per class. bce, bce_with_logits: how much a positive counts, one for
  // all or one per score. Empty: 1 everywhere.
  std::vector<double> class_weights;
  bool balance = false;  // class_weights come from the training data (runtime/class_weights.h)
};

// Parameters that are updated in their own way; the first group whose regex is found in a name
// counts.
struct ParamGroup {
  std::string regex;
  double lr = -1;            // negative: the run's; the schedule scales it alike
  double lr_factor = 1;      // times the run's
  double weight_decay = -1;  // negative: the run's; no_decay still wins
};

// PyTorch's meanings and defaults, unless the name says otherwise.
struct OptimizerSpec {
  std::string name = "adamw";  // sgd, adam, adamw, adagrad, rmsprop, lamb, lion, adafactor, muon
  double lr = 1e-3;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool amsgrad = false;                                     // adam, adamw
  double alpha = 0.99;                                      // rmsprop
  bool centered = false;                                    // rmsprop
  double lr_decay = 0, initial_accumulator_value = 0;       // adagrad
  double beta2_decay = -0.8, eps1 = 0, eps2 = 1e-3, d = 1;  // adafactor; eps1 0: the dtype's
  int64_t ns_steps = 5;                                     // muon: Newton-Schulz
  std::string adjust_lr_fn = "match_rms_adamw";             // muon; original, spectral_unclamped
  double weight_decay = 0;  // L2 into the gradient for sgd, adam, adagrad, rmsprop; else decoupled
  std::vector<std::string>
      no_decay;  // regexes over parameter names; the special word "norm_bias" = 1-D parameters
  std::vector<ParamGroup> groups;
  double layer_lr_decay = 1;          // lr factor from each layer to the one before it
  double clip_norm = 0;               // global norm; 0 = off
  double clip_value = 0;              // largest magnitude of a gradient, after clip_norm; 0 = off
  double ema = 0;                     // decay of averages "P/ema" of the parameters; 0 = none
  std::string schedule = "constant";  // ortrain.LearningRate says what there is
  int64_t warmup_steps = 0,
          total_steps = 0;  // linear warm-up from 0; decay reaches min_lr at total_steps
  double min_lr = 0;
  double power = 1;                                                 // polynomial
  int64_t step_size = 0;                                            // step
  double gamma = 0.1;                                               // step
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;  // one_cycle
};

// Adapters beside 2-D weights (graph/lora.h).
struct LoraSpec {
  int64_t rank = 0;  // 0 = off
  double alpha = 0;
  double dropout = 0;                // of what the adapters read
  std::vector<std::string> targets;  // regexes over names of weights or nodes; empty = all that can
  double scale() const { return alpha / static_cast<double>(rank); }
};

// Where a program stands in the window of micro-batches that make one update.
struct WindowSpec {
  enum class Phase : uint8_t {
    kOnly,    // the window is this one batch
    kFirst,   // its gradients start the sums
    kMiddle,  // they are added
    kLast,    // they are added, and the update follows
    kCount    // with kEval: only the targets of each loss, outputs "targets/OUTPUT" if they vary
  };
  Phase phase = Phase::kOnly;
  int64_t accumulate = 1;  // micro-batches of a full window
  int64_t samples = 0;     // of this micro-batch; 0 = as many as `nominal`
  int64_t nominal = 0;     // of a full one; a micro-batch weighs targets / targets of a full one
};

// Gradients are computed of the loss times a scale, so that they do not underflow, and divided by
// it before anything looks at them.
struct LossScaleSpec {
  enum class Kind : uint8_t { kOff, kStatic, kDynamic };
  Kind kind = Kind::kOff;
  // Dynamic: times `growth` after `interval` good steps in a row, over `growth` after a step whose
  // gradients are not finite, within [min, max].
  double init = 65536, growth = 2, min = 1, max = 16777216;
  int64_t interval = 2000;
};

// What is made again in backward instead of being kept from forward (pass recompute).
struct RecomputeSpec {
  std::string mode = "off";  // off; auto: the cheapest that fits; sqrt: all but checkpoints
  size_t arena_bytes = 0;    // auto: what activations, gradients and scratch may take; 0 = no limit
  bool budgeted() const { return mode == "auto" && arena_bytes > 0; }
};

struct StepSpec {
  Mode mode = Mode::kTrain;
  Binding binding;  // symbol -> value, all symbols of the inputs
  std::map<std::string, Dims>
      input_dims;  // bound shapes by input name; symbols are derived from them too
  // Dropout while training: negative = as the file has it, 0 = none, else the ratio of every one,
  // put where blocks usually have it too. Exactly what the pass does: passes/dropout.cc.
  double dropout = -1;
  LossSpec loss;
  std::vector<LossSpec> more_losses;  // added to it; each names its output
  std::vector<LossSpec> losses() const {
    std::vector<LossSpec> all{loss};
    all.insert(all.end(), more_losses.begin(), more_losses.end());
    return all;
  }
  OptimizerSpec optimizer;
  WindowSpec window;
  LossScaleSpec loss_scale;
  DType compute = DType::kF32;       // of parameters, states and the loss; kF64 for checking
  DType narrow = DType::kUndefined;  // kBF16, kF16: what cast_precision computes in
  bool tf32 = false;                 // products of numbers rounded to tf32
  RecomputeSpec recompute;
  int64_t pad_multiple = 0;  // extents of products are rounded up to it; 0 = not
  uint64_t seed = 0;
  std::string batch_norm = "train";  // train | frozen
  bool file_modes = false;  // norms and dropout do what their training_mode in the file says, in
                            // every mode; running variance then is ONNX's, not PyTorch's
  bool skip_nonfinite =
      true;            // the update is skipped, and no state changes, when the loss is not finite
  bool watch = false;  // kTrain: the gradients and what unscales them are outputs, too
  // Such a step ends the run: where a memory budget is short, a parameter whose own gradient is
  // finite, as the loss, is updated all the same.
  bool stop_at_nonfinite = false;
  LoraSpec lora;
  std::vector<std::string> train, freeze;  // regexes over parameter names
  std::set<std::string> disabled;          // pass names
};

// One line per pass: what it did. Shown by `inspect --passes`.
struct PassNote {
  std::string pass;
  std::string why;  // the reason the pass exists
  std::string did;  // "12 nodes fused into 3", "" = nothing
  double ms = 0;
};

// Evaluates one node whose inputs are all constants; false when it cannot. Provided by the runtime
// (graph/ has no kernels); without one, only integer shape chains fold.
using Evaluate = std::function<bool(const Graph&, NodeId, std::vector<HostTensor>& outputs)>;

// What pass recompute asks about memory and time. Provided by the runtime; without one, costs are
// guessed from shapes and the arena is its lower bound.
class MemoryModel {
 public:
  struct Cost {
    double ms = 0;
    size_t workspace = 0;  // bytes
  };
  virtual ~MemoryModel() = default;
  // Replaces nodes that no kernel accepts, so that what is planned is what will run.
  virtual void lower(Graph& g) = 0;
  virtual Cost cost(const Graph& g, NodeId n) = 0;         // measured on this machine
  virtual size_t arena_bytes(const Graph& scheduled) = 0;  // exactly what its plan will take
};

struct RecomputeReport {
  size_t arena_before = 0, arena_after = 0;  // bytes
  double step_ms = 0, extra_ms = 0;          // predicted: the step without, what is added
  int copies = 0;                            // nodes that run again
  // No order and no recomputation gets the arena below what this node needs; 0 = not asked.
  size_t bound = 0;
  std::string bound_node = {};
};

struct PassContext {
  const StepSpec& spec;
  const Evaluate& evaluate;
  std::vector<std::string>& messages;  // said to the user once, before step 1
  std::string did;                     // the pass writes its PassNote here
  MemoryModel* memory = nullptr;
  RecomputeReport recompute = {};
};

enum class Switch : uint8_t { kNeeded, kMayBeOff };  // --disable-pass

struct Pass {
  const char* name;
  const char* why;
  void (*run)(Graph&, PassContext&);
  bool (*wanted)(const StepSpec&);  // null = always
  Switch can_disable;
};
// THE ordered list.
const std::vector<Pass>& passes();

struct CompileResult {
  Graph graph;
  std::vector<PassNote> notes;
  std::vector<std::string> messages;
  RecomputeReport recompute = {};
};
struct CompileOptions {
  Evaluate evaluate;
  std::function<void(const std::string& pass, const Graph&)> after_pass;  // --dump-after
  // Stop after this pass; "" = run all. With `until` up to check_trainable, sizes that the data set
  // would give may stay open (symbolic).
  std::string until;
  MemoryModel* memory = nullptr;
};
// `source` is the imported graph; it stays unchanged and must outlive the result (constants are
// views into it). Outputs of the result: kTrain: "loss"; kGrads: "loss", "grad/NAME"...; kEval:
// "loss" if any, then the model's own; kPredict: the model's own. Several losses add
// "loss/OUTPUT" each; kEval adds what a mean was divided by where that is not the number of
// samples: "loss/divisor" or "loss/OUTPUT/divisor". Throws Error(kUnsupported) listing every
// problem at once.
CompileResult compile(const Graph& source, const StepSpec& spec,
                      const CompileOptions& options = {});

// Symbols of the model's inputs that the given input shapes determine; throws Error(kShape) listing
// what does not fit.
Binding bind_inputs(const Graph& source, const std::map<std::string, Dims>& input_dims);

// Names of what the optimizer keeps for parameter P: "P/" and PyTorch's name ("P/exp_avg"; sgd:
// "P/momentum"), and "P/ema"; the step counter is "ortrain/step" (i64 scalar, number of updates
// applied).
inline constexpr const char* kStepName = "ortrain/step";
inline constexpr const char* kEmaSuffix = "/ema";
// Dynamic loss scaling: the scale of the next step (f32), good steps since it changed, steps
// skipped because of an overflow (i64 scalars).
inline constexpr const char* kLossScaleName = "ortrain/loss_scale";
inline constexpr const char* kGoodStepsName = "ortrain/good_steps";
inline constexpr const char* kSkippedName = "ortrain/skipped";
// States that a window of micro-batches starts anew: dead between steps, in no checkpoint.
inline constexpr const char* kWindowPrefix = "ortrain/window/";
// Of several losses, with ignored targets: states kWindowTargets + OUTPUT hold the targets of the
// whole window (f64, in those of a full micro-batch) before its first micro-batch runs.
inline constexpr const char* kWindowTargets = "ortrain/window/targets/";

}  // namespace ortrain
