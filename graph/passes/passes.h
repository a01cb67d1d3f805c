// The passes by name; pipeline.cc holds their order and reasons. Each edits the graph in place,
// writes what it did to ctx.did, and leaves a graph that verify() accepts.
#pragma once

#include "graph/pipeline.h"

namespace ortrain {

void pass_infer(Graph& g, PassContext& ctx);
void pass_dropout(Graph& g, PassContext& ctx);
void pass_pad_dims(Graph& g, PassContext& ctx);
void pass_lora(Graph& g, PassContext& ctx);
void pass_canonicalize(Graph& g, PassContext& ctx);
void pass_attach_loss(Graph& g, PassContext& ctx);
void pass_check_trainable(Graph& g, PassContext& ctx);
void pass_fuse_forward(Graph& g, PassContext& ctx);
void pass_sparse_head(Graph& g, PassContext& ctx);
void pass_layout(Graph& g, PassContext& ctx);
void pass_cast_precision(Graph& g, PassContext& ctx);
void pass_autodiff(Graph& g, PassContext& ctx);
void pass_round_tf32(Graph& g, PassContext& ctx);
void pass_optimizer(Graph& g, PassContext& ctx);
void pass_simplify(Graph& g, PassContext& ctx);
void pass_fuse_late(Graph& g, PassContext& ctx);
void pass_schedule(Graph& g, PassContext& ctx);
void pass_recompute(Graph& g, PassContext& ctx);

}  // namespace ortrain
