// Best fit by size over several orders. Source: the greedy-by-size family of Pisarchyk and Lee,
// "Efficient Memory Management for Deep Neural Net Inference" (2020), with more orders.
#include "runtime/memplan.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "runtime/buffer.h"

namespace ortrain {
namespace {

struct Block {  // an interval with all its aliases
  size_t bytes = 0;
  int64_t first = 0, last = 0;
  size_t offset = 0;
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
  };
  MemPlan out;
  out.offsets.assign(n, 0);
  out.lower_bound = max_live(blocks);
  std::vector<size_t> order(blocks.size());
  bool found = false;
  for (const Rule& rule : rules) {
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return rule.before(blocks[a], blocks[b]); });
    const size_t peak = place(blocks, order);
    if (!found || peak < out.peak) {
      found = true;
      out.peak = peak;
      out.order = rule.name;
      for (size_t i = 0; i < n; ++i) out.offsets[i] = blocks[block_of[i]].offset;
    }
    if (out.peak == out.lower_bound) break;
  }
  return out;
}

}  // namespace ortrain
