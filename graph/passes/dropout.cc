// dropout: --dropout off | P. Sets the ratio of the Dropout nodes that the file has (off: 0), and
// with a number P adds Dropout where a training model usually has one and this one has none.
//
// Places of a transformer: behind each projection whose result joins the residual stream (the
// attention's output projection, the last GEMM of an MLP; behind its bias) and behind the
// embeddings, where the first block begins. Recognised by shape: Add(r, p) where p comes from a
// MatMul or Gemm with a weight and depends on r; a model counts as a transformer when one such
// branch has a softmax or an attention operator. Other models: in front of the last weight product
// before each float output. Only plans that train; canonicalize turns the nodes into masks.
#include <algorithm>
#include <cstdio>
#include <set>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

// Input number of the ratio where an op drops while training; -1 for others.
int ratio_input(const Node& n) {
  if (!n.op->training_policy) return -1;
  for (size_t i = 0; i < n.op->inputs.size(); ++i)
    if (n.op->inputs[i] == "ratio?") return static_cast<int>(i);
  return -1;
}

// Data of the file, directly or moved about.
bool is_weight(const Graph& g, ValueId v, int depth = 0) {
  if (v == kNone || depth > 4) return false;
  const Node* n = producer(g, v);
  if (!n) return g.value(v).source == Source::kParam || g.value(v).source == Source::kConst;
  const bool moves = n->op->ew == Ew::kIdentity || n->op->view || n->op->name == "Transpose" ||
                     n->op->name == "DequantizeLinear";
  return moves && is_weight(g, n->inputs[0], depth + 1);
}

bool weight_product(const Graph& g, const Node& n) {
  return (n.op->name == "MatMul" || n.op->name == "Gemm") && n.inputs.size() > 1 &&
         is_weight(g, n.inputs[1]) && !is_weight(g, n.inputs[0]);
}

bool mixes_positions(const Node& n) {
  return n.op->name == "Softmax" || n.op->name.find("Attention") != std::string::npos;
}

class Inserter {
 public:
  Inserter(Graph& g, double ratio) : g_(g), ratio_(ratio) {}

  std::string run() {
    const std::vector<NodeId> order = g_.topo();
    for (NodeId n : order) find_branch(n);
    const bool transformer = std::any_of(branches_.begin(), branches_.end(),
                                         [](const Branch& b) { return b.attention; });
    if (!transformer) {
      for (size_t i = 0; i < g_.outputs().size(); ++i) before_classifier(g_.outputs()[i]);
      return said_;
    }
    embeddings(branches_[0].stream);
    for (const Branch& b : branches_) {
      if (b.dropped) continue;
      say(b.attention ? "behind the attention's output projection" : "behind the MLP's last GEMM",
          g_.node(b.product).origin);
      const ValueId v = g_.node(b.add).inputs[static_cast<size_t>(b.side)];
      g_.set_input(b.add, b.side, drop(v, g_.node(b.product).origin));
    }
    return said_;
  }

 private:
  struct Branch {
    NodeId add, product;
    int side;        // of the Add: where the branch comes in
    ValueId stream;  // what it is added to
    bool attention, dropped;
  };

  void say(const char* what, const std::string& where) {
    ++count_;
    if (count_ > 12) return;
    said_ += cat(said_.empty() ? "" : "; ", what, " '", where, "'");
    if (count_ == 12) said_ += "; ...";
  }

  ValueId drop(ValueId v, const std::string& origin) {
    const NodeId n = g_.add_node(g_.ops().get("Dropout"), {v, ratio()}, {}, 1,
                                 origin.substr(0, origin.find('|')) + "|dropout");
    g_.infer(n);
    return g_.node(n).outputs[0];
  }
  ValueId ratio() { return g_.add_const(HostTensor::scalar(static_cast<float>(ratio_))); }

  // The weight product behind v, past biases, scales, views and dropout.
  NodeId product_behind(ValueId v, bool& dropped) const {
    for (int depth = 0; depth < 12; ++depth) {
      const Node* n = producer(g_, v);
      if (!n) return kNone;
      if (weight_product(g_, *n)) return g_.value(v).producer;
      dropped |= ratio_input(*n) >= 0;
      const bool moves = n->op->ew == Ew::kIdentity || n->op->view || ratio_input(*n) >= 0;
      const bool affine = n->op->name == "Add" || n->op->name == "Mul";
      if (!moves && !affine) return kNone;
      const size_t data = affine && is_weight(g_, n->inputs[0]) ? 1 : 0;
      if (affine && !is_weight(g_, n->inputs[1 - data])) return kNone;
      v = n->inputs[data];
    }
    return kNone;
  }

  // Whether the product reads `stream`, and whether a softmax or attention lies between.
  bool depends(NodeId product, ValueId stream, bool& attention) const {
    std::set<NodeId> seen;
    std::vector<ValueId> todo{g_.node(product).inputs[0]};
    bool found = false;
    while (!todo.empty()) {
      const ValueId v = todo.back();
      todo.pop_back();
      if (v == stream) found = true;
      if (v == kNone || v == stream || !producer(g_, v)) continue;
      const NodeId id = g_.value(v).producer;
      if (!seen.insert(id).second || seen.size() > 400) continue;
      attention |= mixes_positions(g_.node(id));
      for (ValueId x : g_.node(id).inputs) todo.push_back(x);
    }
    return found;
  }

  void find_branch(NodeId add) {
    const Node& n = g_.node(add);
    if (n.op->name != "Add" || is_weight(g_, n.inputs[0]) || is_weight(g_, n.inputs[1])) return;
    for (int side : {1, 0}) {
      bool dropped = false, attention = false;
      const NodeId product = product_behind(n.inputs[static_cast<size_t>(side)], dropped);
      const ValueId stream = n.inputs[static_cast<size_t>(1 - side)];
      if (product == kNone || !depends(product, stream, attention)) continue;
      branches_.push_back({add, product, side, stream, attention, dropped});
      return;
    }
  }

  void embeddings(ValueId v) {
    const Node* n = producer(g_, v);
    if (!n || ratio_input(*n) >= 0) return;
    const std::string origin = n->origin;
    say("behind the embeddings", origin);
    const NodeId d = g_.add_node(g_.ops().get("Dropout"), {kNone, ratio()}, {}, 1,
                                 origin.substr(0, origin.find('|')) + "|dropout");
    g_.replace_uses(v, g_.node(d).outputs[0]);
    g_.set_input(d, 0, v);
    g_.infer(d);
    for (Branch& b : branches_)
      if (b.stream == v) b.stream = g_.node(d).outputs[0];
  }

  // The last weight product before v drops from what it reads.
  void before_classifier(ValueId v) {
    if (!is_float(g_.value(v).dtype)) return;
    for (int depth = 0; depth < 12; ++depth) {
      const Node* n = producer(g_, v);
      if (!n) return;
      if (weight_product(g_, *n)) {
        const NodeId id = g_.value(v).producer;
        const ValueId x = n->inputs[0];
        bool dropped = false;
        for (ValueId at = x; const Node* p = producer(g_, at); at = p->inputs[0]) {
          dropped |= ratio_input(*p) >= 0;
          if (!p->op->view && p->op->ew != Ew::kIdentity) break;
        }
        if (dropped || !producer(g_, x)) return;  // a linear model drops nothing
        say("in front of the classifier", n->origin);
        const ValueId y = drop(x, n->origin);
        g_.set_input(id, 0, y);
        return;
      }
      const bool passes = n->op->ew != Ew::kNone || n->op->view || n->op->name == "Softmax" ||
                          n->op->name == "LogSoftmax";
      if (!passes || n->inputs.empty()) return;
      v = is_weight(g_, n->inputs[0]) && n->inputs.size() > 1 ? n->inputs[1] : n->inputs[0];
    }
  }

  Graph& g_;
  double ratio_;
  std::vector<Branch> branches_;
  std::string said_;
  int count_ = 0;
};

}  // namespace

void pass_dropout(Graph& g, PassContext& ctx) {
  const double ratio = std::max(0.0, ctx.spec.dropout);
  char shown[32];
  std::snprintf(shown, sizeof shown, "%.4g", ratio);
  int set = 0;
  for (NodeId n : g.topo()) {
    const int at = ratio_input(g.node(n));
    if (at < 0) continue;
    g.set_input(n, at, g.add_const(HostTensor::scalar(static_cast<float>(ratio))));
    ++set;
  }
  if (set > 0)
    ctx.did = cat(set, ratio == 0 ? " of the file's Dropout nodes are off"
                                  : cat(" of the file's Dropout nodes take ratio ", shown));
  if (ratio > 0) {
    const std::string places = Inserter(g, ratio).run();
    ctx.did += cat(ctx.did.empty() ? "" : "; ", places.empty()
                                                    ? "no place for another one was recognised"
                                                    : cat("dropout ", shown, " added ", places));
  }
  if (ctx.did.empty()) ctx.did = "the file has no Dropout node";
  ctx.messages.push_back("--dropout: " + ctx.did);
}

}  // namespace ortrain
