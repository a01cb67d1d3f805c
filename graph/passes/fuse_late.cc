// fuse_late: elementwise chains into one FusedElementwise node, epilogues into library calls, over
// forward, backward and optimizer alike. Does nothing yet: the graph runs node by node.
#include "graph/passes/passes.h"

namespace ortrain {

void pass_fuse_late(Graph&, PassContext&) {}

}  // namespace ortrain
