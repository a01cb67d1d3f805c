// How each parameter is updated: learning rate and weight decay by groups (regexes), --no-decay and
// layer-wise decay of the learning rate.
//
// Layers are found in the graph: where names are numbered ("encoder.layer.3.", "h.0."), everything
// up to the first number of a name is a layer, in the order in which the layers are used first, and
// other parameters belong to the layer they are used after (before the first: a layer of their
// own). Else each matrix is a layer, and vectors belong to the matrix before them.
// Refuses bad regexes and groups that match nothing (Error(kUsage)).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/pipeline.h"

namespace ortrain {

// Distance of each parameter's first use from the inputs, in nodes; work on parameters alone (a
// transposed weight) does not count.
std::map<ValueId, int> param_depths(const Graph& g);

class ParamGroups {
 public:
  struct Setting {
    double lr_factor = 1, weight_decay = 0;
  };
  // Of the trainable parameters of g.params.
  ParamGroups(const Graph& g, const OptimizerSpec& spec);
  const Setting& of(ValueId param) const { return settings_.at(param); }
  bool own_rates() const { return own_rates_; }  // some lr_factor is not 1
  // For people: one line per group and for the layers; none without groups and layer decay.
  const std::vector<std::string>& text() const { return text_; }

 private:
  void decide_layers(const Graph& g, double decay);
  std::map<ValueId, Setting> settings_;
  std::vector<std::string> text_;
  bool own_rates_ = false;
};

}  // namespace ortrain
