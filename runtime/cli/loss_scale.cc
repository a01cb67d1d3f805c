// --loss-scale: auto, off, a number, or dynamic with settings ("dynamic,init=1024,interval=500").
#include <cmath>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/words.h"

namespace ortrain::cli {
namespace {

double number(const std::string& flag, const std::string& text) {
  return number_in("--loss-scale " + flag, text, {.low = 0, .high = 1e30, .open = true});
}

}  // namespace

LossScaleSpec loss_scale_spec(const std::vector<std::string>& words, const std::string& precision) {
  using Kind = LossScaleSpec::Kind;
  LossScaleSpec s;
  std::string flag;
  for (const std::string& w : words) flag += (flag.empty() ? "" : ",") + w;
  const std::string kind = words.empty() ? "auto" : words[0];
  if (kind == "auto")
    s.kind = precision == "fp16" ? Kind::kDynamic : Kind::kOff;
  else if (kind == "dynamic")
    s.kind = Kind::kDynamic;
  else if (kind != "off")
    s.kind = Kind::kStatic, s.init = number(flag, kind);
  std::vector<std::string> seen;
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t at = words[i].find('=');
    const std::string key = words[i].substr(0, at);
    double* field = key == "init"     ? &s.init
                    : key == "growth" ? &s.growth
                    : key == "min"    ? &s.min
                    : key == "max"    ? &s.max
                                      : nullptr;
    if (at == std::string::npos || (!field && key != "interval") || kind != "dynamic")
      fail(ErrorCode::kUsage, "--loss-scale ", flag,
           ": expected auto, off, a number, or dynamic and any of "
           "init=X,growth=X,interval=N,min=X,max=X");
    give_once("--loss-scale " + flag, key, seen);
    const double v = number(flag, words[i].substr(at + 1));
    if (field)
      *field = v;
    else if (v < 1 || v > 1e15 || v != std::floor(v))
      fail(ErrorCode::kUsage, "--loss-scale ", flag, ": interval must be a whole number of steps");
    else
      s.interval = static_cast<int64_t>(v);
  }
  if (s.growth <= 1 || s.min > s.max)
    fail(ErrorCode::kUsage, "--loss-scale ", flag, ": growth must be above 1, min at most max");
  if (s.kind == Kind::kDynamic && (s.init < s.min || s.init > s.max))
    fail(ErrorCode::kUsage, "--loss-scale ", flag, ": init ", shown(s.init), " is not from min ",
         shown(s.min), " to max ", shown(s.max));
  return s;
}

}  // namespace ortrain::cli
