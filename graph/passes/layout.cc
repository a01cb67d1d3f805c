// layout: channels-last where conv-like ops want it, transposes pushed to the borders and into
// parameters (ParamInfo::perm). Does nothing yet: every tensor stays as the file has it.
#include "graph/passes/passes.h"

namespace ortrain {

void pass_layout(Graph&, PassContext&) {}

}  // namespace ortrain
