// See losses.h.
#include "runtime/cli/losses.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/passes/losses.h"
#include "graph/spelling.h"
#include "runtime/cli/flags.h"
#include "runtime/cli/unused.h"
#include "runtime/cli/words.h"

namespace ortrain::cli {
namespace {

constexpr Range kFactor{.low = 0, .high = 1e30};

void check_kind(const std::string& kind, const std::string& term) {
  std::vector<std::string> known;
  std::string all;
  for (const char* k : loss_kinds()) {
    if (kind == k) return;
    known.emplace_back(k);
    all += (all.empty() ? "" : ", ") + known.back();
  }
  const std::string near = nearest_name(kind, known);
  fail(ErrorCode::kUsage, "--loss '", term, "': expected one of ", all,
       near.empty() ? "" : "; did you mean " + near + "?");
}

// [OUTPUT:]KIND[(LABEL)][*FACTOR]; the output may hold colons.
LossSpec read_term(const std::string& term, LossSpec loss) {
  const std::string where = cat("--loss '", term, "'");
  std::string rest = term;
  if (const size_t star = rest.rfind('*');
      star != std::string::npos && rest.find(')', star) == std::string::npos) {
    loss.factor = number_in(where, trimmed(rest.substr(star + 1)), kFactor);
    rest = trimmed(rest.substr(0, star));
  }
  if (rest.ends_with(')')) {
    const size_t open = rest.find('(');
    if (open == std::string::npos) fail(ErrorCode::kUsage, where, ": ')' without '('");
    loss.label = trimmed(rest.substr(open + 1, rest.size() - open - 2));
    rest = trimmed(rest.substr(0, open));
  }
  if (const size_t colon = rest.rfind(':'); colon != std::string::npos) {
    const std::string output = trimmed(rest.substr(0, colon));
    if (!loss.output.empty() && loss.output != output)
      fail(ErrorCode::kUsage, where, " and --output ", loss.output, " name different outputs");
    loss.output = output;
    rest = trimmed(rest.substr(colon + 1));
  }
  loss.kind = rest;
  check_kind(loss.kind, term);
  return loss;
}

void read_weights(const std::string& text, std::vector<LossSpec>& losses) {
  const auto read = [](const std::string& values, LossSpec& loss) {
    loss.balance = values == "auto";
    loss.class_weights.clear();
    if (loss.balance) return;
    for (const std::string& v : split(values, ','))
      loss.class_weights.push_back(number_in("--class-weights", v, kFactor));
  };
  for (const std::string& part : split(text, ';')) {
    const size_t colon = part.rfind(':');
    const std::string output = colon == std::string::npos ? "" : trimmed(part.substr(0, colon));
    const std::string values = trimmed(colon == std::string::npos ? part : part.substr(colon + 1));
    if (output.empty() && losses.size() > 1 && values != "auto")
      fail(ErrorCode::kUsage, "--class-weights '", part,
           "': with several losses each list names its output, as in ", losses[0].output, ":",
           values);
    bool used = false;
    for (LossSpec& loss : losses)
      if (output.empty() || loss.output == output) read(values, loss), used = true;
    if (!used)
      fail(ErrorCode::kUsage, "--class-weights '", part, "': no loss is on output '", output, "'");
  }
}

}  // namespace

void read_losses(const Config& k, StepSpec& s) {
  LossSpec base;
  base.label = k.text("label");
  base.output = k.text("output");
  base.ignore_index = k.integer("ignore-index");
  base.label_smoothing = k.number("label-smoothing");
  base.huber_delta = k.number("huber-delta");
  base.focal_gamma = k.number("focal-gamma");
  base.blank = k.integer("blank");
  const std::vector<std::string> terms = split(k.text("loss"), ',');
  if (terms.size() > 1 && !(base.label.empty() && base.output.empty()))
    fail(ErrorCode::kUsage,
         "--loss names several losses; their outputs and labels go there, as in "
         "OUTPUT:KIND(LABEL), not into --output and --label");
  std::vector<LossSpec> losses;
  for (const std::string& term : terms) {
    losses.push_back(read_term(term, base));
    const LossSpec& loss = losses.back();
    if (terms.size() > 1 && loss.output.empty())
      fail(ErrorCode::kUsage, "--loss '", term,
           "': with several losses each names its output, as in OUTPUT:", loss.kind);
    for (size_t i = 0; i + 1 < losses.size(); ++i)
      if (losses[i].output == loss.output)
        fail(ErrorCode::kUsage, "--loss names output '", loss.output, "' twice");
  }
  if (k.has("class-weights")) read_weights(k.text("class-weights"), losses);
  std::vector<std::string> kinds;
  for (const LossSpec& loss : losses) kinds.push_back(loss.kind);
  refuse_unused_loss_flags(k, kinds);
  s.loss = losses[0];
  s.more_losses.assign(losses.begin() + 1, losses.end());
}

}  // namespace ortrain::cli
