// Best fit by size over several orders. Source: the greedy-by-size family of Pisarchyk and Lee,
// "Efficient Memory Management for Deep Neural Net Inference" (2020), with more orders; where none
// reaches the bound, the order that won is changed step by step: what ends at the top, or lies in
// its way, is placed earlier.
#include "runtime/memplan.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "runtime/buffer.h"

namespace ortrain {
namespace {

constexpr int kSteps = 300;              // changes of the best order
constexpr size_t kPlacements = 4000000;  // pairs of blocks looked at in them

struct Block {  // an interval with all its aliases
  size_t bytes = 0;
  int64_t first = 0, last = 0;
  size_t offset = 0;
  size_t crowd = 0;  // most bytes alive at one time of its life
  int64_t length() const { return last - first + 1; }
};

// Assigns offsets to blocks in the given order; returns the peak.
size_t place(std::vector<Block>& blocks, const std::vector<size_t>& order) {
  std::vector<const Block*> placed;  // by offset
  placed.reserve(blocks.size());
  size_t peak = 0;
  for (size_t index : order) {
    Block& b = blocks[index];
    size_t best = SIZE_MAX, best_gap = SIZE_MAX, end = 0;
    for (const Block* p : placed) {
      if (p->last < b.first || b.last < p->first) continue;
      if (p->offset >= end + b.bytes && p->offset - end < best_gap) {
        best = end;
        best_gap = p->offset - end;
      }
      end = std::max(end, p->offset + p->bytes);
    }
    b.offset = best == SIZE_MAX ? end : best;
    peak = std::max(peak, b.offset + b.bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), &b,
                         [](const Block* x, const Block* y) { return x->offset < y->offset; }),
        &b);
  }
  return peak;
}

size_t max_live(const std::vector<Block>& blocks) {
  std::vector<std::pair<int64_t, int64_t>> events;  // (step, bytes that begin or end before it)
  for (const Block& b : blocks) {
    events.emplace_back(b.first, static_cast<int64_t>(b.bytes));
    events.emplace_back(b.last + 1, -static_cast<int64_t>(b.bytes));
  }
  std::sort(events.begin(), events.end());  // ends (negative) before begins of the same step
  int64_t live = 0, most = 0;
  for (const auto& [step, bytes] : events) most = std::max(most, live += bytes);
  return static_cast<size_t>(most);
}

void find_crowds(std::vector<Block>& blocks) {
  int64_t steps = 0;
  for (const Block& b : blocks) steps = std::max(steps, b.last + 2);
  std::vector<int64_t> live(static_cast<size_t>(steps), 0);
  for (const Block& b : blocks) {
    live[static_cast<size_t>(b.first)] += static_cast<int64_t>(b.bytes);
    live[static_cast<size_t>(b.last + 1)] -= static_cast<int64_t>(b.bytes);
  }
  for (size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  for (Block& b : blocks)
    b.crowd =
        static_cast<size_t>(*std::max_element(live.begin() + b.first, live.begin() + b.last + 1));
}

}  // namespace

MemPlan plan_memory(std::span<const Interval> intervals) {
  const size_t n = intervals.size();
  std::vector<size_t> block_of(n);
  std::vector<Block> blocks;
  std::vector<int> root_block(n, -1);
  for (size_t i = 0; i < n; ++i) {
    size_t root = i;
    for (size_t hops = 0; intervals[root].alias_of >= 0; ++hops) {
      ORTRAIN_CHECK(hops < n && static_cast<size_t>(intervals[root].alias_of) < n,
                    "aliases form a cycle or leave the list");
      root = static_cast<size_t>(intervals[root].alias_of);
    }
    const Interval& x = intervals[i];
    ORTRAIN_CHECK(x.first <= x.last, "an interval ends before it begins");
    const size_t bytes = align_up(x.bytes);
    if (root_block[root] < 0) {
      root_block[root] = static_cast<int>(blocks.size());
      blocks.push_back({bytes, x.first, x.last, 0});
    }
    Block& b = blocks[block_of[i] = static_cast<size_t>(root_block[root])];
    b.bytes = std::max(b.bytes, bytes);
    b.first = std::min<int64_t>(b.first, x.first);
    b.last = std::max<int64_t>(b.last, x.last);
  }

  struct Rule {
    const char* name;
    bool (*before)(const Block& a, const Block& b);
  };
  const Rule rules[] = {
      {"size", [](const Block& a, const Block& b) { return a.bytes > b.bytes; }},
      {"size x lifetime",
       [](const Block& a, const Block& b) {
         return static_cast<double>(a.bytes) * static_cast<double>(a.length()) >
                static_cast<double>(b.bytes) * static_cast<double>(b.length());
       }},
      {"lifetime",
       [](const Block& a, const Block& b) {
         return a.length() != b.length() ? a.length() > b.length() : a.bytes > b.bytes;
       }},
      {"first use",
       [](const Block& a, const Block& b) {
         return a.first != b.first ? a.first < b.first : a.bytes > b.bytes;
       }},
      {"last use",
       [](const Block& a, const Block& b) {
         return a.last != b.last ? a.last > b.last : a.bytes > b.bytes;
       }},
      {"crowd",
       [](const Block& a, const Block& b) {
         return a.crowd != b.crowd ? a.crowd > b.crowd : a.bytes > b.bytes;
       }},
      {"crowd, lifetime",
       [](const Block& a, const Block& b) {
         return a.crowd != b.crowd ? a.crowd > b.crowd : a.length() > b.length();
       }},
  };
  MemPlan out;
  out.offsets.assign(n, 0);
  out.lower_bound = max_live(blocks);
  find_crowds(blocks);
  std::vector<size_t> order(blocks.size()), best;
  const auto attempt = [&](const char* name) {
    const size_t peak = place(blocks, order);
    if (!best.empty() && peak >= out.peak) return peak == out.peak;
    best = order;
    out.peak = peak;
    out.order = name;
    for (size_t i = 0; i < n; ++i) out.offsets[i] = blocks[block_of[i]].offset;
    return true;
  };
  for (const Rule& rule : rules) {
    if (!best.empty() && out.peak == out.lower_bound) return out;
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return rule.before(blocks[a], blocks[b]); });
    attempt(rule.name);
  }
  const int steps =
      static_cast<int>(std::min<size_t>(kSteps, kPlacements / (blocks.size() * blocks.size() + 1)));
  order = best;
  uint32_t draw = 1;  // fixed: equal input gives an equal plan
  for (int i = 0; i < steps && out.peak > out.lower_bound; ++i) {
    const std::vector<size_t> before = order;
    if (i > 0) place(blocks, order);
    // Of what ends at the top, or lies below it at the same time, one goes somewhere before.
    std::vector<size_t> near;  // places in the order
    const Block* top = nullptr;
    for (const Block& b : blocks)
      if (!top || b.offset + b.bytes > top->offset + top->bytes) top = &b;
    for (size_t k = 0; k < order.size(); ++k) {
      const Block& b = blocks[order[k]];
      if (k > 0 && b.bytes > 0 && b.first <= top->last && top->first <= b.last) near.push_back(k);
    }
    if (near.empty()) break;
    const auto random = [&](size_t below) {
      draw = draw * 1664525 + 1013904223;
      return static_cast<size_t>(draw >> 8) % below;
    };
    size_t from = near[random(near.size())];
    if (i % 2 == 0)
      for (size_t k : near)
        if (&blocks[order[k]] == top) from = k;
    const size_t to = random(from);
    std::rotate(order.begin() + static_cast<long>(to), order.begin() + static_cast<long>(from),
                order.begin() + static_cast<long>(from) + 1);
    if (!attempt("a changed order")) order = before;
  }
  return out;
}

}  // namespace ortrain
