// Steps of `ortrain init`; each looks at one thing and writes its choices into the recipe.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/recipe_writer.h"
#include "runtime/data/dataset.h"

namespace ortrain::cli {

// A model output as the importer types it; -1: open.
struct OutputLook {
  std::string name;
  DType dtype = DType::kUndefined;
  Dims dims;
  bool sigmoid = false;  // it ends in one
};
std::vector<OutputLook> typed_outputs(const Context& c);
// The output that the loss is for: --output, else the first float one.
const OutputLook& loss_output(const Context& c, const std::vector<OutputLook>& outputs);

// May the name stand in --map and --prepare?
inline bool speakable(const std::string& name) {
  return !name.empty() && name.find_first_of(",:;*=") == std::string::npos;
}

// --- init_data.cc
// --data as a training run takes it: folders with train/ and val/ in them, the file in a folder,
// and what lies beside it for evaluation.
void find_data(RecipeWriter& r);
// Settings that the data cannot be opened without: columns, tokens, pictures' size; what it holds.
void choose_reading(RecipeWriter& r);
// --- init_inputs.cc
// What can be said once it is open: which array serves which input, its mean and deviation.
void tell_inputs(RecipeWriter& r, const data::Dataset& set);

// --- init_loss.cc
// A fixed batch, what exporters broke.
void choose_model_settings(RecipeWriter& r);
// Loss, labels, label map, head; the model is opened again where its head changes.
void choose_loss(RecipeWriter& r, const data::Dataset& set);
// Batch, epochs, optimizer, schedule, held-out part.
void choose_training(RecipeWriter& r, const data::Dataset& set);

}  // namespace ortrain::cli
