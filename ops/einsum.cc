// Einsum: any number of operands, repeated labels (diagonals), ellipsis with broadcasting, implicit
// and explicit output. It has no kernel: it means Transpose, Reshape, MatMul, Mul, ReduceSum and
// (for diagonals) Slice, operands taken from left to right; gradients follow from these.
#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

using Labels = std::vector<int>;  // letters as they are; ellipsis axes 256, 257, ... (last = 256)

struct Equation {
  std::vector<Labels> in;
  Labels out;
};

bool contains(const Labels& l, int label) {
  return std::find(l.begin(), l.end(), label) != l.end();
}

// `ellipsis` axes stand for "...".
Labels labels_of(std::string_view term, int ellipsis) {
  Labels out;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term.substr(i, 3) == "...") {
      for (int k = ellipsis; k-- > 0;) out.push_back(256 + k);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(term[i]))) {
      out.push_back(term[i]);
    } else {
      fail(ErrorCode::kModel, "'", term, "' in the equation");
    }
  }
  return out;
}

Equation parse(const Attrs& attrs, const std::vector<int>& ranks) {
  std::string text = attrs.s("equation", "");
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  std::string_view left = std::string_view(text).substr(0, arrow);
  std::vector<std::string_view> terms;
  for (size_t comma; (comma = left.find(',')) != left.npos; left.remove_prefix(comma + 1))
    terms.push_back(left.substr(0, comma));
  terms.push_back(left);
  if (terms.size() != ranks.size())
    fail(ErrorCode::kModel, "equation '", text, "' has ", terms.size(), " terms for ", ranks.size(),
         " inputs");
  Equation e;
  int widest = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const bool dots = terms[i].find("...") != terms[i].npos;
    const int letters = static_cast<int>(terms[i].size()) - (dots ? 3 : 0);
    const int covered = ranks[i] - letters;
    if (covered < 0 || (!dots && covered != 0))
      fail(ErrorCode::kShape, "term '", terms[i], "' does not fit an input of rank ", ranks[i]);
    e.in.push_back(labels_of(terms[i], covered));
    widest = std::max(widest, covered);
  }
  if (arrow != text.npos) {
    e.out = labels_of(std::string_view(text).substr(arrow + 2), widest);
  } else {
    std::map<int, int> seen;
    for (const Labels& l : e.in)
      for (int label : l) ++seen[label];
    for (int k = widest; k-- > 0;) e.out.push_back(256 + k);
    for (const auto& [label, n] : seen)
      if (label < 256 && n == 1) e.out.push_back(label);
  }
  for (size_t i = 0; i < e.out.size(); ++i) {
    const bool known = std::any_of(e.in.begin(), e.in.end(),
                                   [&](const Labels& l) { return contains(l, e.out[i]); });
    if (!known || std::count(e.out.begin(), e.out.end(), e.out[i]) != 1)
      fail(ErrorCode::kModel, "equation '", text, "': an output label is unknown or repeated");
  }
  return e;
}

void infer(InferCtx& c) {
  std::vector<int> ranks;
  for (int i = 0; i < c.input_count(); ++i) ranks.push_back(c.rank(i));
  const Equation e = parse(c.attrs(), ranks);
  std::map<int, Dim> extents;
  for (size_t i = 0; i < e.in.size(); ++i)
    for (size_t k = 0; k < e.in[i].size(); ++k) {
      const Dim d = c.shape(static_cast<int>(i))[static_cast<int>(k)];
      const auto [it, inserted] = extents.emplace(e.in[i][k], d);
      if (inserted || it->second == d || d == Dim(1)) continue;
      if (prove_equal(it->second, d) == Tri::kNo && !(it->second == Dim(1)))
        c.fail(cat("a label is ", it->second.str(), " and ", d.str()));
      if (!it->second.is_const() || it->second == Dim(1)) it->second = d;
    }
  Shape out;
  for (int label : e.out) out.push_back(extents[label]);
  c.out(0, c.dtype(0), out);
}

// A tensor with a label per axis.
struct Term {
  Expr x;
  Labels labels;
  Dim extent(int label) const {
    return x
        .shape()[static_cast<int>(std::find(labels.begin(), labels.end(), label) - labels.begin())];
  }
};

Term ordered(Term t, const Labels& order) {
  std::vector<int64_t> perm;
  for (int label : order)
    perm.push_back(std::find(t.labels.begin(), t.labels.end(), label) - t.labels.begin());
  return {t.x.builder().transpose(t.x, perm), order};
}

Term summed(Term t, const Labels& away) {
  std::vector<int64_t> axes;
  Labels rest;
  for (size_t i = 0; i < t.labels.size(); ++i)
    contains(away, t.labels[i]) ? axes.push_back(static_cast<int64_t>(i))
                                : rest.push_back(t.labels[i]);
  return {t.x.builder().sum(t.x, axes, /*keepdims=*/false), rest};
}

// Merges a label that occurs twice: the diagonal is every (n + 1)-th element of [n * n].
Term diagonal(Term t) {
  for (size_t i = 0; i < t.labels.size(); ++i) {
    const int label = t.labels[i];
    const auto second =
        std::find(t.labels.begin() + static_cast<std::ptrdiff_t>(i) + 1, t.labels.end(), label);
    if (second == t.labels.end()) continue;
    Builder& b = t.x.builder();
    const auto j = static_cast<size_t>(second - t.labels.begin());
    std::vector<int64_t> perm;
    Labels rest;
    Dims dims;
    for (size_t k = 0; k < t.labels.size(); ++k) {
      if (k == i || k == j) continue;
      perm.push_back(static_cast<int64_t>(k));
      rest.push_back(t.labels[k]);
      dims.push_back(t.x.shape()[static_cast<int>(k)].value());
    }
    perm.push_back(static_cast<int64_t>(i));
    perm.push_back(static_cast<int64_t>(j));
    const int64_t n = t.x.shape()[static_cast<int>(i)].value();
    const auto last = static_cast<int64_t>(dims.size());
    dims.push_back(n * n);
    Expr flat = b.reshape(b.transpose(t.x, perm), dims);
    rest.push_back(label);
    return diagonal(
        {b.op("Slice", {flat, b.ints({0}), b.ints({n * n}), b.ints({last}), b.ints({n + 1})}),
         rest});
  }
  return t;
}

// x as [leading dims of `lead`..., product of `a`, product of `b`]
Expr matrix(const Term& t, const Labels& lead, const Labels& a, const Labels& b) {
  Labels order = lead;
  order.insert(order.end(), a.begin(), a.end());
  order.insert(order.end(), b.begin(), b.end());
  const Term o = ordered(t, order);
  Dims dims;
  for (int label : lead) dims.push_back(o.extent(label).value());
  for (const Labels* part : {&a, &b}) {
    int64_t n = 1;
    for (int label : *part) n *= o.extent(label).value();
    dims.push_back(n);
  }
  return o.x.builder().reshape(o.x, dims);
}

Term contract(const Term& left, const Term& right, const std::set<int>& kept) {
  Builder& b = left.x.builder();
  Labels drop_left, drop_right;
  for (int l : left.labels)
    if (!kept.contains(l) && !contains(right.labels, l)) drop_left.push_back(l);
  for (int l : right.labels)
    if (!kept.contains(l) && !contains(left.labels, l)) drop_right.push_back(l);
  const Term x = summed(left, drop_left), y = summed(right, drop_right);
  Labels batch, inner, free_x, free_y;
  for (int l : x.labels)
    (!contains(y.labels, l) ? free_x : kept.contains(l) ? batch : inner).push_back(l);
  for (int l : y.labels)
    if (!contains(x.labels, l)) free_y.push_back(l);
  Labels out = batch;
  out.insert(out.end(), free_x.begin(), free_x.end());
  out.insert(out.end(), free_y.begin(), free_y.end());
  Expr product;
  if (inner.empty()) {
    product = matrix(x, batch, free_x, {}) * matrix(y, batch, {}, free_y);
  } else {
    product = b.matmul(matrix(x, batch, free_x, inner), matrix(y, batch, inner, free_y));
  }
  Dims dims;
  for (size_t i = 0; i < batch.size(); ++i)
    dims.push_back(product.shape()[static_cast<int>(i)].value());
  for (int l : free_x) dims.push_back(x.extent(l).value());
  for (int l : free_y) dims.push_back(y.extent(l).value());
  return {b.reshape(product, dims), out};
}

std::vector<Expr> decompose(Decompose& d) {
  const auto n = static_cast<int>(d.node().inputs.size());
  std::vector<int> ranks;
  for (int i = 0; i < n; ++i) ranks.push_back(d.x(i).rank());
  const Equation e = parse(d.attrs(), ranks);
  Term t = diagonal({d.x(0), e.in[0]});
  for (int i = 1; i < n; ++i) {
    std::set<int> kept(e.out.begin(), e.out.end());
    for (int k = i + 1; k < n; ++k)
      kept.insert(e.in[static_cast<size_t>(k)].begin(), e.in[static_cast<size_t>(k)].end());
    t = contract(t, diagonal({d.x(i), e.in[static_cast<size_t>(i)]}), kept);
  }
  Labels away;
  for (int l : t.labels)
    if (!contains(e.out, l)) away.push_back(l);
  return {ordered(summed(t, away), e.out).x};
}

}  // namespace

void register_einsum(OpTable& table) {
  const auto example = [](const char* equation, std::vector<Dims> dims) {
    Example e;
    for (Dims& d : dims) e.in.push_back(f(std::move(d)));
    e.attrs.set("equation", std::string(equation));
    return e;
  };
  table.add({
      .name = "Einsum",
      .inputs = {"Inputs*"},
      .outputs = {"Output"},
      .since = 12,
      .infer = infer,
      .decompose = decompose,
      .precision = Precision::kAlways16,
      .examples = {example("ij,jk->ik", {{2, 3}, {3, 4}}),
                   example("bhqd,bhkd->bhqk", {{2, 2, 3, 4}, {2, 2, 5, 4}}),
                   example("bqhd, bkhd -> bhqk", {{2, 3, 2, 4}, {2, 5, 2, 4}}),
                   example("...ij,...jk->...ik", {{2, 1, 2, 3}, {4, 3, 2}}),
                   example("ij->ji", {{2, 3}}), example("ij->j", {{2, 3}}),
                   example("ii->i", {{3, 3}}), example("bii->b", {{2, 3, 3}}),
                   example("i,j->ij", {{3}, {4}}), example("i,i", {{3}, {3}}),
                   example("ij,jk", {{2, 3}, {3, 2}}),
                   example("ijk,jl,kl->il", {{2, 3, 4}, {3, 5}, {4, 5}}),
                   example("ij,kl->ik", {{2, 3}, {4, 2}})},
  });
}

}  // namespace ortrain::ops
