// Preparations of number arrays: label maps, length, scale, mean and deviation, one-hot; and of u8
// pictures that come as arrays.
#pragma once

#include "runtime/data/dataset.h"

namespace ortrain::data {

// Applies options.prepare to the arrays of `data` that are not prepared yet. Errors: kUsage for an
// entry that does not apply to its array, naming both.
// Entries of arrays that are not there are told when it is the `last` call.
void prepare_arrays(Dataset& data, const OpenOptions& options, bool last);

}  // namespace ortrain::data
