// See optimizer_flags.h.
#include "runtime/cli/optimizer_flags.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "graph/error.h"
#include "runtime/cli/unused.h"
#include "runtime/cli/words.h"

namespace ortrain::cli {
namespace {

// One key=value argument: where it goes and what it may be.
struct Argument {
  const char* name;
  std::vector<const char*> of;  // optimizers or schedules that have it
  double low, high;
  std::function<void(double)> set;
  bool whole = false;
};

double value_of(const std::string& flag, const Argument& a, const std::string& text) {
  if (text == "true" || text == "false") return text == "true" ? 1 : 0;
  return number_in(cat(flag, ": ", a.name), text, {.low = a.low, .high = a.high, .whole = a.whole});
}

void read_arguments(const std::string& flag, const std::vector<std::string>& given,
                    const std::string& chosen, const std::vector<Argument>& known) {
  const auto has = [&](const Argument& a) {
    return std::any_of(a.of.begin(), a.of.end(), [&](const char* name) { return chosen == name; });
  };
  std::string names;
  for (const Argument& a : known)
    if (has(a)) names += (names.empty() ? "" : ", ") + std::string(a.name);
  std::vector<std::string> seen;
  for (const std::string& text : given) {
    const auto [key, value] = key_value(flag, text);
    give_once(flag, key, seen);
    const auto it = std::find_if(known.begin(), known.end(),
                                 [&, k = key](const Argument& a) { return k == a.name && has(a); });
    if (it == known.end())
      fail(ErrorCode::kUsage, flag, ": ", chosen, " has no argument '", key, "'",
           names.empty() ? "" : "; it has " + names);
    it->set(value_of(flag, *it, value));
  }
}

constexpr double kMax = 1e12;

void read_optimizer_arguments(OptimizerSpec& o, std::vector<std::string> given) {
  std::erase_if(given, [&](const std::string& text) {  // the only one that is no number
    const auto [key, value] = key_value("--optimizer-args", text);
    if (key != "adjust_lr_fn" || o.name != "muon") return false;
    if (value != "original" && value != "match_rms_adamw" && value != "spectral_unclamped")
      fail(ErrorCode::kUsage, "--optimizer-args: adjust_lr_fn = '", value,
           "': expected original, match_rms_adamw or spectral_unclamped");
    o.adjust_lr_fn = value;
    return true;
  });
  const std::vector<Argument> known = {
      {"amsgrad", {"adam", "adamw"}, 0, 1, [&](double v) { o.amsgrad = v != 0; }, true},
      {"alpha", {"rmsprop"}, 0, 1, [&](double v) { o.alpha = v; }},
      {"centered", {"rmsprop"}, 0, 1, [&](double v) { o.centered = v != 0; }, true},
      {"lr_decay", {"adagrad"}, 0, kMax, [&](double v) { o.lr_decay = v; }},
      {"initial_accumulator_value",
       {"adagrad"},
       0,
       kMax,
       [&](double v) { o.initial_accumulator_value = v; }},
      {"beta2_decay", {"adafactor"}, -100, 0, [&](double v) { o.beta2_decay = v; }},
      {"eps1", {"adafactor"}, 0, 1, [&](double v) { o.eps1 = v; }},
      {"eps2", {"adafactor"}, 0, kMax, [&](double v) { o.eps2 = v; }},
      {"d", {"adafactor"}, 1, kMax, [&](double v) { o.d = v; }},
      {"ns_steps", {"muon"}, 1, 99, [&](double v) { o.ns_steps = static_cast<int64_t>(v); }, true},
  };
  read_arguments("--optimizer-args", given, o.name, known);
}

void read_schedule_arguments(OptimizerSpec& o, const std::vector<std::string>& given) {
  const std::vector<Argument> known = {
      {"power", {"polynomial"}, 0, 1000, [&](double v) { o.power = v; }},
      {"step_size",
       {"step"},
       1,
       9e15,
       [&](double v) { o.step_size = static_cast<int64_t>(v); },
       true},
      {"gamma", {"step"}, 0, kMax, [&](double v) { o.gamma = v; }},
      {"pct_start", {"one_cycle"}, 0, 1, [&](double v) { o.pct_start = v; }},
      {"div_factor", {"one_cycle"}, 1e-12, kMax, [&](double v) { o.div_factor = v; }},
      {"final_div_factor", {"one_cycle"}, 1e-12, kMax, [&](double v) { o.final_div_factor = v; }},
  };
  read_arguments("--schedule-args", given, o.schedule, known);
}

}  // namespace

std::vector<ParamGroup> parse_groups(const std::string& text) {
  std::vector<ParamGroup> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ';');) {
    part = trimmed(part);
    if (part.empty()) continue;
    const size_t colon = part.rfind(':');
    if (colon == std::string::npos || colon == 0)
      fail(ErrorCode::kUsage, "--group '", part,
           "': expected REGEX:NAME=VALUE,... with lr, lr-factor or weight-decay");
    ParamGroup group{.regex = trimmed(part.substr(0, colon))};
    const std::string flag = "--group " + group.regex;
    std::istringstream settings(part.substr(colon + 1));
    std::vector<std::string> seen;
    for (std::string setting; std::getline(settings, setting, ',');) {
      const auto [key, value] = key_value(flag, setting);
      give_once(flag, key, seen);
      double* target = key == "lr"             ? &group.lr
                       : key == "lr_factor"    ? &group.lr_factor
                       : key == "weight_decay" ? &group.weight_decay
                                               : nullptr;
      if (!target)
        fail(ErrorCode::kUsage, flag, ": '", key,
             "' is no setting of a group; there are lr, lr-factor, weight-decay");
      *target = value_of(flag, {key.c_str(), {}, 0, 1e6, {}}, value);
    }
    if (seen.empty())
      fail(ErrorCode::kUsage, flag, ": expected lr, lr-factor or weight-decay behind the ':'");
    out.push_back(group);
  }
  return out;
}

OptimizerSpec optimizer_spec(const Config& k) {
  OptimizerSpec o;
  o.name = k.text("optimizer");
  refuse_unused_optimizer_flags(k);
  const bool muon = o.name == "muon";
  o.lr = k.number("lr");
  o.momentum = k.has("momentum") ? k.number("momentum") : muon ? 0.95 : 0;
  o.dampening = k.number("dampening");
  o.nesterov = k.is_default("nesterov") ? muon : k.on("nesterov");
  if (o.name == "lion") o.beta2 = 0.99;
  if (k.has("betas")) {
    const std::vector<std::string> betas = k.list("betas");
    if (betas.size() != 2 || !parse_number(betas[0], o.beta1) || !parse_number(betas[1], o.beta2) ||
        o.beta1 < 0 || o.beta1 >= 1 || o.beta2 < 0 || o.beta2 >= 1)
      fail(ErrorCode::kUsage, "--betas '", k.text("betas"),
           "': expected two numbers in [0, 1), such as 0.9,0.999");
  }
  if (o.name == "sgd" && o.nesterov && (o.momentum <= 0 || o.dampening != 0))
    fail(ErrorCode::kUsage, "--nesterov needs --momentum above 0 and --dampening 0");
  o.eps = k.has("eps")          ? k.number("eps")
          : o.name == "adagrad" ? 1e-10
          : o.name == "lamb"    ? 1e-6
                                : 1e-8;
  o.weight_decay = k.number("weight-decay");
  o.no_decay = k.list("no-decay");
  read_optimizer_arguments(o, k.list("optimizer-args"));
  o.groups = parse_groups(k.text("group"));
  o.layer_lr_decay = k.number("layer-lr-decay");
  o.clip_norm = k.number("clip-norm");
  o.clip_value = k.number("clip-value");
  o.ema = k.number("ema");
  o.schedule = k.text("schedule");
  o.warmup_steps = k.integer("warmup");
  o.min_lr = k.number("min-lr");
  read_schedule_arguments(o, k.list("schedule-args"));
  return o;
}

}  // namespace ortrain::cli
