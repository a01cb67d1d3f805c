// See pick.h.
#include "runtime/data/pick.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "graph/error.h"

namespace ortrain::data {
namespace {

struct Place {
  size_t part;
  int64_t row;
};

struct Plan {
  std::vector<int64_t> sizes, begin;  // of the parts; begin has one more
  std::vector<int64_t> index;         // of a single part, where not all samples are taken
  Place at(const RowRequest& r) const {
    if (!index.empty()) return {0, index[static_cast<size_t>(r.sample)]};
    const auto part = static_cast<size_t>(std::upper_bound(begin.begin(), begin.end(), r.sample) -
                                          begin.begin() - 1);
    const int64_t slots = begin[part + 1] - begin[part];
    // Rows of a mixture go round; sizes equal slots otherwise, and this adds nothing.
    return {part,
            static_cast<int64_t>((static_cast<__int128>(r.epoch) * slots + r.sample - begin[part]) %
                                 sizes[part])};
  }
};

class PickedRows : public RowSource {
 public:
  PickedRows(Plan plan, std::vector<const StoredArray*> from)
      : plan_(std::move(plan)), from_(std::move(from)), bytes_(size_of(from_[0]->dtype)) {
    for (size_t i = 1; i < from_[0]->dims.size(); ++i)
      bytes_ *= static_cast<size_t>(from_[0]->dims[i]);
  }
  void read(const RowRequest& row, std::byte* out) const override {
    const Place p = plan_.at(row);
    const StoredArray& a = *from_[p.part];
    if (a.rows) return a.rows->read({p.row, row.epoch}, out);
    if (bytes_) std::memcpy(out, a.data + static_cast<size_t>(p.row) * bytes_, bytes_);
  }
  int64_t length(int64_t sample) const override {
    const Place p = plan_.at({sample, 0});
    return from_[p.part]->rows ? from_[p.part]->rows->length(p.row) : -1;
  }
  bool heavy() const override {
    return std::any_of(from_.begin(), from_.end(),
                       [](const StoredArray* a) { return a->rows && a->rows->heavy(); });
  }
  std::vector<const StoredArray*> parts() const override { return from_; }

 private:
  const Plan plan_;
  const std::vector<const StoredArray*> from_;
  size_t bytes_;
};

}  // namespace

Dataset joined(std::vector<Dataset> sets, const std::vector<double>& weights, std::string where) {
  Dataset out = Dataset::empty(std::move(where));
  Plan plan;
  int64_t total = 0;
  for (const Dataset& s : sets) plan.sizes.push_back(s.samples());
  for (const int64_t n : plan.sizes) total += n;
  double sum = 0, done = 0;
  for (const double w : weights) sum += w;
  plan.begin.push_back(0);
  for (size_t i = 0; i < sets.size(); ++i) {
    if (weights.empty()) {
      plan.begin.push_back(plan.begin.back() + plan.sizes[i]);
      continue;
    }
    done += weights[i];
    plan.begin.push_back(std::llround(done / sum * static_cast<double>(total)));
    if (plan.begin[i + 1] == plan.begin[i])
      fail(ErrorCode::kUsage, "data '", out.where(), "': the weight ", weights[i], " of '",
           sets[i].where(), "' gives it no sample of ", total);
  }
  std::vector<std::vector<const StoredArray*>> arrays;
  for (const std::string& name : sets[0].names()) {
    arrays.emplace_back();
    for (const Dataset& s : sets) {
      const StoredArray &a = *sets[0].find(name), *b = s.find(name);
      const bool same = b && a.dtype == b->dtype && a.dims.size() == b->dims.size() &&
                        std::equal(a.dims.begin() + 1, a.dims.end(), b->dims.begin() + 1);
      if (!same || s.names().size() != sets[0].names().size())
        fail(ErrorCode::kData, "'", sets[0].where(), "' and '", s.where(),
             "' cannot follow each other: ", sets[0].summary(), " against ", s.summary());
      arrays.back().push_back(b);
    }
  }
  const std::vector<std::string> names = sets[0].names();
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const auto& [name, words] : sets[i].vocabularies)
      if (!out.vocabularies.emplace(name, words).second && out.vocabularies[name] != words)
        fail(ErrorCode::kData, "'", sets[i].where(), "': the classes of '", name,
             "' are others than in '", sets[0].where(), "'");
    if (weights.empty())
      for (std::string& key : sets[i].keys) out.keys.push_back(std::move(key));
    out.keep(std::move(sets[i]), i == 0);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    Dims dims = arrays[i][0]->dims;
    dims[0] = plan.begin.back();
    out.add_rows(names[i], arrays[i][0]->dtype, std::move(dims),
                 std::make_unique<PickedRows>(plan, arrays[i]));
  }
  if (out.keys.size() != static_cast<size_t>(plan.begin.back())) out.keys.clear();
  return out;
}

Dataset held(Dataset set, const std::string& split, bool held_out) {
  double fraction = 0;
  const auto [end, error] = std::from_chars(split.data(), split.data() + split.size(), fraction);
  const bool by_hash = error == std::errc() && end == split.data() + split.size();
  std::set<std::string> list;
  if (!by_hash) {
    std::ifstream in(split);
    if (!in)
      fail(ErrorCode::kUsage, "--split ", split,
           ": expected a fraction below 1 or a file with one sample per line");
    for (std::string line; std::getline(in, line);) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!line.empty()) list.insert(line);
    }
  } else if (!(fraction > 0 && fraction < 1)) {
    fail(ErrorCode::kUsage, "--split ", split, ": expected a fraction between 0 and 1");
  }
  Plan plan;
  std::vector<std::string> keys;
  const int64_t n = set.samples();
  for (int64_t i = 0; i < n; ++i) {
    const std::string key = set.keys.empty() ? std::to_string(i) : set.keys[static_cast<size_t>(i)];
    const bool out = by_hash
                         ? static_cast<double>(XXH64(key.data(), key.size(), 0)) < fraction * 0x1p64
                         : list.erase(key) > 0;
    if (out != held_out) continue;
    plan.index.push_back(i);
    keys.push_back(key);
  }
  if (!list.empty())
    fail(ErrorCode::kData, "--split ", split, ": '", *list.begin(), "' is no sample of ",
         set.where(), set.keys.empty() ? cat("; expected numbers from 0 to ", n - 1) : "");
  if (plan.index.empty())
    fail(ErrorCode::kData, "--split ", split, " leaves no sample of ", n,
         held_out ? " to evaluate" : " to train on");
  Dataset out = Dataset::empty(set.where());
  out.strict = set.strict;
  out.vocabularies = set.vocabularies;
  std::vector<std::pair<std::string, const StoredArray*>> arrays;
  for (const std::string& name : set.names()) arrays.emplace_back(name, set.find(name));
  out.keep(std::move(set), true);
  out.keys = std::move(keys);
  for (const auto& [name, a] : arrays) {
    Dims dims = a->dims;
    dims[0] = static_cast<int64_t>(plan.index.size());
    out.add_rows(name, a->dtype, std::move(dims),
                 std::make_unique<PickedRows>(plan, std::vector<const StoredArray*>{a}));
  }
  return out;
}

}  // namespace ortrain::data
