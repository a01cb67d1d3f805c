// See recompute_search.h.
#include "graph/passes/recompute_search.h"

#include <algorithm>
#include <optional>

#include "graph/passes/recompute_evict.h"

namespace ortrain {
namespace {

using Sequence = RecomputeModel::Sequence;

constexpr int kVerifications = 12;  // exact plans per search
constexpr int kMaxSegments = 48;
constexpr size_t kThinned = 4;  // sequences worth thinning out
constexpr size_t kAgain = 4;    // rules that further attempts use
constexpr double kWork = 2e7;   // items looked at while thinning one out
constexpr EvictRule kRules[] = {{1, 1, 1},      {1, 1, 0}, {1, 1, 0.5}, {0.5, 1, 1},
                                {0.5, 1, 0.5},  {0, 1, 1}, {1, 0.5, 1}, {1, 0.5, 0.5},
                                {0.25, 0.5, 1}, {2, 1, 1}, {0.5, 0, 1}, {0, 0, 1}};
constexpr EvictRule kCompact[] = {{1, 1, 1, true},   {0, 1, 1, true},   {0, 1, 0, true},
                                  {0, 0.5, 1, true}, {0, 0, 1, true},   {1, 1, 0, true},
                                  {0.5, 1, 1, true}, {0.5, 0, 1, true}, {1, 0.5, 1, true}};
constexpr int kCaps = 24;
constexpr size_t kPlaced = 12;  // of the lowest peaks: their exact plans differ in order

size_t idx(int i) { return static_cast<size_t>(i); }

struct Choice {
  Sequence sequence;
  RecomputeModel::Outcome outcome;
};

class Search {
 public:
  explicit Search(RecomputeModel& model) : model_(model) {}

  Choice judge(const Sequence& sequence, size_t target) {
    const auto outcome = model_.run(sequence, target);
    return {outcome.valid ? model_.needed(sequence) : sequence, outcome};
  }

  // Leaves out copies that need not be, the most expensive first.
  Choice thin_out(Choice now, size_t target) {
    double work = 0;
    for (bool changed = true; changed && work < kWork;) {
      changed = false;
      std::vector<std::pair<double, size_t>> copies;
      for (size_t k = 0; k < now.sequence.size(); ++k)
        if (now.sequence[k].copy)
          copies.emplace_back(-model_.steps()[idx(now.sequence[k].node)].ms, k);
      std::sort(copies.begin(), copies.end());
      std::vector<char> out(now.sequence.size(), 0);
      for (const auto& [ms, k] : copies) {
        work += static_cast<double>(now.sequence.size());
        out[k] = 1;
        Sequence next;
        for (size_t i = 0; i < out.size(); ++i)
          if (!out[i]) next.push_back(now.sequence[i]);
        const auto outcome = model_.run(next, target);
        if (!outcome.valid || outcome.peak > target || outcome.ms >= now.outcome.ms) {
          out[k] = 0;
          continue;
        }
        now.outcome = outcome;
        changed = true;
      }
      Sequence next;
      for (size_t i = 0; i < out.size(); ++i)
        if (!out[i]) next.push_back(now.sequence[i]);
      now = judge(next, target);
    }
    return now;
  }

  // The cheapest choice found whose peak is at most `target`; the one with the lowest peak when
  // none is.
  Choice best(size_t target) {
    std::vector<Choice> found{judge(model_.base(), target)};
    std::vector<std::pair<double, EvictRule>> ranked;
    for (const EvictRule& rule : rules_) {
      const auto sequence = evict_until_fits(model_, target, rule);
      if (!sequence) continue;
      found.push_back(judge(*sequence, target));
      ranked.emplace_back(found.back().outcome.ms, rule);
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    if (ranked.size() > kAgain) ranked.resize(kAgain);
    if (!ranked.empty()) rules_.clear();
    for (const auto& [ms, rule] : ranked) rules_.push_back(rule);
    for (int k = 1; k <= std::min(kMaxSegments, model_.forward()); ++k)
      found.push_back(judge(in_segments(model_, k), target));
    std::stable_sort(found.begin(), found.end(), [&](const Choice& a, const Choice& b) {
      const bool fits = a.outcome.peak <= target, other = b.outcome.peak <= target;
      if (fits != other) return fits;
      return fits ? a.outcome.ms < b.outcome.ms : a.outcome.peak < b.outcome.peak;
    });
    if (found[0].outcome.peak > target) return std::move(found[0]);
    std::optional<Choice> best;
    for (size_t i = 0; i < std::min(kThinned, found.size()); ++i) {
      if (found[i].outcome.peak > target) break;
      Choice c = thin_out(std::move(found[i]), target);
      if (!best || c.outcome.ms < best->outcome.ms) best = std::move(c);
    }
    return std::move(*best);
  }

  // The lowest peaks found, the lowest first, and the lowest of segments: caps between the bound
  // and that, in equal steps, then once more below the best. No measured time plays a part.
  std::vector<Choice> least() {
    Choice start = judge(model_.base(), 0);
    for (int k = 1; k <= std::min(kMaxSegments, model_.forward()); ++k)
      if (Choice c = judge(in_segments(model_, k), 0); c.outcome.peak < start.outcome.peak)
        start = std::move(c);
    std::vector<Choice> pool;
    size_t low = model_.bound().first, high = start.outcome.peak;
    for (int round = 0; round < 2 && low < high; ++round) {
      const size_t step = (high - low) / kCaps + 64;
      for (size_t cap = low; cap < high; cap += step)
        for (const EvictRule& rule : kCompact) {
          const auto sequence = evict_until_fits(model_, cap, rule);
          if (!sequence) continue;
          pool.push_back(judge(*sequence, 0));
          high = std::min(high, pool.back().outcome.peak);
        }
      low = std::max(low, high - std::min(high, step));
    }
    std::stable_sort(pool.begin(), pool.end(), [](const Choice& a, const Choice& b) {
      return a.outcome.peak < b.outcome.peak;
    });
    if (pool.size() > kPlaced) pool.resize(kPlaced, start);
    pool.push_back(std::move(start));
    return pool;
  }

 private:
  RecomputeModel& model_;
  std::vector<EvictRule> rules_{std::begin(kRules), std::end(kRules)};
};

}  // namespace

Sequence in_segments(RecomputeModel& model, int segments) {
  struct Made {
    int at, last_forward_use;
    size_t bytes;
  };
  std::vector<Made> values;
  std::vector<double> saved(idx(model.forward()), 0);
  double total = 0;
  for (const auto& m : model.values()) {
    if (m.producer < 0 || m.producer >= model.forward()) continue;
    int last = m.producer;
    for (int use : m.uses)
      if (use < model.forward()) last = std::max(last, use);
    values.push_back({m.producer, last, m.bytes});
    if (!m.saved) continue;
    saved[idx(m.producer)] += static_cast<double>(m.bytes);
    total += static_cast<double>(m.bytes);
  }
  // The position near `at` where the fewest bytes that forward still needs cross.
  const auto narrowest = [&](int at) {
    const int reach = std::max(2, model.forward() / 40);
    int best = at;
    double least = -1;
    for (int i = std::max(0, at - reach); i <= std::min(model.forward() - 2, at + reach); ++i) {
      double bytes = 0;
      for (const Made& m : values)
        if (m.at <= i && m.last_forward_use > i) bytes += static_cast<double>(m.bytes);
      if (least < 0 || bytes < least) least = bytes, best = i;
    }
    return best;
  };
  std::vector<int> borders;  // positions; a border lies behind its node
  double sum = 0;
  for (int i = 0; i < model.forward(); ++i) {
    sum += saved[idx(i)];
    const double next = total * static_cast<double>(borders.size() + 1) / segments;
    if (static_cast<int>(borders.size()) + 1 < segments && sum >= next)
      borders.push_back(narrowest(i));
  }
  const int last = borders.empty() ? 0 : borders.back();
  std::vector<char> dropped(model.values().size(), 0);
  size_t at = 0;
  for (size_t v = 0; v < dropped.size(); ++v) {
    const auto& m = model.values()[v];
    if (m.producer < 0 || m.producer >= model.forward()) continue;
    const Made& made = values[at++];
    bool kept = segments > 1 && made.at > last;
    for (int b : borders) kept |= made.at <= b && made.last_forward_use > b;
    dropped[v] = m.droppable && !kept;
  }
  return model.with_dropped(dropped);
}

Sequence find_sequence(RecomputeModel& model, size_t limit,
                       const std::function<size_t(const Sequence&)>& planned) {
  Search search(model);
  // What placing the values costs above the bytes that are alive is only known once they are
  // placed: aim lower by that much and try again.
  size_t target = limit, least = SIZE_MAX;
  Sequence best;
  const auto attempt = [&](const Choice& c) {
    const size_t arena = planned(c.sequence);
    if (arena < least) best = c.sequence, least = arena;
    const size_t above = std::max(arena - std::min(arena, limit), limit / 256);
    const bool again = arena > limit && c.outcome.peak <= target && above < target;
    target -= again ? above : 0;
    return again;
  };
  for (int i = 0; i < kVerifications && attempt(search.best(target));) ++i;
  if (least <= limit) return best;
  for (const Choice& compact : search.least()) {
    attempt(compact);
    if (least > limit) continue;
    const Choice thinner = search.thin_out(compact, compact.outcome.peak + (limit - least));
    return planned(thinner.sequence) <= limit ? thinner.sequence : best;
  }
  return best;
}

}  // namespace ortrain
