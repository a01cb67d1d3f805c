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
  find_droppable();
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
      Memory m;
      m.bytes = next[idx(v)] ? 0 : bytes_of(g.value(v));
      m.producer = static_cast<int>(i);
      values_.push_back(std::move(m));
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
      values_[idx(r)].uses.push_back(static_cast<int>(i));
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
void RecomputeModel::find_droppable() {
  for (Memory& m : values_) {
    if (m.kept) continue;
    // A state's writer is put off where needed; it can be when nothing else reads what it makes.
    m.droppable = true;
    for (int w : steps_[idx(m.producer)].writers)
      for (int made : steps_[idx(w)].makes)
        m.droppable &= made < 0 || values_[idx(made)].uses.empty();
    m.saved = m.producer < forward_ && !m.uses.empty() && m.uses.back() >= forward_;
  }
  ORTRAIN_CHECK(forward_ <= static_cast<int>(steps_.size()), "the loss is outside the order");
}

bool RecomputeModel::written(const Item& copy, size_t output) const {
  const Step& s = steps_[idx(copy.node)];
  const int v = s.makes[output];
  if (v < 0) return false;
  if ((copy.makes & bit(output)) || !s.optional[output]) return true;
  size_t largest = 0;
  for (int other : s.makes)
    if (other >= 0) largest = std::max(largest, values_[idx(other)].bytes);
  return values_[idx(v)].bytes <= largest / kSmall;
}

RecomputeModel::Sequence RecomputeModel::base() const {
  Sequence out;
  for (size_t i = 0; i < steps_.size(); ++i)
    if (!steps_[i].view) out.push_back({static_cast<int>(i), false, 0});
  return out;
}

// A copy is about to read a state that `writer` overwrites: the update goes to the end of the step,
// and with it the updates of what it reads itself.
void RecomputeModel::postpone(int writer, Sequence& out) {
  if (late_[idx(writer)]) return;
  late_[idx(writer)] = 1;
  if (at_[idx(writer)] >= 0) out[idx(at_[idx(writer)])].node = -1;
  for (int w : steps_[idx(writer)].writers) postpone(w, out);
}

// Places copies until `value` is there again.
void RecomputeModel::make_again(int value, const std::vector<char>& dropped, Sequence& out) {
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
      if (at_[idx(w)] >= 0) postpone(w, out);
    Item copy{p, true, 0};
    for (size_t o = 0; o < steps_[idx(p)].makes.size(); ++o) {
      const int made = steps_[idx(p)].makes[o];
      if (made < 0 || !dropped[idx(made)]) continue;
      copy.makes |= bit(o);
      again_[idx(made)] = 1;
    }
    out.push_back(copy);
    stack_.pop_back();
  }
}

RecomputeModel::Sequence RecomputeModel::with_dropped(const std::vector<char>& dropped) {
  Sequence out;
  again_.assign(values_.size(), 0);
  late_.assign(steps_.size(), 0);
  at_.assign(steps_.size(), -1);
  const int n = static_cast<int>(steps_.size());
  for (int pass = 0; pass < 2; ++pass)
    for (int i = 0; i < n; ++i) {
      if (steps_[idx(i)].view || late_[idx(i)] != pass) continue;
      if (i >= forward_ || pass == 1)
        for (int r : steps_[idx(i)].reads)
          if (dropped[idx(r)] && !again_[idx(r)]) make_again(r, dropped, out);
      at_[idx(i)] = static_cast<int>(out.size());
      out.push_back({i, false, 0});
    }
  std::erase_if(out, [](const Item& item) { return item.node < 0; });
  return out;
}

// Who reads what; false where something is not there, or not any more.
bool RecomputeModel::resolve(const Sequence& sequence) {
  instances_.clear();
  reads_.clear();
  reads_at_.clear();
  made_at_.clear();
  current_.assign(values_.size(), -1);
  done_.assign(steps_.size(), 0);
  for (const Item& item : sequence) {
    const Step& s = steps_[idx(item.node)];
    for (int w : s.writers)
      if (done_[idx(w)]) return false;
    reads_at_.push_back(static_cast<int>(reads_.size()));
    for (int r : s.reads) {
      if (current_[idx(r)] < 0) return false;
      reads_.push_back(current_[idx(r)]);
      ++instances_[idx(current_[idx(r)])].reads;
    }
    made_at_.push_back(static_cast<int>(instances_.size()));
    for (size_t o = 0; o < s.makes.size(); ++o) {
      const int v = s.makes[o];
      if (v < 0) continue;
      if (!item.copy || (item.makes & bit(o)))
        current_[idx(v)] = static_cast<int>(instances_.size());
      instances_.push_back({v, -1, 0, item.copy});
    }
    if (!item.copy) done_[idx(item.node)] = 1;
  }
  reads_at_.push_back(static_cast<int>(reads_.size()));
  made_at_.push_back(static_cast<int>(instances_.size()));
  return true;
}

void RecomputeModel::find_dead(const Sequence& sequence) {
  alive_.assign(sequence.size(), 1);
  for (size_t k = sequence.size(); k-- > 0;) {
    bool read = made_at_[k] == made_at_[k + 1];  // makes nothing: runs for its effect
    for (int i = made_at_[k]; i < made_at_[k + 1]; ++i) {
      const Instance& made = instances_[idx(i)];
      read |= made.reads > 0 || (!made.copy && values_[idx(made.value)].kept);
    }
    alive_[k] = read;
    if (read) continue;
    for (int i = reads_at_[k]; i < reads_at_[k + 1]; ++i) --instances_[idx(reads_[idx(i)])].reads;
  }
}

RecomputeModel::Outcome RecomputeModel::run(const Sequence& sequence, size_t target) {
  Outcome out;
  if (!resolve(sequence)) {
    out.valid = false;
    out.peak = SIZE_MAX;
    out.over = out.ms = 1e300;
    return out;
  }
  find_dead(sequence);
  for (size_t k = 0; k < sequence.size(); ++k)
    for (int i = reads_at_[k]; alive_[k] && i < reads_at_[k + 1]; ++i)
      instances_[idx(reads_[idx(i)])].last = static_cast<int>(k);
  size_t live = 0;
  for (size_t k = 0; k < sequence.size(); ++k) {
    const Item& item = sequence[k];
    const Step& s = steps_[idx(item.node)];
    if (!alive_[k]) {
      if (!item.copy) out.ms -= s.ms;
      continue;
    }
    if (item.copy) out.ms += s.ms, ++out.copies;
    taken_.clear();
    size_t gone = 0;  // right after this step
    int made = made_at_[k] - 1;
    for (size_t o = 0; o < s.makes.size(); ++o) {
      const int v = s.makes[o];
      if (v < 0) continue;
      ++made;
      if (item.copy && !written(item, o)) continue;
      const Memory& m = values_[idx(v)];
      bool in_place = false;
      for (const auto& [to, from] : s.inplace) {
        if (to != v) continue;
        for (int i = reads_at_[k]; i < reads_at_[k + 1] && !in_place; ++i) {
          const int inst = reads_[idx(i)];
          const Instance& x = instances_[idx(inst)];
          if (x.value != from || x.last != static_cast<int>(k) ||
              (values_[idx(from)].kept && !x.copy) ||
              std::find(taken_.begin(), taken_.end(), inst) != taken_.end())
            continue;
          taken_.push_back(inst);
          in_place = true;
        }
        if (in_place) break;
      }
      if (!in_place) live += m.bytes;
      if (!(m.kept && !item.copy) && instances_[idx(made)].last < 0) gone += m.bytes;
    }
    const size_t now = live + s.workspace;
    out.peak = std::max(out.peak, now);
    if (now > target) out.over += static_cast<double>(now - target);
    for (int i = reads_at_[k]; i < reads_at_[k + 1]; ++i) {
      const int inst = reads_[idx(i)];
      const Instance& x = instances_[idx(inst)];
      if (x.last != static_cast<int>(k) || (values_[idx(x.value)].kept && !x.copy) ||
          std::find(taken_.begin(), taken_.end(), inst) != taken_.end())
        continue;
      gone += values_[idx(x.value)].bytes;
    }
    live -= gone;
  }
  return out;
}

RecomputeModel::Sequence RecomputeModel::needed(const Sequence& sequence) const {
  Sequence out;
  for (size_t k = 0; k < sequence.size(); ++k)
    if (alive_[k]) out.push_back(sequence[k]);
  return out;
}

std::pair<size_t, int> RecomputeModel::bound() const {
  std::pair<size_t, int> most{0, 0};
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& s = steps_[i];
    size_t bytes = s.workspace;
    for (int r : s.reads) bytes += values_[idx(r)].bytes;
    std::vector<int> taken;  // each operand at most once, as if nobody else read it
    for (size_t o = 0; o < s.makes.size(); ++o) {
      if (s.makes[o] < 0 || s.optional[o]) continue;  // another run may make the optional ones
      const auto free = std::find_if(s.inplace.begin(), s.inplace.end(), [&](const auto& pair) {
        return pair.first == s.makes[o] &&
               std::find(taken.begin(), taken.end(), pair.second) == taken.end();
      });
      if (free != s.inplace.end())
        taken.push_back(free->second);
      else
        bytes += values_[idx(s.makes[o])].bytes;
    }
    if (bytes > most.first) most = {bytes, static_cast<int>(i)};
  }
  return most;
}

}  // namespace ortrain
