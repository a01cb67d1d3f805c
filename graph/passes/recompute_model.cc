// See recompute_model.h.
#include "graph/passes/recompute_model.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain {
namespace {

constexpr size_t kAlignment = 64;  // of planned tensors
constexpr size_t kSmall = 16;      // outputs below 1/16 of the largest one come along with a copy

size_t idx(int i) { return static_cast<size_t>(i); }

size_t bytes_of(const Value& x) {
  const size_t bytes = static_cast<size_t>(element_count(x.shape.values())) * size_of(x.dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

RecomputeModel::RecomputeModel(const Graph& g, ValueId loss, const Cost& cost) {
  build(g, loss, cost);
  find_droppable(g);
}

void RecomputeModel::build(const Graph& g, ValueId loss, const Cost& cost) {
  root_.assign(idx(g.value_count()), -1);
  steps_.resize(g.order.size());
  std::vector<int> position(idx(g.node_count()), -1);
  for (size_t i = 0; i < g.order.size(); ++i) position[idx(g.order[i])] = static_cast<int>(i);
  std::vector<int> writer(idx(g.value_count()), -1);  // per state
  std::vector<char> next(idx(g.value_count()), 0);
  for (const StateUpdate& u : g.updates()) {
    next[idx(u.next)] = 1;
    if (g.value(u.next).producer != kNone)
      writer[idx(u.state)] = position[idx(g.value(u.next).producer)];
  }
  for (size_t i = 0; i < g.order.size(); ++i) {
    const Node& n = g.node(g.order[i]);
    Step& s = steps_[i];
    s.view = n.op->view;
    for (size_t o = 0; o < n.outputs.size(); ++o) {
      const ValueId v = n.outputs[o];
      const bool optional = o < n.op->outputs.size() && n.op->outputs[o].ends_with('?');
      s.optional.push_back(optional);
      s.makes.push_back(-1);
      if (v == kNone) continue;
      if (s.view && o == 0) {
        root_[idx(v)] = root_[idx(n.inputs[0])];
        continue;
      }
      root_[idx(v)] = s.makes[o] = static_cast<int>(values_.size());
      values_.push_back({next[idx(v)] ? 0 : bytes_of(g.value(v)), static_cast<int>(i)});
    }
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const ValueId v = n.inputs[k];
      if (v == kNone) continue;
      if (g.value(v).source != Source::kNode && writer[idx(v)] >= 0)
        s.writers.push_back(writer[idx(v)]);
      const int r = root_[idx(v)];
      if (s.view && k > 0 && r >= 0) values_[idx(r)].kept = true;  // a shape: not worth a thought
      if (s.view || r < 0 || std::find(s.reads.begin(), s.reads.end(), r) != s.reads.end())
        continue;
      s.reads.push_back(r);
    }
    for (const auto& [o, k] : n.op->inplace) {  // see may_overwrite() in storage.cc
      if (o >= static_cast<int>(n.outputs.size()) || k >= static_cast<int>(n.inputs.size()) ||
          n.inputs[idx(k)] == kNone || s.makes[idx(o)] < 0)
        continue;
      const int from = root_[idx(n.inputs[idx(k)])], to = s.makes[idx(o)];
      if (from < 0 || values_[idx(from)].bytes != values_[idx(to)].bytes) continue;
      int slots = 0;
      bool one = true;
      for (ValueId v : n.inputs)
        if (v != kNone && root_[idx(v)] == from) ++slots, one &= v == n.inputs[idx(k)];
      if (slots == 1 || (one && n.op->ew != Ew::kNone)) s.inplace.emplace_back(to, from);
    }
    if (s.view) continue;
    const MemoryModel::Cost c = cost(g.order[i]);
    s.ms = c.ms;
    s.workspace = (c.workspace + kAlignment - 1) / kAlignment * kAlignment;
    step_ms_ += c.ms;
  }
  forward_ = g.value(loss).producer == kNone ? 0 : position[idx(g.value(loss).producer)] + 1;
  for (ValueId v : g.outputs())
    if (root_[idx(v)] >= 0) values_[idx(root_[idx(v)])].kept = true;
  for (const StateUpdate& u : g.updates())
    if (root_[idx(u.next)] >= 0) values_[idx(root_[idx(u.next)])].kept = true;
}

// Any node may run twice: random ones draw from counters, and what a copy reads of a state is read
// before the update. Only values that live to the end anyway stay.
void RecomputeModel::find_droppable(const Graph& g) {
  std::vector<int> last(values_.size(), -1);
  std::vector<char> read(values_.size(), 0);
  size_t largest = 0;
  for (size_t i = 0; i < steps_.size(); ++i)
    for (int r : steps_[i].reads) {
      read[idx(r)] = 1;
      if (static_cast<int>(i) < forward_)
        last[idx(r)] = static_cast<int>(i);
      else
        values_[idx(r)].saved = true;
    }
  for (const Memory& m : values_) largest = std::max(largest, m.bytes);
  for (size_t r = 0; r < values_.size(); ++r) {
    Memory& m = values_[r];
    if (m.kept || m.producer >= forward_) continue;
    // A state's writer is put off where needed; it can be when nothing else reads what it makes.
    bool fits = true;
    for (int w : steps_[idx(m.producer)].writers)
      for (int made : steps_[idx(w)].makes) fits &= made < 0 || !read[idx(made)];
    if (!fits) continue;
    m.droppable = true;
    if (m.bytes >= std::max<size_t>(largest / 1000, kAlignment))
      candidates_.push_back(
          {static_cast<int>(r), m.saved, m.bytes, m.producer, std::max(last[r], m.producer)});
  }
  ORTRAIN_CHECK(forward_ <= static_cast<int>(g.order.size()), "the loss is outside the order");
}

std::vector<char> RecomputeModel::nothing_dropped() const {
  std::vector<char> dropped(values_.size(), 0);
  for (size_t r = 0; r < values_.size(); ++r)
    dropped[r] = values_[r].droppable && !values_[r].saved;
  return dropped;
}

bool RecomputeModel::wanted(int node, size_t output, const std::vector<char>& dropped) const {
  const Step& s = steps_[idx(node)];
  const int v = s.makes[output];
  if (v < 0) return false;
  if (dropped[idx(v)] || !s.optional[output]) return true;
  size_t largest = 0;
  for (int other : s.makes)
    if (other >= 0) largest = std::max(largest, values_[idx(other)].bytes);
  return values_[idx(v)].bytes <= largest / kSmall;
}

void RecomputeModel::place(int node, bool copy, const std::vector<char>& dropped) {
  if (!copy) at_[idx(node)] = static_cast<int>(placed_.size());
  placed_.push_back({node, copy, true, false, reads_.size()});
  for (int r : steps_[idx(node)].reads) {
    const bool again = (copy || node >= forward_ || late_[idx(node)]) && again_[idx(r)];
    reads_.push_back(instance(r, again));
    ++count_[idx(reads_.back())];
  }
  if (!copy) return;
  for (int made : steps_[idx(node)].makes)
    if (made >= 0 && dropped[idx(made)]) again_[idx(made)] = 1;
}

// A copy is about to read a state that `writer` overwrites: the update goes to the end of the step,
// and with it the updates of what it reads itself.
void RecomputeModel::postpone(int writer) {
  if (late_[idx(writer)]) return;
  late_[idx(writer)] = 1;
  if (at_[idx(writer)] >= 0) {
    Placed& p = placed_[idx(at_[idx(writer)])];
    p.alive = false;
    p.moved = true;
    for (size_t i = 0; i < steps_[idx(writer)].reads.size(); ++i)
      --count_[idx(reads_[p.reads + i])];
  }
  for (int w : steps_[idx(writer)].writers) postpone(w);
}

// Places copies until `value` is there again.
void RecomputeModel::make_again(int value, const std::vector<char>& dropped) {
  stack_.assign(1, value);
  while (!stack_.empty()) {
    const int top = stack_.back();
    if (again_[idx(top)]) {
      stack_.pop_back();
      continue;
    }
    const int p = values_[idx(top)].producer;
    bool ready = true;
    for (int r : steps_[idx(p)].reads)
      if (dropped[idx(r)] && !again_[idx(r)]) stack_.push_back(r), ready = false;
    if (!ready) continue;
    for (int w : steps_[idx(p)].writers)
      if (at_[idx(w)] >= 0) postpone(w);
    place(p, true, dropped);
    stack_.pop_back();
  }
}

void RecomputeModel::arrange(const std::vector<char>& dropped) {
  placed_.clear();
  reads_.clear();
  again_.assign(values_.size(), 0);
  late_.assign(steps_.size(), 0);
  at_.assign(steps_.size(), -1);
  count_.assign(2 * values_.size(), 0);
  const int n = static_cast<int>(steps_.size());
  for (int pass = 0; pass < 2; ++pass)
    for (int i = 0; i < n; ++i) {
      if (steps_[idx(i)].view || late_[idx(i)] != pass) continue;
      if (i >= forward_ || pass == 1)
        for (int r : steps_[idx(i)].reads)
          if (dropped[idx(r)] && !again_[idx(r)]) make_again(r, dropped);
      place(i, false, dropped);
    }
  drop_unread();
}

// Forward nodes whose results are only read by copies' readers need not run at all.
void RecomputeModel::drop_unread() {
  for (size_t k = placed_.size(); k-- > 0;) {
    Placed& p = placed_[k];
    const Step& s = steps_[idx(p.node)];
    if (p.copy || !p.alive || p.node >= forward_ || s.makes.empty()) continue;
    bool read = false;
    for (int made : s.makes)
      read |= made >= 0 && (values_[idx(made)].kept || !values_[idx(made)].droppable ||
                            count_[idx(instance(made, false))] > 0);
    if (read) continue;
    p.alive = false;
    for (size_t i = 0; i < s.reads.size(); ++i) --count_[idx(reads_[p.reads + i])];
  }
}

RecomputeModel::Outcome RecomputeModel::run(const std::vector<char>& dropped, size_t target) {
  arrange(dropped);
  Outcome out;
  last_.assign(2 * values_.size(), -1);
  for (size_t k = 0; k < placed_.size(); ++k) {
    const Placed& p = placed_[k];
    if (!p.alive) continue;
    for (size_t i = 0; i < steps_[idx(p.node)].reads.size(); ++i)
      last_[idx(reads_[p.reads + i])] = static_cast<int>(k);
  }
  size_t live = 0;
  std::vector<int>& taken = stack_;
  for (size_t k = 0; k < placed_.size(); ++k) {
    const Placed& p = placed_[k];
    const Step& s = steps_[idx(p.node)];
    if (!p.alive) {
      if (!p.moved) out.ms -= s.ms;
      continue;
    }
    if (p.copy) out.ms += s.ms, ++out.copies;
    taken.clear();
    size_t gone = 0;  // right after this step
    for (size_t o = 0; o < s.makes.size(); ++o) {
      const int made = s.makes[o];
      if (made < 0 || (p.copy && !wanted(p.node, o, dropped))) continue;
      const Memory& m = values_[idx(made)];
      bool in_place = false;
      for (const auto& [to, from] : s.inplace) {
        if (to != made) continue;
        for (size_t i = 0; i < s.reads.size() && !in_place; ++i) {
          const int inst = reads_[p.reads + i];
          if (inst / 2 != from || last_[idx(inst)] != static_cast<int>(k) ||
              (values_[idx(from)].kept && !(inst & 1)) ||
              std::find(taken.begin(), taken.end(), inst) != taken.end())
            continue;
          taken.push_back(inst);
          in_place = true;
        }
        if (in_place) break;
      }
      if (!in_place) live += m.bytes;
      const bool stays = m.kept && !p.copy;
      if (!stays && last_[idx(instance(made, p.copy))] < 0) gone += m.bytes;
    }
    const size_t now = live + s.workspace;
    out.peak = std::max(out.peak, now);
    if (now > target) out.over += static_cast<double>(now - target);
    for (size_t i = 0; i < s.reads.size(); ++i) {
      const int inst = reads_[p.reads + i];
      if (last_[idx(inst)] != static_cast<int>(k) || (values_[idx(inst / 2)].kept && !(inst & 1)) ||
          std::find(taken.begin(), taken.end(), inst) != taken.end())
        continue;
      gone += values_[idx(inst / 2)].bytes;
    }
    live -= gone;
  }
  return out;
}

std::vector<RecomputeModel::Item> RecomputeModel::items() const {
  std::vector<Item> out;
  for (const Placed& p : placed_)
    if (p.alive) out.push_back({p.node, p.copy});
  return out;
}

}  // namespace ortrain
