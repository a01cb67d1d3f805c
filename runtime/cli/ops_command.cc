// `ortrain ops`: the support matrix (ops_matrix.h) as text, --markdown or --json FILE (- prints).
// docs/OPS.md is the markdown form.
#include <cstdio>
#include <fstream>

#include "graph/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/ops_matrix.h"

namespace ortrain::cli {

int run_ops(Context& c) {
  const std::string path = c.config.has("json") ? c.config.text("json") : "-";
  const std::string text = c.config.has("json")      ? ops_json(c.ops)
                           : c.config.on("markdown") ? ops_markdown(c.ops)
                                                     : ops_text(c.ops);
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) fail(ErrorCode::kIo, "cannot write '", path, "'");
  return 0;
}

}  // namespace ortrain::cli
