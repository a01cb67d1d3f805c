// TfIdfVectorizer: counts the n-grams of a pool in rows of integers, skips between their items
// allowed; TF gives counts, IDF weights of those present, TFIDF counts times weights.
//
// X is [C] or [B,C], the result [columns] or [B,columns], f32, columns = max(ngram_indexes) + 1.
// A pool of strings is refused. No gradient: the input is integers.
#include <algorithm>
#include <map>

#include "graph/error.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kMostColumns = 1 << 24;

// The pool as a tree: a path of items is an n-gram; `column` -1 where none ends.
struct Tree {
  struct Node {
    std::map<int64_t, size_t> next;
    int64_t column = -1;
  };
  std::vector<Node> nodes{1};
  int64_t columns = 0, shortest = 1, longest = 1, most_skips = 0;
  std::vector<float> weights;  // empty: all 1
  bool count = true;           // counts, not presence

  void add(const int64_t* items, int64_t n, int64_t column) {
    size_t at = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto [it, added] = nodes[at].next.try_emplace(items[i], nodes.size());
      at = it->second;
      if (added) nodes.emplace_back();
    }
    nodes[at].column = column;
  }
};

Tree tree_of(const Attrs& a) {
  Tree t;
  if (!a.strings("pool_strings").empty())
    fail(ErrorCode::kUnsupported, "pool_strings: ortrain has no string tensors");
  const Dims pool = a.ints("pool_int64s"), starts = a.ints("ngram_counts");
  const Dims index = a.ints("ngram_indexes");
  const std::string mode = a.s("mode", "");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
    fail(ErrorCode::kModel, "mode is '", mode, "', expected TF, IDF or TFIDF");
  t.shortest = a.i("min_gram_length", 1), t.longest = a.i("max_gram_length", 1);
  t.most_skips = a.i("max_skip_count", 0);
  if (t.shortest < 1 || t.longest < t.shortest || t.most_skips < 0)
    fail(ErrorCode::kModel, "n-grams of ", t.shortest, " to ", t.longest, " items with up to ",
         t.most_skips, " skips");
  for (int64_t i : index) {
    if (i < 0 || i >= kMostColumns)
      fail(ErrorCode::kModel, "ngram_indexes holds ", i, ", expected 0 to ", kMostColumns - 1);
    t.columns = std::max(t.columns, i + 1);
  }
  if (t.columns == 0) fail(ErrorCode::kModel, "ngram_indexes is empty");
  const auto total = static_cast<int64_t>(pool.size());
  size_t number = 0;
  for (size_t k = 0; k < starts.size(); ++k) {
    const int64_t begin = starts[k], end = k + 1 < starts.size() ? starts[k + 1] : total;
    const auto n = static_cast<int64_t>(k) + 1;
    if (begin < 0 || end < begin || end > total)
      fail(ErrorCode::kModel, "ngram_counts places ", n, "-grams at ", begin, " to ", end, " of ",
           total, " items");
    for (int64_t at = begin; at + n <= end; at += n, ++number) {
      if (number >= index.size())
        fail(ErrorCode::kModel, "ngram_indexes has ", index.size(),
             " numbers, the pool more n-grams");
      if (n >= t.shortest && n <= t.longest) t.add(pool.data() + at, n, index[number]);
    }
  }
  t.count = mode != "IDF";
  if (mode != "TF")
    for (double w : a.floats("weights")) t.weights.push_back(static_cast<float>(w));
  if (!t.weights.empty() && static_cast<int64_t>(t.weights.size()) < t.columns)
    fail(ErrorCode::kModel, "weights has ", t.weights.size(), " numbers, expected ", t.columns);
  return t;
}

void infer(InferCtx& c) {
  const Tree t = tree_of(c.attrs());
  if (c.dtype(0) != DType::kI32 && c.dtype(0) != DType::kI64)
    fail(ErrorCode::kUnsupported, "X is ", name_of(c.dtype(0)), ", expected i32 or i64");
  if (c.rank(0) > 2) c.fail(cat("X ", c.shape(0).str(), ", expected [C] or [B,C]"));
  c.out(0, DType::kF32, c.rank(0) == 2 ? Shape{c.shape(0)[0], t.columns} : Shape{t.columns});
}

template <class T>
void count_row(const Tree& t, const T* x, int64_t n, float* y) {
  int64_t shortest = t.shortest;
  for (int64_t step = 1; step <= std::min(t.most_skips, std::max<int64_t>(n - 1, 0)) + 1; ++step) {
    // Distances beyond n - 1 reach no second item: no n can overflow here.
    for (int64_t start = 0; start < n && (shortest - 1) <= (n - 1 - start) / step; ++start) {
      size_t node = 0;
      int64_t length = 1;
      for (int64_t at = start; at < n && length <= t.longest; at += step, ++length) {
        const auto& next = t.nodes[node].next;
        const auto it = next.find(static_cast<int64_t>(x[at]));
        if (it == next.end()) break;
        node = it->second;
        if (length >= shortest && t.nodes[node].column >= 0) y[t.nodes[node].column] += 1;
      }
    }
    // Single items do not depend on the distance: counted once.
    if (shortest == 1 && ++shortest > t.longest) return;
  }
}

Kernel kernel(const KernelQuery& q) {
  const Dims& x = q.in[0].dims;
  const int64_t rows = x.size() == 2 ? x[0] : 1, n = x.empty() ? 1 : x.back();
  return {0, [t = tree_of(q.attrs), rows, n, threads = q.threads,
              wide = q.in[0].dtype == DType::kI64](const KernelArgs& a) {
            parallel_for(threads, rows, 1, [&](int64_t begin, int64_t end) {
              for (int64_t r = begin; r < end; ++r) {
                float* y = a.y<float>(0) + r * t.columns;
                std::fill_n(y, t.columns, 0.f);
                if (wide)
                  count_row(t, a.x<int64_t>(0) + r * n, n, y);
                else
                  count_row(t, a.x<int32_t>(0) + r * n, n, y);
                for (int64_t i = 0; i < t.columns; ++i) {
                  if (!t.count) y[i] = y[i] > 0 ? 1.f : 0.f;
                  if (!t.weights.empty()) y[i] *= t.weights[static_cast<size_t>(i)];
                }
              }
            });
          }};
}

}  // namespace

void register_tf_idf_vectorizer(OpTable& table) {
  using Ints = std::vector<int64_t>;
  const auto attrs = [](const char* mode, int64_t shortest, int64_t skips) {
    return Attrs{{"mode", mode},
                 {"min_gram_length", shortest},
                 {"max_gram_length", 2},
                 {"max_skip_count", skips},
                 {"ngram_counts", Ints{0, 4}},
                 {"ngram_indexes", Ints{0, 1, 2, 3, 4, 5, 6}},
                 {"pool_int64s", Ints{2, 3, 5, 4, 5, 6, 7, 8, 6, 7}},
                 {"weights", std::vector<double>{1, 2, 3, 4, 5, 6, 7}}};
  };
  table.add({
      .name = "TfIdfVectorizer",
      .inputs = {"X"},
      .outputs = {"Y"},
      .since = 9,
      .infer = infer,
      .grad = {no_grad("X")},
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {ints({2, 6}, 1, 9)}, .attrs = attrs("TF", 1, 5)},
                   {.in = {ints({12}, 1, 9)}, .attrs = attrs("IDF", 2, 0)},
                   {.in = {ints({3, 20}, 1, 9)}, .attrs = attrs("TFIDF", 1, 3)},
                   {.in = {ints({2, 0}, 1, 9)}, .attrs = attrs("TF", 1, 0)}},
      .note = "integers only",
  });
}

}  // namespace ortrain::ops
