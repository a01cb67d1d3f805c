// See storage.h. Values that are views of one another form a class; everything below is decided per
// class.
#include "runtime/storage.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain {
namespace {

size_t bytes_of(const Value& x) {
  return static_cast<size_t>(element_count(x.shape.values())) * size_of(x.dtype);
}

class Assigner {
 public:
  Assigner(const Graph& g, std::span<const NodeId> order)
      : g_(g),
        order_(order),
        end_(static_cast<int>(order.size())),
        root_(static_cast<size_t>(g.value_count()), kNone),
        last_read_(static_cast<size_t>(g.value_count()), -1),
        at_(static_cast<size_t>(g.node_count()), -1) {}

  Storage run() {
    out_.home.resize(static_cast<size_t>(g_.value_count()));
    for (ValueId v = 0; v < g_.value_count(); ++v)
      if (g_.value(v).source != Source::kNode) root_[idx(v)] = v;
    for (int i = 0; i < end_; ++i) at_[idx(order_[idx(i)])] = i;
    find_classes();
    find_reads();
    place_sources();
    for (const StateUpdate& u : g_.updates()) update_directly(u);
    for (int i = 0; i < end_; ++i) place_outputs_of(i);
    for (ValueId v = 0; v < g_.value_count(); ++v)
      if (root_[idx(v)] != kNone) home(v) = home(root_[idx(v)]);
    finish_updates();
    finish_outputs();
    return std::move(out_);
  }

 private:
  static size_t idx(int32_t i) { return static_cast<size_t>(i); }
  Home& home(ValueId v) { return out_.home[idx(v)]; }
  static bool is_view(const Node& n) { return n.op->view; }
  ValueId root(ValueId v) const { return root_[idx(v)]; }

  void find_classes() {
    for (NodeId n : order_) {
      const Node& x = g_.node(n);
      for (size_t i = 0; i < x.outputs.size(); ++i) {
        const ValueId v = x.outputs[i];
        if (v == kNone) continue;
        const bool view = i == 0 && is_view(x);
        root_[idx(v)] = view ? root(x.inputs[0]) : v;
        ORTRAIN_CHECK(!view || bytes_of(g_.value(v)) == bytes_of(g_.value(x.inputs[0])),
                      "a view changes the size: " + g_.describe(n));
      }
    }
  }

  void read(ValueId v, int when) {
    int& last = last_read_[idx(root(v))];
    last = std::max(last, when);
  }

  void find_reads() {
    for (int i = 0; i < end_; ++i) {
      const Node& x = g_.node(order_[idx(i)]);
      if (is_view(x)) continue;
      for (ValueId v : x.inputs)
        if (v != kNone) {
          ORTRAIN_CHECK(root(v) != kNone, "used before it is made: " + g_.describe(order_[idx(i)]));
          read(v, i);
        }
    }
    for (ValueId v : g_.outputs()) read(v, end_ + 2);
    for (const StateUpdate& u : g_.updates())
      if (root(u.next) != root(u.state)) read(u.next, end_ + 1);
  }

  void place_sources() {
    for (size_t i = 0; i < g_.inputs().size(); ++i)
      home(g_.inputs()[i]) = {Home::Kind::kInput, static_cast<int>(i)};
    for (ValueId v = 0; v < g_.value_count(); ++v) {
      const Source s = g_.value(v).source;
      if (s == Source::kParam || s == Source::kState) home(v) = {Home::Kind::kStored, v};
      if (s == Source::kConst) home(v) = {Home::Kind::kConst, v};
    }
  }

  bool may_overwrite(const Node& n, int output, ValueId input_root) const {
    int slots = 0;
    ValueId value = kNone;
    bool one_value = true;
    for (ValueId v : n.inputs)
      if (v != kNone && root(v) == input_root) {
        one_value &= value == kNone || value == v;
        value = v;
        ++slots;
      }
    // Reading the memory twice is harmless only elementwise and through the same value.
    if (slots > 1 && !(one_value && n.op->ew != Ew::kNone)) return false;
    for (const auto& [o, i] : n.op->inplace)
      if (o == output && i < static_cast<int>(n.inputs.size()) && n.inputs[idx(i)] != kNone &&
          root(n.inputs[idx(i)]) == input_root)
        return true;
    return false;
  }

  // Puts `next` where `state` lies, if nobody reads the state once `next` is being written.
  void update_directly(const StateUpdate& u) {
    const ValueId made = root(u.next);
    const NodeId producer = g_.value(made).producer;
    if (producer == kNone || home(made).kind != Home::Kind::kNowhere) return;
    if (bytes_of(g_.value(made)) != bytes_of(g_.value(u.state))) return;
    const int now = at_[idx(producer)], last = last_read_[idx(u.state)];
    if (last > now) return;
    if (last == now && !may_overwrite(g_.node(producer), g_.value(made).output_index, u.state))
      return;
    home(made) = {Home::Kind::kStored, u.state};
    direct_.push_back(u.state);
    ++out_.direct_updates;
  }

  void place_outputs_of(int now) {
    const Node& n = g_.node(order_[idx(now)]);
    std::vector<ValueId> taken;  // inputs of this node already overwritten by an output
    for (size_t o = 0; o < n.outputs.size(); ++o) {
      const ValueId v = n.outputs[o];
      if (v == kNone || root(v) != v || home(v).kind != Home::Kind::kNowhere) continue;
      Interval x{bytes_of(g_.value(v)), now, std::max(now, last_read_[idx(v)]), -1};
      for (const auto& [output, i] : n.op->inplace) {
        if (output != static_cast<int>(o) || i >= static_cast<int>(n.inputs.size())) continue;
        const ValueId in = n.inputs[idx(i)];
        if (in == kNone) continue;
        const ValueId source = root(in);
        if (home(source).kind != Home::Kind::kArena || last_read_[idx(source)] != now ||
            bytes_of(g_.value(source)) != x.bytes ||
            std::find(taken.begin(), taken.end(), source) != taken.end() ||
            !may_overwrite(n, output, source))
          continue;
        x.alias_of = home(source).index;
        taken.push_back(source);
        ++out_.in_place;
        break;
      }
      home(v) = arena(x);
    }
  }

  Home arena(Interval x) {
    out_.intervals.push_back(x);
    return {Home::Kind::kArena, static_cast<int>(out_.intervals.size()) - 1};
  }

  // Stored memory that some update overwrites at the end of the step.
  bool overwritten(const Home& h) const {
    if (h.kind != Home::Kind::kStored) return false;
    for (const StateUpdate& u : g_.updates())
      if (u.state == h.index && root(u.next) != root(u.state)) return true;
    return false;
  }
  bool is_direct(ValueId state) const {
    return std::find(direct_.begin(), direct_.end(), state) != direct_.end();
  }

  // Old contents of a state that is also updated are saved first, so that copies cannot chase one
  // another.
  Home saved(ValueId v, int until) {
    const Home h = home(v);
    if (h.kind != Home::Kind::kStored || g_.value(root(v)).source == Source::kNode ||
        !overwritten(h))
      return h;
    const size_t bytes = bytes_of(g_.value(v));
    const Home copy = arena({bytes, end_, until, -1});
    out_.copies.insert(out_.copies.begin(), CopyAtEnd{h, copy, bytes});
    return copy;
  }

  void finish_updates() {
    for (const StateUpdate& u : g_.updates()) {
      const Home to = home(u.state), from = saved(u.next, end_ + 1);
      if (root(u.next) == root(u.state) || is_direct(u.state)) continue;
      out_.copies.push_back({from, to, bytes_of(g_.value(u.state))});
    }
  }

  void finish_outputs() {
    for (ValueId v : g_.outputs()) out_.output_home.push_back(saved(v, end_ + 2));
  }

  const Graph& g_;
  std::span<const NodeId> order_;
  const int end_;
  std::vector<ValueId> root_;    // per value: the value whose memory it shares by views
  std::vector<int> last_read_;   // per class
  std::vector<int> at_;          // per node: position in the order
  std::vector<ValueId> direct_;  // states whose update needs no copy
  Storage out_;
};

}  // namespace

Storage assign_storage(const Graph& g, std::span<const NodeId> order) {
  return Assigner(g, order).run();
}

}  // namespace ortrain
