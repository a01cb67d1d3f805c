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
  std::string kind = "auto";  // graph, cross_entropy, mse, l1, huber, smooth_l1, bce,
                              // bce_with_logits, nll, kl_div, focal, dice, ctc
  std::string output;         // model output it applies to; "" = the first float one
  std::string label;          // name of the label array
  DType label_dtype = DType::kUndefined;
  Dims label_dims;  // with the batch axis bound; from the data set
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double huber_delta = 1;
  double focal_gamma = 2;
  int64_t blank = 0;  // ctc: the class that means nothing
};

// PyTorch's meanings and defaults, unless the name says otherwise.
struct OptimizerSpec {
  std::string name = "adamw";  // sgd, adam, adamw
  double lr = 1e-3;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // L2 into the gradient for sgd and adam, decoupled for adamw
  std::vector<std::string>
      no_decay;  // regexes over parameter names; the special word "norm_bias" = 1-D parameters
  double clip_norm = 0;               // global norm; 0 = off
  std::string schedule = "constant";  // constant, linear, cosine
  int64_t warmup_steps = 0,
          total_steps = 0;  // linear warm-up from 0; decay reaches min_lr at total_steps
  double min_lr = 0;
};

struct StepSpec {
  Mode mode = Mode::kTrain;
  Binding binding;  // symbol -> value, all symbols of the inputs
  std::map<std::string, Dims>
      input_dims;  // bound shapes by input name; symbols are derived from them too
  LossSpec loss;
  OptimizerSpec optimizer;
  DType compute = DType::kF32;       // of parameters, states and the loss; kF64 for checking
  DType narrow = DType::kUndefined;  // kBF16, kF16: what cast_precision computes in
  bool tf32 = false;                 // products of numbers rounded to tf32
  uint64_t seed = 0;
  std::string batch_norm = "train";  // train | frozen
  bool file_modes = false;  // norms and dropout do what their training_mode in the file says, in
                            // every mode; running variance then is ONNX's, not PyTorch's
  bool skip_nonfinite =
      true;  // the update is skipped, and no state changes, when the loss is not finite
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

struct PassContext {
  const StepSpec& spec;
  const Evaluate& evaluate;
  std::vector<std::string>& messages;  // said to the user once, before step 1
  std::string did;                     // the pass writes its PassNote here
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
};
struct CompileOptions {
  Evaluate evaluate;
  std::function<void(const std::string& pass, const Graph&)> after_pass;  // --dump-after
  // Stop after this pass; "" = run all. With `until` up to check_trainable, sizes that the data set
  // would give may stay open (symbolic).
  std::string until;
};
// `source` is the imported graph; it stays unchanged and must outlive the result (constants are
// views into it). Outputs of the result: kTrain: "loss"; kGrads: "loss", "grad/NAME"...; kEval:
// "loss" if any, then the model's own; kPredict: the model's own. Throws Error(kUnsupported)
// listing every problem at once.
CompileResult compile(const Graph& source, const StepSpec& spec,
                      const CompileOptions& options = {});

// Symbols of the model's inputs that the given input shapes determine; throws Error(kShape) listing
// what does not fit.
Binding bind_inputs(const Graph& source, const std::map<std::string, Dims>& input_dims);

// Names of what the optimizer keeps for parameter P: "P/exp_avg", "P/exp_avg_sq", "P/momentum"; the
// step counter is "ortrain/step" (i64 scalar, number of updates applied).
inline constexpr const char* kStepName = "ortrain/step";

}  // namespace ortrain
