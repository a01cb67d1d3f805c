// Class weights from the data (--class-weights auto), so that every class weighs the same in a
// loss.
//
// Class indices: n / (classes * count of the class) over the labels that count, `classes` being
// those that occur (scikit-learn's "balanced"); a class that does not occur gets 1. Binary scores:
// negatives / positives, one per score of the last axis (PyTorch's advice for pos_weight); 1 where
// there is no positive or no negative. Labels above 0.5 are positive.
#pragma once

#include "runtime/program.h"

namespace ortrain {

// Fills the class weights of every loss of `spec` that has `balance` set; `targets` belong to its
// losses. Returns one line per loss for the user. Throws Error(kUsage) where a loss has no classes.
std::vector<std::string> balance_classes(const std::vector<Target>& targets,
                                         const data::Dataset& data, StepSpec& spec);

}  // namespace ortrain
