// See nan_search.h.
#include "runtime/nan_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "graph/error.h"
#include "graph/pipeline.h"

namespace ortrain {
namespace {

struct Range {
  int64_t count = 0, nan = 0, infinite = 0, zero = 0, first_nan = -1, first_infinite = -1;
  double min = INFINITY, max = -INFINITY;  // of the finite ones
  bool finite() const { return nan + infinite == 0; }
  int64_t first() const { return nan ? first_nan : first_infinite; }
};

Range range_of(DType dtype, int64_t count, const void* data) {
  Range r;
  if (!is_float(dtype) || is_storage(dtype)) return r;
  r.count = count;
  dispatch(dtype, [&]<class T>() {
    if constexpr (!std::is_integral_v<T>) {
      const T* x = static_cast<const T*>(data);
      for (int64_t i = 0; i < count; ++i) {
        double v = 0;
        if constexpr (std::is_same_v<T, double>)
          v = x[i];
        else
          v = static_cast<double>(static_cast<float>(x[i]));
        if (std::isnan(v)) {
          if (r.nan++ == 0) r.first_nan = i;
        } else if (std::isinf(v)) {
          if (r.infinite++ == 0) r.first_infinite = i;
        } else {
          r.zero += v == 0;
          r.min = std::min(r.min, v), r.max = std::max(r.max, v);
        }
      }
    }
  });
  return r;
}

std::string number(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", v);
  return buffer;
}
std::string index_text(int64_t at, const Dims& dims) {
  std::string out;
  for (size_t a = dims.size(); a-- > 0;) {
    out = cat(at % dims[a], out.empty() ? "" : ",", out);
    at /= dims[a];
  }
  return "[" + out + "]";
}

// What lies at an address: where it came from and what it holds.
struct Content {
  Range range;
  DType dtype = DType::kUndefined;
  Dims dims;
  size_t step = SIZE_MAX;  // that wrote it; SIZE_MAX: given from outside
  std::string given;       // "the input 'x' of the data", ...
  bool ignored = false;    // follows from sums of the window that are bad already
  int cause = -1;          // the content that was not finite before it
};

class Search : public StepHook {
 public:
  Search(Executor& executor, const ParamStore* store, std::span<const void* const> inputs)
      : plan_(executor.plan()) {
    for (size_t i = 0; i < plan_.inputs.size(); ++i)
      if (inputs[i])
        add(inputs[i], plan_.inputs[i], SIZE_MAX, cat("input '", plan_.inputs[i].name, "'"));
    if (!store) return;
    for (const StoreEntry& e : store->entries()) {
      const bool window = e.name.starts_with(kWindowPrefix);
      PlanTensor t{e.name, e.dtype, e.dims, {}};
      add(e.data, t, SIZE_MAX,
          cat(e.kind == Source::kParam ? "parameter '" : "state '", e.name, "'"));
      contents_.back().ignored = window && !contents_.back().range.finite();
    }
  }

  bool before(size_t i, const KernelArgs& args) override {
    const PlanStep& s = plan_.steps[i];
    for (const PlanTensor& t : s.out)
      if (t.place.kind == Place::Kind::kFixed) return false;  // states stay as they are
    inputs_.clear();
    for (size_t n = 0; n < s.in.size(); ++n) {
      const auto it = args.in[n] ? at_.find(args.in[n]) : at_.end();
      inputs_.push_back(it == at_.end() ? -1 : it->second);
    }
    return true;
  }

  bool after(size_t i, const KernelArgs& args) override {
    const PlanStep& s = plan_.steps[i];
    int bad = -1, nan = -1;
    bool ignored = false;
    for (int c : inputs_) {
      if (c < 0 || contents_[static_cast<size_t>(c)].range.finite()) continue;
      ignored |= contents_[static_cast<size_t>(c)].ignored;
      if (bad < 0) bad = c;
      if (nan < 0 && contents_[static_cast<size_t>(c)].range.nan) nan = c;
    }
    for (size_t o = 0; o < s.out.size(); ++o) {
      if (!args.out[o] || !is_float(s.out[o].dtype)) continue;
      add(args.out[o], s.out[o], i, "");
      Content& c = contents_.back();
      c.cause = nan >= 0 ? nan : bad;
      c.ignored = ignored && !c.range.finite();
      if (c.ignored || c.range.finite()) continue;
      last_ = static_cast<int>(contents_.size()) - 1;
      if (c.range.nan) {
        return false;  // what made the first NaN, or let it in
      }
    }
    return true;
  }

  // The content to blame: back from the first NaN (or the last infinity) to what was not finite
  // first. -1: nothing.
  int blamed() const {
    int c = last_;
    while (c >= 0) {
      const int cause = contents_[static_cast<size_t>(c)].cause;
      if (cause < 0) return c;
      const Content& from = contents_[static_cast<size_t>(cause)];
      if (from.step == SIZE_MAX) {
        if (from.range.nan) return c;
        // A mask's infinity is meant; the NaN that comes of it is not.
        return contents_[static_cast<size_t>(last_)].range.nan ? last_ : -1;
      }
      c = cause;
    }
    return c;
  }
  const Content& content(int c) const { return contents_[static_cast<size_t>(c)]; }
  int last() const { return last_; }

 private:
  void add(const void* at, const PlanTensor& t, size_t step, std::string given) {
    at_[at] = static_cast<int>(contents_.size());
    Content c{.range = range_of(t.dtype, element_count(t.dims), at),
              .dtype = t.dtype,
              .dims = t.dims,
              .step = step,
              .given = std::move(given)};
    contents_.push_back(std::move(c));
  }

  const Plan& plan_;
  std::map<const void*, int> at_;
  std::vector<Content> contents_;
  std::vector<int> inputs_;
  int last_ = -1;
};

// Looks at the inputs of one step right before it runs.
class Look : public StepHook {
 public:
  Look(const Plan& plan, size_t step, int64_t position, const Dims& dims)
      : plan_(plan), step_(step), position_(position), dims_(dims) {}
  bool before(size_t i, const KernelArgs& args) override {
    const PlanStep& s = plan_.steps[i];
    for (const PlanTensor& t : s.out)
      if (t.place.kind == Place::Kind::kFixed) return false;
    if (i != step_) return true;
    for (size_t n = 0; n < s.in.size(); ++n) {
      const auto known = tensors.find(args.in[n]);
      if (!args.in[n] || known == tensors.end() || !is_float(known->second.dtype)) continue;
      const PlanTensor& t = known->second;
      const HostTensor x = HostTensor::view(t.dtype, t.dims, args.in[n]);
      const Range r = range_of(t.dtype, x.count(), args.in[n]);
      text += cat(text.empty() ? "" : "; ", "input ", n, " ", name_of(t.dtype), Shape(t.dims).str(),
                  r.min <= r.max ? cat(" lies in [", number(r.min), ", ", number(r.max), "]") : "",
                  r.nan ? cat(", ", r.nan, " NaN") : "",
                  r.infinite ? cat(", ", r.infinite, " infinite") : "");
      if (t.dims == dims_ || x.count() == 1) {
        const double v = x.as_double(x.count() == 1 ? 0 : position_);
        text += cat(", is ", number(v), " there");
        zero |= v == 0;
      }
    }
    return false;
  }
  bool after(size_t i, const KernelArgs& args) override {
    if (i == step_) return false;
    for (size_t o = 0; o < plan_.steps[i].out.size(); ++o)
      if (args.out[o]) tensors[args.out[o]] = plan_.steps[i].out[o];
    return true;
  }
  std::map<const void*, PlanTensor> tensors;
  std::string text;
  bool zero = false;

 private:
  const Plan& plan_;
  size_t step_;
  int64_t position_;
  const Dims& dims_;
};

// "Div 'root|autodiff' (backward, kernel simd)": of the file's node 'root'.
std::string node_text(const PlanStep& s) {
  const bool backward = s.node.find("|autodiff") != std::string::npos;
  const bool update = s.node.find("|optimizer") != std::string::npos;
  return cat(s.node, " (",
             update     ? "update"
             : backward ? "backward"
                        : "forward",
             ", kernel ", s.chosen, ")");
}

std::string advice(const PlanStep& s, const Content& c, const Content* given, bool zero,
                   bool scaled_loss) {
  if (given && given->range.nan)
    return given->given.starts_with("input")
               ? "look at this array of the data, or leave such batches out (--on-nan skip)"
               : "start from weights that are finite";
  const bool backward = s.node.find("|autodiff") != std::string::npos;
  if (c.dtype == DType::kF16)
    return cat("fp16 ends at 65504: --precision bf16 has fp32's range",
               backward && scaled_loss ? ", or a smaller --loss-scale" : "");
  if (zero)
    return backward
               ? "a derivative there is infinite: keep the input away from that value (a small "
                 "epsilon in the model)"
               : "keep that input away from 0 (a small epsilon in the model)";
  return "a smaller --lr, a --warmup or --clip-norm keeps values from growing";
}

}  // namespace

std::optional<BadNode> find_bad_node(Executor& executor, const ParamStore* store,
                                     std::span<const void* const> inputs, bool scaled_loss) {
  const Plan& plan = executor.plan();
  Search search(executor, store, inputs);
  executor.run(inputs, search);
  const int blamed = search.blamed();
  if (blamed < 0) return std::nullopt;
  const Content& c = search.content(blamed);
  const PlanStep& s = plan.steps[c.step];
  const Content* given = c.cause < 0 ? nullptr : &search.content(c.cause);
  Look look(plan, c.step, c.range.first(), c.dims);
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    if (inputs[i]) look.tensors[inputs[i]] = plan.inputs[i];
  if (store)
    for (const StoreEntry& e : store->entries())
      look.tensors[e.data] = PlanTensor{e.name, e.dtype, e.dims, {}};
  executor.run(inputs, look);
  std::string text =
      cat(node_text(s), " made ", c.range.nan, " NaN and ", c.range.infinite, " infinite of ",
          c.range.count, " values, the first at ", index_text(c.range.first(), c.dims));
  if (!look.text.empty()) text += "; " + look.text;
  if (given)
    text += cat("; ", given->given, " holds ", given->range.nan, " NaN and ", given->range.infinite,
                " infinite values itself, the first at ",
                index_text(given->range.first(), given->dims));
  if (search.last() != blamed)
    text += cat("; they became NaN in ", plan.steps[search.content(search.last()).step].node);
  return BadNode{s.op, cat(text, " (", advice(s, c, given, look.zero, scaled_loss), ")")};
}

}  // namespace ortrain
