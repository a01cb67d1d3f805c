// See ema.h.
#include "runtime/ema.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/pipeline.h"

namespace ortrain {

void AveragedWeights::exchange() {
  for (const StoreEntry& e : store_.entries()) {
    if (e.kind != Source::kParam) continue;
    const StoreEntry* average = store_.find(e.name + kEmaSuffix);
    if (!average || average->kind != Source::kState) continue;
    ORTRAIN_CHECK(average->bytes == e.bytes && average->perm == e.perm,
                  "the average of '" + e.name + "' lies otherwise");
    std::swap_ranges(e.data, e.data + e.bytes, average->data);
  }
}

}  // namespace ortrain
