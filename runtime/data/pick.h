// Samples picked from other data sets: several files after each other, mixtures by weight, a part
// that is held out.
//
// Promises: which sample stands where is a function of (files, weights, epoch) alone; whether a key
// is held out depends on the key and the fraction only, not on the other samples or their order.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/dataset.h"

namespace ortrain::data {

// All samples of `sets`, which have the same arrays. Weights, where given: an epoch has as many
// samples as all sets together, split by weight; each set goes round in its own order, on from
// where the epoch before stopped. Errors: kData where arrays differ (both shown), kUsage for
// weights.
Dataset joined(std::vector<Dataset> sets, const std::vector<double>& weights, std::string where);

// `split`: a fraction that is held out (by a hash of each sample's key), or a file with one key per
// line. Keys are paths below a picture folder, else sample numbers from 0.
Dataset held(Dataset set, const std::string& split, bool held_out);

}  // namespace ortrain::data
