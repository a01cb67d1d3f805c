// The trainable set: gradient paths, then what scalars and buffers look like, then the user's
// regexes, which win.
#include "graph/trainable.h"

#include <algorithm>

#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/lora.h"
#include "graph/name_regex.h"
#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {

bool matches_any(const std::vector<std::string>& regexes, std::string_view name) {
  return std::any_of(regexes.begin(), regexes.end(),
                     [&](const std::string& text) { return NameRegex(text).found_in(name); });
}

ValueId step_state(Graph& g) {
  for (ValueId v : g.sources(Source::kState))
    if (g.value(v).name == kStepName) return v;
  return g.add_state(HostTensor::scalar<int64_t>(0), kStepName);
}

namespace {

bool one_element(const Value& x) {
  return x.shape.is_const() && element_count(x.shape.values()) == 1;
}

// A one-element tensor that elementwise operators spread over real axes: the 0.5 of a formula. The
// bias of a layer with one output meets an axis of extent 1 instead.
bool acts_as_scalar(const Graph& g, ValueId v, int depth = 0) {
  if (!one_element(g.value(v)) || depth > 8) return false;
  bool spread = false;
  for (NodeId n : g.value(v).uses) {
    const Node& x = g.node(n);
    if (x.outputs.empty() || x.outputs[0] == kNone) return false;
    const Value& y = g.value(x.outputs[0]);
    if (one_element(y)) {
      if (!acts_as_scalar(g, x.outputs[0], depth + 1)) return false;
      spread = true;
      continue;
    }
    if (x.op->ew == Ew::kNone) return false;
    const int rank = g.value(v).shape.rank();
    for (int a = 1; a <= rank; ++a)
      if (y.shape[y.shape.rank() - a] == Dim(1)) return false;
    spread = true;
  }
  return spread;
}

// "0 and 1", or "0 and very negative": what attention and padding masks hold.
bool mask_contents(const HostTensor& t) {
  if (t.rank() < 2) return false;
  bool zero = false, one = false, low = false;
  for (int64_t i = 0; i < t.count(); ++i) {
    const double x = t.as_double(i);
    zero |= x == 0;
    one |= x == 1;
    low |= x <= -9999;
    if (x != 0 && x != 1 && x > -9999) return false;
  }
  return (zero && one && !low) || (low && !one);
}

bool all_zero(const HostTensor& t) {
  for (int64_t i = 0; i < t.count(); ++i)
    if (t.as_double(i) != 0) return false;
  return true;
}

// Whether the value only feeds inputs that records call initial_h, initial_c and the like, directly
// or moved about (other inputs constant) on the way: exporters write the zeros a recurrent layer
// starts from as float data.
bool only_starts_recurrence(const Graph& g, ValueId v, int depth = 0) {
  if (g.value(v).uses.empty() || depth > 8) return false;
  for (NodeId n : g.value(v).uses) {
    const Node& x = g.node(n);
    bool moves = x.op->ew == Ew::kNone && x.outputs.size() == 1 && x.outputs[0] != kNone;
    for (size_t i = 0; i < x.inputs.size(); ++i) {
      const ValueId in = x.inputs[i];
      if (in != v) {
        moves = moves && (in == kNone || g.value(in).source == Source::kConst);
        continue;
      }
      const size_t k = std::min(i, x.op->inputs.size() - 1);
      if (x.op->inputs[k].starts_with("initial_")) continue;
      if (!moves || i != 0) return false;
    }
    const bool starts_here =
        std::any_of(x.op->inputs.begin(), x.op->inputs.end(),
                    [](const std::string& name) { return name.starts_with("initial_"); });
    if (!starts_here && !(moves && only_starts_recurrence(g, x.outputs[0], depth + 1)))
      return false;
  }
  return true;
}

// Whether the value only feeds inputs whose names in the records end so: x_scale, y_scale (the
// scale of a quantized tensor), cos_cache, sin_cache, past_cache (tables of angles, caches of
// keys).
bool only_feeds(const Graph& g, ValueId v, std::string_view suffix) {
  if (g.value(v).uses.empty()) return false;
  for (NodeId n : g.value(v).uses) {
    const Node& x = g.node(n);
    for (size_t i = 0; i < x.inputs.size(); ++i) {
      if (x.inputs[i] != v) continue;
      std::string_view name = x.op->inputs[std::min(i, x.op->inputs.size() - 1)];
      while (name.ends_with('?') || name.ends_with('*')) name.remove_suffix(1);
      if (!name.ends_with(suffix)) return false;
    }
  }
  return true;
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

const char* const kBufferNames[] = {"position_ids",
                                    "anchor",
                                    "inv_freq",
                                    "token_type_ids",
                                    "mel_filter",
                                    "filter_bank",
                                    "filterbank",
                                    "fbank",
                                    "hann_window",
                                    "hamming",
                                    "window_fn",
                                    "freqs_cis",
                                    "sin_cached",
                                    "cos_cached",
                                    "running_mean",
                                    "running_var",
                                    "num_batches_tracked",
                                    "relative_position_index",
                                    "attn_mask",
                                    "attention_mask",
                                    "causal_mask",
                                    ".mask"};

}  // namespace

namespace {

constexpr const char* kFrozenByLora = "frozen by --lora; --train with its name trains it too";

// Why a tensor that could train does not by default; "" when it does.
std::string constant_reason(const Graph& g, ValueId v) {
  const Value& x = g.value(v);
  if (x.shape.rank() == 0) return "a scalar";
  if (acts_as_scalar(g, v)) return "one number used as a scalar";
  if (only_feeds(g, v, "_scale")) return "a quantization scale; --train with its name trains it";
  if (only_feeds(g, v, "_cache")) return "a table or cache; --train with its name trains it";
  const std::string name = lower(x.name);
  for (const char* word : kBufferNames)
    if (name.find(word) != std::string::npos && name.find("mask_token") == std::string::npos)
      return cat("looks like a buffer by its name ('", word, "')");
  if (only_starts_recurrence(g, v) && all_zero(*g.tensor(v)))
    return "the zeros that a recurrent layer starts from";
  if (mask_contents(*g.tensor(v))) return "looks like a mask by its contents";
  return {};
}

}  // namespace

ParamInfo judge(const Graph& g, ValueId v, const StepSpec& spec, bool on_path,
                const char* off_path) {
  const std::string& name = g.value(v).name;
  const auto known = g.params.find(v);
  const auto answer = [&](bool trains, std::string reason) {
    ParamInfo info = known == g.params.end() ? ParamInfo{} : known->second;
    info.trainable = trains;
    info.reason = std::move(reason);
    return info;
  };
  const bool wanted = matches_any(spec.train, name);
  if (matches_any(spec.freeze, name)) return answer(false, "frozen by --freeze");
  const bool adapter = spec.lora.rank > 0 && is_lora_name(name);
  if (adapter && on_path) return answer(true, "an adapter of --lora");
  if (!spec.train.empty() && !wanted && spec.lora.rank == 0)
    return answer(false, "not named by --train");
  if (g.value(v).uses.empty()) return answer(false, "not used");
  if (!on_path) return answer(false, off_path);
  if (wanted) return answer(true, "named by --train");
  const std::string reason = constant_reason(g, v);
  if (!reason.empty()) return answer(false, reason);
  if (spec.lora.rank > 0) return answer(false, kFrozenByLora);
  return answer(true, "float data on a gradient path");
}

std::string integer_weights(const Graph& g) {
  std::string names;
  int count = 0;
  for (NodeId n : g.topo()) {
    const Node& x = g.node(n);
    for (size_t i = 1; i < x.inputs.size() && i < x.op->inputs.size(); ++i) {
      const std::string& scale = x.op->inputs[i];
      const ValueId v = x.inputs[i - 1];
      if (!(scale.ends_with("_scale") || scale == "scales") || v == kNone) continue;
      const Value& data = g.value(v);
      if (data.source != Source::kConst || is_float(data.dtype) || data.shape.rank() < 2) continue;
      if (++count <= 5) names += cat(count > 1 ? ", " : "", g.describe_value(v));
    }
  }
  if (count == 0) return {};
  return cat(count,
             count == 1 ? " tensor is stored as integers and stays"
                        : " tensors are stored as integers and stay",
             " frozen: ", names, count > 5 ? ", ..." : "");
}

void decide_trainable(Graph& g, const std::vector<ValueId>& roots, PassContext& ctx) {
  const StepSpec& spec = ctx.spec;
  PerValue<bool> path = reaches(g, roots);
  std::string insisted;
  bool train_used = false, freeze_used = false;
  std::vector<ValueId> stopped;
  for (ValueId v : g.sources(Source::kParam))
    if (!path[v] && judge(g, v, spec, true, "").trainable) stopped.push_back(v);
  if (const std::vector<std::string> nodes = integers_between(g, roots, stopped);
      !stopped.empty() && !nodes.empty()) {
    std::string text;
    for (size_t i = 0; i < stopped.size() && i < 5; ++i)
      text += cat(i ? ", " : "", "'", g.value(stopped[i]).name, "'");
    text += cat(stopped.size() > 5 ? ", ..." : "", stopped.size() > 1 ? " are" : " is",
                " not trained: no gradient comes through integers");
    for (size_t i = 0; i < nodes.size() && i < 5; ++i) text += "\n  " + nodes[i];
    ctx.messages.push_back(text);
  }
  for (ValueId v : g.sources(Source::kParam)) {
    const std::string& name = g.value(v).name;
    const bool wanted = matches_any(spec.train, name), frozen = matches_any(spec.freeze, name);
    train_used |= wanted;
    freeze_used |= frozen;
    const ParamInfo info = g.params[v] = judge(g, v, spec, path[v], "does not reach the loss");
    if (wanted && !frozen && !info.trainable)
      insisted += cat(insisted.empty() ? "" : ", ", "'", name, "' (", info.reason, ")");
    const bool by_regex = frozen || info.reason == kFrozenByLora ||
                          (!spec.train.empty() && !wanted && spec.lora.rank == 0);
    if (!info.trainable && !by_regex && !g.value(v).uses.empty()) g.set_source(v, Source::kConst);
  }
  if (!insisted.empty())
    ctx.messages.push_back("--train names parameters that cannot train: " + insisted);
  if (!spec.train.empty() && !train_used)
    fail(ErrorCode::kUsage, "--train: no parameter has a name that matches");
  if (!spec.freeze.empty() && !freeze_used)
    fail(ErrorCode::kUsage, "--freeze: no parameter has a name that matches");
}

}  // namespace ortrain
