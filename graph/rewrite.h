// Helpers for local rewrites, and the rules of fuse_forward.
//
// A rule walks the graph, replaces what it recognises (g.replace_uses, then the old nodes die) and
// returns how many places it changed. It keeps values equal up to rounding, gives every new node
// the origin "<source node>|<rule>", and types what it adds (Builder does). Rules run in list order
// (passes/fuse_forward.cc), once; dead nodes are erased after each.
#pragma once

#include <optional>
#include <string_view>

#include "graph/op_def.h"
#include "graph/pipeline.h"

namespace ortrain {

using Rule = int (*)(Graph&, PassContext&);

// --- looking at the graph
// -------------------------------------------------------------------------------
// The node that makes v, null for sources and kNone.
const Node* producer(const Graph& g, ValueId v);
// The same, only when its op has this name and v is its output 0.
const Node* producer(const Graph& g, ValueId v, std::string_view op);
// Contents of v if it is a kConst, else null.
const HostTensor* constant(const Graph& g, ValueId v);
// The number that every element has; nullopt for empty or mixed contents.
std::optional<double> uniform_contents(const HostTensor& t);
// The same for a constant; nullopt for values not known now.
std::optional<double> uniform(const Graph& g, ValueId v);
// The number in a float constant of one element.
std::optional<double> number(const Graph& g, ValueId v);
// If v = x * c or x / c with a number c, of the same shape as x: v becomes x, factor the product.
bool through_scale(const Graph& g, ValueId& v, double& factor);
bool is_graph_result(const Graph& g, ValueId v);  // an output of the graph, or the next of a state
// Exactly one use in all, graph results included: what a fusion may swallow.
bool single_use(const Graph& g, ValueId v);
ValueId input(const Node& n, size_t i);  // kNone beyond the list
// A view that may be dropped, merged or moved. A Gate (structure.h) may not before the gradients
// are taken: its formula is more than a view's.
bool free_view(const Graph& g, const Node& n);

// --- folding
// --------------------------------------------------------------------------------------------
// Replaces outputs of a typed node whose contents are known by constants: integers carried by
// inference, else (all inputs constant, op foldable) by evaluation. `max_growth` > 0 refuses large
// results that hold more than that many times the inputs' elements. Returns whether the node died.
bool try_fold(Graph& g, NodeId n, const Evaluate& evaluate, int64_t max_growth = 0);

// --- simplification
// -------------------------------------------------------------------------------
// The rules of pass simplify, to a fixed point; returns how many nodes went. `max_growth` as above.
int simplify_graph(Graph& g, const Evaluate& evaluate, int64_t max_growth);

// --- decomposition
// ------------------------------------------------------------------------------------
// Rebuilds the node from its op's `decompose` (which must exist) and erases it. The new nodes have
// origin "<origin>|<why>".
void decompose_node(Graph& g, NodeId n, std::string_view why);

// The same for every composite without kernels, and what it is made of. Those with gradient
// formulas of their own stay whole for autodiff: their parts have other edge values.
void decompose_kernelless(Graph& g, std::string_view why);

// --- rules of fuse_forward, one file each
// --------------------------------------------------------------------------------
int fuse_split(Graph&, PassContext&);        // passes/fuse_split.cc
int fuse_gelu(Graph&, PassContext&);         // passes/fuse_gelu.cc
int fuse_norm(Graph&, PassContext&);         // passes/fuse_norm.cc
int fuse_attention(Graph&, PassContext&);    // passes/fuse_attention.cc
int fuse_linear(Graph&, PassContext&);       // passes/fuse_linear.cc
int fuse_batch_norm(Graph&, PassContext&);   // passes/fuse_batch_norm.cc
int fuse_log_softmax(Graph&, PassContext&);  // passes/fuse_log_softmax.cc

}  // namespace ortrain
