// recompute: forward values that backward reads much later are dropped after the forward pass and
// made again, by copies of the nodes that made them, right before backward needs them.
//
// Promises: bits do not change, since a copy is the same operator on the same operands (random
// numbers come from counters, running statistics are updated by the original only); the planned
// arena is at most RecomputeSpec::arena_bytes wherever the search finds a set that fits, and the
// smallest that it found otherwise (the caller compares). Chosen: the cheapest set found, by
// measured time, of a greedy search and of segment checkpointing with every number of segments
// (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016), each then thinned out. Mode
// sqrt: about sqrt(n) segments, no search.
#include <algorithm>
#include <cmath>
#include <optional>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/passes/recompute_model.h"

namespace ortrain {
namespace {

using Dropped = std::vector<char>;
constexpr int kVerifications = 16;  // exact plans per search
constexpr int kMaxSegments = 48;
constexpr size_t kThinned = 4;

// Without a runtime: 50 GFLOP/s and 10 GB/s.
MemoryModel::Cost guess(const Graph& g, NodeId n) {
  const Node& x = g.node(n);
  double bytes = 0;
  for (const auto* list : {&x.inputs, &x.outputs})
    for (ValueId v : *list)
      if (v != kNone && g.value(v).shape.is_const())
        bytes += static_cast<double>(element_count(g.value(v).shape.values())) *
                 static_cast<double>(size_of(g.value(v).dtype));
  return {(x.op->flops ? x.op->flops(g, x) : 0) / 50e6 + bytes / 10e6, 0};
}

struct Choice {
  Dropped dropped;
  RecomputeModel::Outcome outcome;
};

class Search {
 public:
  explicit Search(RecomputeModel& model) : model_(model) {
    for (const auto& c : model.candidates())
      if (c.saved) saved_.push_back(c);
  }

  Choice judge(Dropped dropped, size_t target) {
    const auto outcome = model_.run(dropped, target);
    return {std::move(dropped), outcome};
  }

  // Everything goes but what forward needs across one of the borders between `segments` stretches
  // of equal saved bytes, and but the last stretch, whose backward follows at once.
  Dropped in_segments(int segments) const {
    double total = 0;
    std::vector<double> made(static_cast<size_t>(model_.forward()), 0);
    for (const auto& c : saved_) {
      made[static_cast<size_t>(c.made)] += static_cast<double>(c.bytes);
      total += static_cast<double>(c.bytes);
    }
    std::vector<int> borders;  // positions; a border lies behind its node
    double sum = 0;
    for (int i = 0; i < model_.forward(); ++i) {
      sum += made[static_cast<size_t>(i)];
      const double next = total * static_cast<double>(borders.size() + 1) / segments;
      if (static_cast<int>(borders.size()) + 1 < segments && sum >= next)
        borders.push_back(narrowest(i));
    }
    Dropped dropped = model_.nothing_dropped();
    const int last = borders.empty() ? 0 : borders.back();
    for (const auto& c : model_.candidates()) {
      bool kept = segments > 1 && c.made > last;
      for (int b : borders) kept |= c.made <= b && c.last_forward_use > b;
      dropped[static_cast<size_t>(c.value)] = !kept;
    }
    return dropped;
  }

  // From `start`, one value after the other, the one with the most bytes above the target removed
  // per millisecond first; ends when nothing lies above the target, or no value helps.
  Choice greedy(Dropped start, size_t target) {
    Choice now = judge(std::move(start), target);
    struct Move {
      double score;
      int value;
    };
    const double free = 1e-4 * std::max(model_.step_ms(), 1e-3);  // what costs nothing costs this
    const auto score = [&](int value) {
      now.dropped[static_cast<size_t>(value)] ^= 1;
      const auto o = model_.run(now.dropped, target);
      now.dropped[static_cast<size_t>(value)] ^= 1;
      const double gain = now.outcome.over - o.over;
      return gain <= 0 ? 0 : gain / (std::max(o.ms - now.outcome.ms, 0.0) + free);
    };
    while (now.outcome.over > 0) {
      std::vector<Move> moves;
      for (const auto& c : saved_)
        if (!now.dropped[static_cast<size_t>(c.value)])
          if (const double s = score(c.value); s > 0) moves.push_back({s, c.value});
      if (moves.empty()) break;
      std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
        return a.score != b.score ? a.score > b.score : a.value < b.value;
      });
      // The best; then those behind it whose score has not fallen below the next one's.
      for (size_t i = 0; i < moves.size() && now.outcome.over > 0; ++i) {
        if (i > 0 && score(moves[i].value) < 0.9 * moves[i].score) break;
        Dropped next = now.dropped;
        next[static_cast<size_t>(moves[i].value)] = 1;
        now = judge(std::move(next), target);
      }
    }
    return now;
  }

  // Keeps again what need not go, the most expensive first. Values that nothing saved needs are
  // tried, too: a checkpoint shortens what must run twice.
  Choice thin_out(Choice now, size_t target) {
    for (int round = 0; round < 3; ++round) {
      struct Move {
        double gain;
        int value;
      };
      std::vector<Move> moves;
      for (const auto& c : model_.candidates()) {
        if (!now.dropped[static_cast<size_t>(c.value)]) continue;
        now.dropped[static_cast<size_t>(c.value)] = 0;
        const auto o = model_.run(now.dropped, target);
        now.dropped[static_cast<size_t>(c.value)] = 1;
        if (o.peak <= target && o.ms < now.outcome.ms)
          moves.push_back({now.outcome.ms - o.ms, c.value});
      }
      std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
        return a.gain != b.gain ? a.gain > b.gain : a.value < b.value;
      });
      bool changed = false;
      for (const Move& m : moves) {
        Dropped next = now.dropped;
        next[static_cast<size_t>(m.value)] = 0;
        Choice c = judge(std::move(next), target);
        if (c.outcome.peak > target || c.outcome.ms >= now.outcome.ms) continue;
        now = std::move(c);
        changed = true;
      }
      if (!changed) break;
    }
    return now;
  }

  // The cheapest choice found whose peak is at most `target`; the one with the lowest peak when
  // none is.
  Choice best(size_t target) {
    std::vector<Choice> found{greedy(model_.nothing_dropped(), target)};
    for (int k = 1; k <= std::min(kMaxSegments, model_.forward()); ++k)
      found.push_back(judge(in_segments(k), target));
    std::stable_sort(found.begin() + 1, found.end(), [](const Choice& a, const Choice& b) {
      return a.outcome.peak < b.outcome.peak;
    });
    if (found.size() > 1 && found[1].outcome.peak > target)
      found.push_back(greedy(found[1].dropped, target));
    // Of the segmentings that fit, the cheapest are worth thinning out.
    std::stable_sort(found.begin() + 1, found.end(), [&](const Choice& a, const Choice& b) {
      const bool fits = a.outcome.peak <= target, other = b.outcome.peak <= target;
      return fits != other ? fits : fits && a.outcome.ms < b.outcome.ms;
    });
    if (found.size() > kThinned) found.resize(kThinned, found[0]);
    std::optional<Choice> best;
    const auto better = [&](const Choice& a, const Choice& b) {
      const bool fits = a.outcome.peak <= target, other = b.outcome.peak <= target;
      if (fits != other) return fits;
      return fits ? a.outcome.ms < b.outcome.ms : a.outcome.peak < b.outcome.peak;
    };
    for (Choice& c : found) {
      if (c.outcome.peak <= target) c = thin_out(std::move(c), target);
      if (!best || better(c, *best)) best = std::move(c);
    }
    return std::move(*best);
  }

 private:
  // The position near `at` where the fewest bytes that forward still needs cross.
  int narrowest(int at) const {
    const int reach = std::max(2, model_.forward() / 40);
    int best = at;
    double least = -1;
    for (int i = std::max(0, at - reach); i <= std::min(model_.forward() - 2, at + reach); ++i) {
      double bytes = 0;
      for (const auto& c : model_.candidates())
        if (c.made <= i && c.last_forward_use > i) bytes += static_cast<double>(c.bytes);
      if (least < 0 || bytes < least) least = bytes, best = i;
    }
    return best;
  }

  RecomputeModel& model_;
  std::vector<RecomputeModel::Candidate> saved_;
};

// Puts the copies of the model's last run into g and its order.
class Rewriter {
 public:
  Rewriter(Graph& g, const RecomputeModel& model, const Dropped& dropped)
      : g_(g),
        model_(model),
        dropped_(dropped),
        base_(g.order),
        copy_(static_cast<size_t>(g.value_count()), kNone) {}

  void apply() {
    const std::vector<RecomputeModel::Item> items = model_.items();
    g_.order.clear();
    std::vector<char> done(static_cast<size_t>(g_.node_count()), 0);
    for (const auto& item : items) {
      const NodeId n = base_[static_cast<size_t>(item.node)];
      if (item.copy) {
        copy(n, item.node, done);
        continue;
      }
      // A node behind later ones is a state update that was put off.
      redirect(n, item.node >= model_.forward() || last_ > item.node, done);
      last_ = std::max(last_, item.node);
      g_.order.push_back(n);
      done[static_cast<size_t>(n)] = 1;
    }
    views_of_results(done);
    g_.erase_dead();
    std::erase_if(g_.order, [&](NodeId n) { return !g_.node(n).op; });
  }

 private:
  bool made_again(ValueId v) const {
    const int value = model_.value_of(v);
    return value >= 0 && model_.droppable(value) && dropped_[static_cast<size_t>(value)];
  }

  // The copy of v: of the node that made it, or of the views that lead to it.
  ValueId again(ValueId v) {
    if (static_cast<size_t>(v) < copy_.size() && copy_[static_cast<size_t>(v)] != kNone)
      return copy_[static_cast<size_t>(v)];
    const NodeId n = g_.value(v).producer;
    ORTRAIN_CHECK(n != kNone && g_.node(n).op->view, "a dropped value is read before it is back");
    std::vector<ValueId> inputs = g_.node(n).inputs;
    inputs[0] = again(inputs[0]);
    return copy_[static_cast<size_t>(v)] = add(n, std::move(inputs), {true})[0];
  }

  std::vector<ValueId> add(NodeId n, std::vector<ValueId> inputs, const std::vector<bool>& wanted) {
    const Attrs attrs = g_.node(n).attrs;
    const NodeId made =
        g_.add_node(*g_.node(n).op, std::move(inputs), attrs, 0, g_.node(n).origin + "|recompute");
    const size_t outputs = g_.node(n).outputs.size();
    g_.node(made).outputs.assign(outputs, kNone);
    std::vector<ValueId> out(outputs, kNone);
    for (size_t i = 0; i < outputs; ++i)
      if (i < wanted.size() && wanted[i]) out[i] = g_.add_output(made, static_cast<int>(i));
    g_.infer(made);
    for (size_t i = 0; i < outputs; ++i) {
      if (out[i] == kNone) continue;
      const Value& was = g_.value(g_.node(n).outputs[i]);
      Value& now = g_.value(out[i]);
      now.dtype = was.dtype;
      now.shape = was.shape;
      now.name = was.name;
      now.has_ints = was.has_ints;
      now.ints = was.ints;
    }
    g_.order.push_back(made);
    return out;
  }

  void copy(NodeId n, int position, std::vector<char>& done) {
    std::vector<ValueId> inputs = g_.node(n).inputs;
    for (ValueId& v : inputs) {
      if (v == kNone) continue;
      if (made_again(v))
        v = again(v);
      else
        place_views(v, done);
    }
    std::vector<bool> wanted;
    for (size_t i = 0; i < g_.node(n).outputs.size(); ++i)
      wanted.push_back(model_.wanted(position, i, dropped_));
    const std::vector<ValueId> out = add(n, std::move(inputs), wanted);
    for (size_t i = 0; i < out.size(); ++i) {
      const ValueId v = g_.node(n).outputs[i];
      if (v != kNone && out[i] != kNone && made_again(v)) copy_[static_cast<size_t>(v)] = out[i];
    }
  }

  // Views are placed where they are first read; a reader in backward gets the copies.
  void redirect(NodeId n, bool backward, std::vector<char>& done) {
    const size_t inputs = g_.node(n).inputs.size();
    for (size_t i = 0; i < inputs; ++i) {
      const ValueId v = g_.node(n).inputs[i];
      if (v == kNone) continue;
      if (backward && made_again(v))
        g_.set_input(n, static_cast<int>(i), again(v));
      else
        place_views(v, done);
    }
  }
  void place_views(ValueId v, std::vector<char>& done) {
    std::vector<NodeId> chain;
    for (NodeId n = g_.value(v).producer;
         n != kNone && g_.node(n).op->view && !done[static_cast<size_t>(n)];
         n = g_.value(g_.node(n).inputs[0]).producer) {
      chain.push_back(n);
      done[static_cast<size_t>(n)] = 1;
    }
    g_.order.insert(g_.order.end(), chain.rbegin(), chain.rend());
  }
  void views_of_results(std::vector<char>& done) {
    for (ValueId v : g_.outputs()) place_views(v, done);
    for (const StateUpdate& u : g_.updates()) place_views(u.next, done);
  }

  Graph& g_;
  const RecomputeModel& model_;
  const Dropped& dropped_;
  const std::vector<NodeId> base_;
  std::vector<ValueId> copy_;  // per value
  int last_ = -1;
};

std::string percent(double part, double whole) {
  return whole > 0 ? cat(static_cast<int>(std::lround(100 * part / whole)), " %") : "0 %";
}

}  // namespace

void pass_recompute(Graph& g, PassContext& ctx) {
  const RecomputeSpec& spec = ctx.spec.recompute;
  if (g.outputs().empty() || (spec.mode == "auto" && spec.arena_bytes == 0)) return;
  if (ctx.memory) ctx.memory->lower(g);
  const auto cost = [&](const Graph& of, NodeId n) {
    return ctx.memory ? ctx.memory->cost(of, n) : guess(of, n);
  };
  RecomputeReport& report = ctx.recompute;
  if (ctx.memory) {
    report.arena_before = report.arena_after = ctx.memory->arena_bytes(g);
    if (spec.mode == "auto" && report.arena_before <= spec.arena_bytes) return;
  }
  RecomputeModel model(g, g.outputs()[0], [&](NodeId n) { return cost(g, n); });
  report.step_ms = model.step_ms();
  if (model.forward() < 2 || model.candidates().empty()) return;
  if (!ctx.memory) {
    report.arena_before = report.arena_after = model.run(model.nothing_dropped(), 0).peak;
    if (spec.mode == "auto" && report.arena_before <= spec.arena_bytes) return;
  }
  Search search(model);
  // The arena exactly as it will be planned.
  const auto planned = [&](const Dropped& dropped) {
    const size_t peak = model.run(dropped, 0).peak;
    if (!ctx.memory) return peak;
    Graph trial = g.share();
    Rewriter(trial, model, dropped).apply();
    return ctx.memory->arena_bytes(trial);
  };

  Dropped dropped;
  if (spec.mode == "sqrt") {
    const int segments = static_cast<int>(std::lround(std::sqrt(model.forward())));
    dropped = search.in_segments(std::max(segments, 1));
    report.arena_after = planned(dropped);
  } else {
    // What placing the values costs above the bytes that are alive is only known once they are
    // placed: aim lower by that much and try again.
    size_t target = spec.arena_bytes, least = report.arena_before;
    const auto attempt = [&] {
      const Choice c = search.best(target);
      const size_t arena = planned(c.dropped);
      if (dropped.empty() || arena < least) dropped = c.dropped, least = arena;
      const size_t above =
          std::max(arena - std::min(arena, spec.arena_bytes), spec.arena_bytes / 256);
      const bool again = arena > spec.arena_bytes && c.outcome.peak <= target && above < target;
      target -= again ? above : 0;
      return again;
    };
    for (int i = 0; i < kVerifications && attempt();) ++i;
    if (least > spec.arena_bytes) target = 1, attempt();  // nothing fits: the least there is
    if (least >= report.arena_before) return;
    report.arena_after = least;
  }
  const RecomputeModel::Outcome outcome = model.run(dropped, 0);
  Rewriter(g, model, dropped).apply();
  report.extra_ms = std::max(outcome.ms, 0.0);
  report.copies = outcome.copies;
  ctx.did =
      cat(outcome.copies, " nodes run twice: arena ", report.arena_before, " -> ",
          report.arena_after, " bytes, predicted time +", percent(report.extra_ms, report.step_ms));
}

}  // namespace ortrain
