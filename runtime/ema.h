// Averages of the parameters in the parameters' place, for an evaluation or an export.
#pragma once

#include "runtime/param_store.h"

namespace ortrain {

// While it lives, every parameter P that has an average "P/ema" holds that average, and the average
// the parameter. Nothing may train meanwhile. Does nothing without averages.
class AveragedWeights {
 public:
  explicit AveragedWeights(ParamStore& store) : store_(store) { exchange(); }
  ~AveragedWeights() { exchange(); }
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  void exchange();
  ParamStore& store_;
};

}  // namespace ortrain
