// A fingerprint of a data set, to notice that a run is resumed on other data.
//
// Promises: equal for equal data in equal files, whatever the machine; cheap: reads up to 64
// samples spread over the data (16 where a sample is work, as a picture is) and the names of the
// files. A change of a sample between them stays unnoticed. A sample that cannot be read counts as
// such. Refuses nothing.
#pragma once

#include <string>

#include "runtime/data/dataset.h"

namespace ortrain::data {

// 16 hexadecimal digits.
std::string fingerprint(const Dataset& data);

}  // namespace ortrain::data
