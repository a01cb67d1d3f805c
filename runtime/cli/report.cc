// See report.h.
#include "runtime/cli/report.h"

#include <algorithm>

#include "graph/error.h"
#include "ortrain_web.h"
#include "runtime/data/atomic_file.h"

namespace ortrain::cli {
using nlohmann::ordered_json;
namespace {

void replace(std::string& text, const std::string& mark, const std::string& by) {
  const size_t at = text.find(mark);
  ORTRAIN_CHECK(at != std::string::npos, "the page has no " + mark);
  text.replace(at, mark.size(), by);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

}  // namespace

std::string page(const std::string& kind, const std::string& title, const ordered_json& data) {
  std::string text = web::kPage;
  std::string json = data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;)
    json.replace(at, 1, "\\u003c");
  replace(text, "<!--TITLE-->", escaped(title));
  replace(text, "/*STYLE*/", web::kStyle);
  replace(text, "/*CHARTS*/", web::kCharts);
  replace(text, "/*PAGE*/", kind == "compare" ? web::kCompare : web::kReport);
  replace(text, "/*DATA*/", json);
  return text;
}

void write_page(const std::string& path, const std::string& kind, const std::string& title,
                const ordered_json& data) {
  data::AtomicFile file(path);
  file.write(page(kind, title, data));
  file.commit();
}

ordered_json memory_json(const Plan& plan) {
  constexpr size_t kMost = 4000;
  const auto backward = [&](int step) {
    const std::string& node = plan.steps[static_cast<size_t>(step)].node;
    return node.find("|autodiff") != std::string::npos ||
           node.find("|optimizer") != std::string::npos;
  };
  int turn = static_cast<int>(plan.steps.size());  // the first step of the backward pass
  for (int s = turn; s-- > 0;)
    if (backward(s)) turn = s;
  std::vector<const PlanBlock*> blocks;
  for (const PlanBlock& b : plan.blocks)
    if (b.bytes > 0) blocks.push_back(&b);
  if (blocks.size() > kMost)
    std::nth_element(blocks.begin(), blocks.begin() + kMost, blocks.end(),
                     [](const PlanBlock* a, const PlanBlock* b) { return a->bytes > b->bytes; });
  ordered_json j{{"bytes", plan.arena_bytes}, {"needed", plan.arena_lower_bound}, {"turn", turn}};
  j["left_out"] = blocks.size() > kMost ? blocks.size() - kMost : 0;
  blocks.resize(std::min(blocks.size(), kMost));
  j["steps"] = ordered_json::array();
  for (const PlanStep& s : plan.steps) j["steps"].push_back(s.node);
  j["blocks"] = ordered_json::array();
  for (const PlanBlock* b : blocks) {
    const int kind = b->scratch ? 3 : b->first >= turn ? 2 : b->last >= turn ? 1 : 0;
    j["blocks"].push_back({b->name, b->offset, b->bytes, b->first, b->last, kind});
  }
  return j;
}

}  // namespace ortrain::cli
