// OpDef: everything ortrain knows about one operator, in one record. One file in ops/ returns it.
//
// A missing gradient entry refuses to train; "no gradient" and "not differentiable" are written,
// never implied. Facts live here; no pass holds a list of operator names. Kernels are ordered best
// first, reference last.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace ortrain {

// --- inference
// --------------------------------------------------------------------------------------------------
// What an infer rule sees and sets. Missing optional inputs: has(i) is false.
class InferCtx {
 public:
  InferCtx(Graph& g, NodeId n) : g_(g), n_(n) {}
  const Node& node() const { return g_.node(n_); }
  const Attrs& attrs() const { return node().attrs; }
  int input_count() const { return static_cast<int>(node().inputs.size()); }
  int output_count() const { return static_cast<int>(node().outputs.size()); }
  bool has(int i) const {
    return i < input_count() && node().inputs[static_cast<size_t>(i)] != kNone;
  }
  DType dtype(int i) const { return input(i).dtype; }
  const Shape& shape(int i) const { return input(i).shape; }
  int rank(int i) const { return input(i).shape.rank(); }
  const HostTensor* constant(int i) const;  // contents if input i is a constant, else null
  // Contents of a small integer input, elementwise, if known now (a constant or a carried shape).
  std::optional<std::vector<Dim>> ints(int i) const;
  // The same, required: throws Error(kUnsupported) "… must be known before training" otherwise.
  std::vector<Dim> need_ints(int i, std::string_view what) const;
  void out(int i, DType dtype, Shape shape);        // ignored when output i is not wanted
  void out_ints(int i, std::vector<Dim> contents);  // after out(): the output's contents are known
  Dim fresh(std::string_view hint) const;           // an extent that depends on data
  [[noreturn]] void fail(
      const std::string& message) const;  // Error(kShape); the caller adds the node

 private:
  const Value& input(int i) const;
  Graph& g_;
  NodeId n_;
};
using InferFn = void (*)(InferCtx&);

// Ready-made rules.
void infer_same_as_first(InferCtx&);  // output 0 has dtype and shape of input 0
void infer_broadcast(
    InferCtx&);  // output 0: dtype of input 0, broadcast of all inputs; dtypes must agree
void infer_compare(InferCtx&);  // the same with dtype bool

// --- gradient
// ---------------------------------------------------------------------------------------------------
// What a gradient formula sees: the node's inputs, outputs and output gradients as expressions.
struct Grad {
  Builder b;                        // adds nodes with origin "<node>|autodiff"
  NodeId n;                         // the node being differentiated
  int index;                        // the input asked for (matters for variadic inputs)
  const std::vector<ValueId>& dys;  // gradient of each output, kNone when nothing flows into it

  const Node& node() const;
  const Attrs& attrs() const { return node().attrs; }
  bool has_x(int i) const;
  bool has_y(int i) const;
  bool has_dy(int i) const;
  Expr x(int i);
  Expr x() { return x(index); }
  Expr y(int i = 0);
  Expr dy(int i = 0);  // zeros when nothing flows into output i
};
using GradFn = Expr (*)(Grad&);  // an empty Expr means: no gradient flows to this input

struct GradRule {
  enum class Kind : uint8_t { kFormula, kZero, kRefused };
  std::string input;  // name in OpDef::inputs, without '?' or '*'
  Kind kind = Kind::kFormula;
  GradFn formula = nullptr;
  std::string why;  // kRefused: the reason told to the user
};
// The result of autodiff is summed to x's shape where the op broadcast it: formulas need not care.
inline GradRule grad(std::string input, GradFn f) {
  return {std::move(input), GradRule::Kind::kFormula, f, {}};
}
inline GradRule no_grad(std::string input) {
  return {std::move(input), GradRule::Kind::kZero, nullptr, {}};
}
inline GradRule not_differentiable(std::string input, std::string why) {
  return {std::move(input), GradRule::Kind::kRefused, nullptr, std::move(why)};
}

// --- meaning in simpler operators
// ------------------------------------------------------------------------------- Rebuilds the node
// from simpler ops; returns one Expr per output (empty for outputs not wanted).
struct Decompose {
  Builder b;
  NodeId n;
  const Node& node() const;
  const Attrs& attrs() const { return node().attrs; }
  bool has_x(int i) const;
  Expr x(int i = 0);
  bool wants(int output) const;
};
using DecomposeFn = std::vector<Expr> (*)(Decompose&);

// --- older opsets
// -----------------------------------------------------------------------------------------------
// A node as the file has it; adapt brings it to today's form in place (rename, move attributes to
// constant inputs, fill defaults that changed). `constant` adds a constant input to the graph being
// imported.
struct RawNode {
  Graph& g;
  int opset;       // of the node's domain
  std::string op;  // "Softmax", "com.microsoft.Gelu"
  std::vector<ValueId> inputs;
  std::vector<bool> wanted;  // per output
  Attrs attrs;
  ValueId constant(HostTensor t) { return g.add_const(std::move(t)); }
  void set_input(size_t i, ValueId v) {
    if (inputs.size() <= i) inputs.resize(i + 1, kNone);
    inputs[i] = v;
  }
  // Moves a list attribute to input i as an i64 constant, when present.
  void ints_to_input(const char* attr, size_t i);
};
using AdaptFn = void (*)(RawNode&);

// --- training policy
// -------------------------------------------------------------------------------------------
// How an op behaves while training, decided by canonicalize and applied by the op itself (no pass
// holds a list of op names).
struct TrainingPolicy {
  bool training = false;       // loss and gradients are computed; false: inference behaviour
  bool update_states = false;  // training with an optimizer: running statistics become StateUpdates
  bool batch_norm_frozen = false;  // training, but norms use their running statistics
  bool as_written = false;         // training_mode in the file decides for each node, not the run
  uint64_t seed = 0;
  ValueId step = kNone;  // i64 scalar state kStepName; kNone unless training
};
// Called once per node, on a typed graph, in topological order. It may edit the node in place
// (attributes, outputs; then g.infer(n)), add nodes, StateUpdates (g.add_update: the optimizer pass
// guards them, so that a skipped step changes nothing), or replace_uses() of every output: nodes
// left without users are erased afterwards.
using TrainingPolicyFn = void (*)(Graph&, NodeId, const TrainingPolicy&);

// --- layout
// -------------------------------------------------------------------------------------------------
// Rewrites attributes and side inputs of a typed node so that it takes and gives channels-last data
// ([N, spatial..., C]); says which inputs and outputs that are. The layout pass rewires and infers.
// nullopt, with the node unchanged, where that cannot be. Ops with `ew` need none.
struct LayoutChange {
  std::vector<int> inputs, outputs;
};
using ChannelsLastFn = std::optional<LayoutChange> (*)(Graph&, NodeId);

// --- kernels
// ----------------------------------------------------------------------------------------------------
struct KernelQuery;  // runtime/kernel.h
struct Kernel;       // runtime/kernel.h
struct KernelEntry {
  const char* device;                         // "cpu", "cuda"
  const char* name;                           // "onednn", "simd", "ref"
  std::string (*reject)(const KernelQuery&);  // "" accepts; null accepts everything
  Kernel (*prepare)(const KernelQuery&);
};

// --- facts
// ------------------------------------------------------------------------------------------------------
enum class Precision : uint8_t {
  kAlways16,
  kFollow,
  kNever16
};                                                     // what cast_precision does with the op
enum class Pad : uint8_t { kNo, kZeroToZero, kRows };  // whether padded lanes stay exact zeros

// Elementwise primitives of the fused engine (ops/fused_elementwise.cc). An op with such a code is
// fused into chains; other elementwise ops give `decompose` into ops that have one. A binary code
// on an op with n inputs folds from the left; a unary code looks at the first input only (its
// output shape may be larger: Expand). Names, arity and program text: graph/ew.h; meaning:
// ops/common/ew_scalar.h.
enum class Ew : uint8_t {
  kNone,
  kIdentity,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMin,
  kMax,
  kMod,
  kNeg,
  kAbs,
  kSign,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kLog,
  kExpm1,
  kLog1p,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kErf,
  kSoftplus,
  kRelu,
  kFloor,
  kCeil,
  kRound,
  kTrunc,
  kEqual,
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kNot,
  kAnd,
  kOr,
  kXor,
  kWhere,
  kCast,
  kGelu,
  kGeluGrad,
  kGeluTanh,
  kGeluTanhGrad,
  kReluGrad,
  kIsNan,
  kIsInf,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kFmod,       // sign of the dividend (C); kMod has the sign of the divisor (Python)
  kToBool,     // x != 0 as 0 or 1
  kLeakyRelu,  // (x, alpha)
  kBitAnd,
  kBitOr,
  kBitXor,
  kBitNot,
  kShiftLeft,
  kShiftRight,
  kCount,  // not a code
};

// One input of an example: random floats in a range, given integers, or absent.
struct ExampleInput {
  enum class Kind : uint8_t { kFloat, kInts, kFloats, kBool, kAbsent };
  Kind kind = Kind::kFloat;
  Dims dims;
  double low = -2, high = 2;        // kFloat; kInts without values: range [low, high)
  std::vector<double> values;       // kInts, kFloats, kBool: contents (else random)
  bool constant = false;            // known before training (shapes, axes)
  DType dtype = DType::kUndefined;  // of this type, whatever the kind says (typed())
};
ExampleInput f(Dims dims, double low = -2, double high = 2);
ExampleInput floats(Dims dims, std::vector<double> values);
ExampleInput ints(Dims dims, int64_t low, int64_t high);      // random integers in [low, high), i64
ExampleInput ivals(std::vector<int64_t> values);              // constant 1-D i64
ExampleInput iconst(Dims dims, std::vector<int64_t> values);  // constant i64
ExampleInput bools(Dims dims);
ExampleInput absent();
ExampleInput typed(DType dtype, ExampleInput e);  // u8 and i8 data, f8 zero points, ...

// A sample use of the op; the generic test engine, the gradient check and the support matrix run
// them all.
struct Example {
  std::vector<ExampleInput> in;
  Attrs attrs = {};
  int outputs = 1;
  bool check_grad = true;  // false only with a reason in `note`
  std::string note = {};
};

struct OpDef {
  std::string name;                  // "Tanh", "com.microsoft.Gelu", "ortrain.AdamW"
  std::vector<std::string> inputs;   // "x", "bias?" optional, "xs*" variadic (last only)
  std::vector<std::string> outputs;  // "y", "mask?"
  int since = 1;                     // first opset of this operator (its own domain)
  InferFn infer = nullptr;
  std::vector<GradRule> grad = {};
  DecomposeFn decompose = nullptr;
  AdaptFn adapt = nullptr;
  TrainingPolicyFn training_policy = nullptr;  // BatchNormalization, Dropout; most ops have none
  Ew ew = Ew::kNone;
  ChannelsLastFn channels_last = nullptr;  // layout pass: what it does to the node
  bool wants_channels_last = false;        // worth transposing its data; others follow their input
  bool view = false;     // output 0 is input 0's memory under another shape; no kernel runs
  bool random = false;   // never folded, never merged
  bool storage = false;  // takes and gives storage types (f8 kinds, f4, i4, ...: dtype.h)
  bool fold = true;      // may be evaluated before training when all inputs are constant
  Precision precision = Precision::kFollow;
  Pad pad = Pad::kNo;
  std::vector<std::pair<int, int>> inplace = {};  // output i may overwrite input j (same bytes)
  std::vector<int> state_inputs = {};  // float data of the file read here is running state, not a
                                       // parameter (BatchNormalization mean and variance)
  std::function<double(const Graph&, const Node&)> flops =
      {};  // multiply and add count 2; absent = 0
  std::vector<KernelEntry> kernels = {};
  std::vector<Example> examples = {};
  std::string note = {};  // edge-value choices, shown in the support matrix

  // Index of the rule and name for input i (variadic inputs share the last).
  const GradRule* grad_rule(int input) const;
  bool differentiable() const;  // some input has a formula (or a decomposition gives one)
};

class OpTable {
 public:
  void add(OpDef op);  // aborts on a duplicate name
  const OpDef* find(std::string_view name) const;
  const OpDef& get(
      std::string_view name) const;       // aborts when missing: for ops that passes rely on
  std::vector<const OpDef*> all() const;  // by name
  std::vector<std::string> nearest(std::string_view name,
                                   int count = 3) const;  // for error messages

 private:
  std::map<std::string, std::unique_ptr<OpDef>, std::less<>> ops_;
};

}  // namespace ortrain
