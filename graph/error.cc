// The one place where a broken invariant ends the process.
#include "graph/error.h"

#include <cstdio>
#include <cstdlib>

namespace ortrain {

void check_failed(const char* file, int line, const char* condition, const std::string& text) {
  std::fprintf(stderr, "ortrain: internal error at %s:%d: %s does not hold: %s\n", file, line,
               condition, text.c_str());
  std::abort();
}

}  // namespace ortrain
