// What kernels ask of a query beyond its fields.
#include "runtime/kernel.h"

#include "graph/error.h"

namespace ortrain {

std::vector<int64_t> KernelQuery::need_ints(size_t i, const char* what) const {
  const HostTensor* t = constant(i);
  if (t == nullptr)
    fail(ErrorCode::kUnsupported, op, " '", origin, "': ", what,
         " depends on data; ortrain plans before step 1 and needs it as a constant");
  return t->as_ints();
}

}  // namespace ortrain
