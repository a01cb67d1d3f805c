// See recompute_evict.h.
#include "graph/passes/recompute_evict.h"

#include <algorithm>
#include <cmath>

namespace ortrain {
namespace {

constexpr int kDeepest = 2000;    // copies made for one another
constexpr size_t kLongest = 8;    // times the step
constexpr double kWork = 1e7;     // values looked at in one run
constexpr double kNever = 1e300;  // cannot be made again, is not read again

size_t idx(int i) { return static_cast<size_t>(i); }

class Evictor {
 public:
  Evictor(const RecomputeModel& model, size_t cap, const EvictRule& rule, std::vector<char>& late)
      : steps_(model.steps()),
        values_(model.values()),
        model_(model),
        cap_(cap),
        rule_(rule),
        late_(late),
        there_(values_.size(), 0),
        locks_(values_.size(), 0),
        use_(values_.size(), 0),
        done_(steps_.size(), 0),
        cost_(values_.size(), 0),
        needed_(values_.size(), 0),
        clock_(steps_.size() + 1, 0) {
    const double whole = rule.count ? static_cast<double>(steps_.size()) : model.step_ms();
    const double least = 1e-3 * std::max(whole, 1e-6) / static_cast<double>(clock_.size());
    for (size_t i = 0; i < steps_.size(); ++i) clock_[i + 1] = clock_[i] + ms_of(i) + least;
  }

  bool run() {
    for (int pass = 0; pass < 2; ++pass)
      for (now_ = 0; now_ < static_cast<int>(steps_.size()); ++now_) {
        if (steps_[idx(now_)].view || late_[idx(now_)] != pass) continue;
        if (!execute({now_, false, 0}, 0)) return false;
        done_[idx(now_)] = 1;
      }
    return true;
  }
  bool postponed() const { return postponed_; }  // try again with the new `late`
  RecomputeModel::Sequence take() { return std::move(out_); }

 private:
  double ms_of(size_t step) const { return rule_.count ? 1 : steps_[step].ms; }

  // When the next reader behind the one that runs does; late ones run last.
  double next_use(int v) {
    const std::vector<int>& uses = values_[idx(v)].uses;
    size_t& first = use_[idx(v)];
    while (first < uses.size() && (done_[idx(uses[first])] || uses[first] == now_)) ++first;
    double late = kNever;
    for (size_t at = first; at < uses.size(); ++at) {
      if (done_[idx(uses[at])] || uses[at] == now_) continue;
      if (!late_[idx(uses[at])]) return clock_[idx(uses[at])];
      late = clock_.back();
    }
    return late;
  }

  bool execute(const RecomputeModel::Item& item, int depth) {
    const RecomputeModel::Step& s = steps_[idx(item.node)];
    if (depth > kDeepest || out_.size() > kLongest * steps_.size() || work_ > kWork) return false;
    for (int w : s.writers)
      if (w != item.node && done_[idx(w)]) return put_off(w);
    for (int r : s.reads) ++locks_[idx(r)];
    for (int r : s.reads)
      if (!there_[idx(r)] && !make_again(r, depth + 1)) return false;
    size_t bytes = s.workspace;
    std::vector<int> free;  // outputs that need memory of their own, and could do without
    taken_.clear();
    for (size_t o = 0; o < s.makes.size(); ++o) {
      const int v = s.makes[o];
      if (v < 0 || (item.copy && !model_.written(item, o))) continue;
      if (const int from = overwritable(s, v, true); from >= 0) {
        taken_.push_back(from);
        continue;
      }
      bytes += values_[idx(v)].bytes;
      free.push_back(v);
    }
    while (live_ + bytes > cap_) {
      if (evict()) continue;
      const auto last = std::find_if(free.begin(), free.end(), [&](int v) {
        const int from = overwritable(s, v, false);
        if (from < 0) return false;
        taken_.push_back(from);
        bytes -= values_[idx(v)].bytes;
        return true;
      });
      if (last == free.end()) return false;
      free.erase(last);
    }
    live_ += bytes - s.workspace;
    for (int from : taken_) there_[idx(from)] = 0;
    for (size_t o = 0; o < s.makes.size(); ++o) {
      const int v = s.makes[o];
      if (v < 0 || (item.copy && !model_.written(item, o))) continue;
      const bool stays = item.copy ? (item.makes & RecomputeModel::bit(o)) != 0
                                   : values_[idx(v)].kept || !values_[idx(v)].uses.empty();
      if (!stays || there_[idx(v)]) live_ -= values_[idx(v)].bytes;  // one of two, or none stays
      if (stays) there_[idx(v)] = 1;
    }
    out_.push_back(item);
    for (int r : s.reads) --locks_[idx(r)];
    return true;
  }

  // Somebody reads a state behind node w, which overwrites it: next time w runs last.
  bool put_off(int w) {
    late_[idx(w)] = postponed_ = true;
    return false;
  }

  // What output v may overwrite: something read for the last time, or (not `dead`) what can be made
  // again; -1 = nothing.
  int overwritable(const RecomputeModel::Step& s, int v, bool dead) {
    for (const auto& [to, from] : s.inplace)
      if (to == v && locks_[idx(from)] == 1 && !values_[idx(from)].kept && there_[idx(from)] &&
          std::find(taken_.begin(), taken_.end(), from) == taken_.end() &&
          (dead ? next_use(from) == kNever : can_come_back(from)))
        return from;
    return -1;
  }

  bool can_come_back(int v) const {
    if (!values_[idx(v)].droppable) return false;
    for (int w : steps_[idx(values_[idx(v)].producer)].writers)
      if (done_[idx(w)]) return false;
    return true;
  }

  bool make_again(int v, int depth) {
    const int p = values_[idx(v)].producer;
    if (p < 0 || !values_[idx(v)].droppable) return false;
    RecomputeModel::Item copy{p, true, 0};
    const RecomputeModel::Step& s = steps_[idx(p)];
    for (size_t o = 0; o < s.makes.size(); ++o) {
      const int made = s.makes[o];
      if (made < 0 || there_[idx(made)]) continue;
      if (made == v || (model_.written({p, true, 0}, o) && next_use(made) < kNever))
        copy.makes |= RecomputeModel::bit(o);
    }
    return execute(copy, depth);
  }

  // Gives up the value that is worth least.
  bool evict() {
    work_ += static_cast<double>(values_.size());
    weigh();
    int worst = -1, blocked = -1;
    double least = kNever;
    for (size_t v = 0; v < values_.size(); ++v) {
      const RecomputeModel::Memory& m = values_[v];
      if (!there_[v] || locks_[v] > 0 || m.kept || m.bytes == 0) continue;
      const double bytes = static_cast<double>(m.bytes);
      double worth = 0;
      if (needed_[v] >= kNever) {
        worth = -bytes;
      } else if (cost_[v] < kNever) {
        worth = std::pow(cost_[v], rule_.time) / std::pow(bytes, rule_.bytes) /
                std::pow(std::max(needed_[v] - clock_[idx(now_)], 1e-9), rule_.wait);
      } else {
        if (m.droppable && (blocked < 0 || m.bytes > values_[idx(blocked)].bytes))
          blocked = static_cast<int>(v);
        continue;
      }
      if (worth < least) least = worth, worst = static_cast<int>(v);
    }
    if (worst < 0) {
      // It could go if the update of a state that it needs came later.
      if (blocked >= 0)
        for (int w : steps_[idx(values_[idx(blocked)].producer)].writers)
          if (done_[idx(w)]) put_off(w);
      return false;
    }
    there_[idx(worst)] = 0;
    live_ -= values_[idx(worst)].bytes;
    return true;
  }

  // Per value: the time to make it again, with what is gone of what that needs; when it is needed.
  void weigh() {
    for (size_t v = 0; v < values_.size(); ++v) {
      needed_[v] = next_use(static_cast<int>(v));
      cost_[v] = kNever;
      if (!can_come_back(static_cast<int>(v))) continue;
      const RecomputeModel::Step& s = steps_[idx(values_[v].producer)];
      double ms = ms_of(idx(values_[v].producer)) + clock_[1] * 1e-3;
      for (int r : s.reads)
        if (!there_[idx(r)]) ms = std::min(kNever, ms + cost_[idx(r)]);
      cost_[v] = ms;
    }
    for (size_t v = values_.size(); v-- > 0;) {
      if (there_[v] || needed_[v] >= kNever || !done_[idx(values_[v].producer)]) continue;
      for (int r : steps_[idx(values_[v].producer)].reads)
        needed_[idx(r)] = std::min(needed_[idx(r)], needed_[v]);
    }
  }

  const std::vector<RecomputeModel::Step>& steps_;
  const std::vector<RecomputeModel::Memory>& values_;
  const RecomputeModel& model_;
  const size_t cap_;
  const EvictRule rule_;
  std::vector<char>& late_;  // nodes that run behind all others
  std::vector<char> there_;
  std::vector<int> locks_;
  std::vector<size_t> use_;
  std::vector<char> done_;
  std::vector<double> cost_, needed_, clock_;
  std::vector<int> taken_;
  RecomputeModel::Sequence out_;
  size_t live_ = 0;
  double work_ = 0;
  int now_ = 0;
  bool postponed_ = false;
};

}  // namespace

std::optional<RecomputeModel::Sequence> evict_until_fits(const RecomputeModel& model, size_t cap,
                                                         const EvictRule& rule) {
  std::vector<char> late(model.steps().size(), 0);
  for (size_t round = 0; round <= model.steps().size() && round < 64; ++round) {
    Evictor evictor(model, cap, rule, late);
    if (evictor.run()) return evictor.take();
    if (!evictor.postponed()) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ortrain
