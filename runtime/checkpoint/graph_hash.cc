// Hash of a graph's structure, equal for the same file on every machine.
#include <xxhash.h>

#include "graph/op_def.h"
#include "runtime/checkpoint/checkpoint.h"

namespace ortrain::checkpoint {
namespace {

class Text {
 public:
  void add(std::string_view s) {
    out_ += s;
    out_ += '\n';  // keeps neighbours apart
  }
  void add(int64_t n) { add(std::string_view(std::to_string(n))); }
  void add(double x) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", x);
    add(std::string_view(text));
  }
  template <class T>
  void add(const std::vector<T>& list) {
    add(static_cast<int64_t>(list.size()));
    for (const T& x : list) add(x);
  }
  uint64_t hash() const { return XXH64(out_.data(), out_.size(), 0); }

 private:
  std::string out_;
};

}  // namespace

uint64_t graph_hash(const Graph& g) {
  Text text;
  std::vector<int64_t> number(static_cast<size_t>(g.value_count()), -1);
  int64_t next = 0;
  const auto source = [&](ValueId v) {
    const Value& x = g.value(v);
    number[static_cast<size_t>(v)] = next++;
    text.add(int64_t{static_cast<uint8_t>(x.source)});
    text.add(name_of(x.dtype));
    text.add(x.shape.str());
    if (x.source != Source::kConst) text.add(x.name);
    const HostTensor* t = g.tensor(v);
    if (x.source == Source::kConst && t && !is_float(t->dtype()) && t->count() <= 4096)
      text.add(t->as_ints());
  };
  for (ValueId v : g.inputs()) source(v);
  for (const NodeId n : g.topo()) {
    const Node& x = g.node(n);
    for (ValueId v : x.inputs)
      if (v != kNone && number[static_cast<size_t>(v)] < 0) source(v);
    text.add(x.op->name);
    for (ValueId v : x.inputs) text.add(v == kNone ? int64_t{-1} : number[static_cast<size_t>(v)]);
    for (const auto& [name, value] : x.attrs.items()) {
      text.add(name);
      std::visit([&](const auto& a) { text.add(a); }, value);
    }
    for (ValueId v : x.outputs)
      if (v != kNone) number[static_cast<size_t>(v)] = next++;
  }
  for (ValueId v : g.outputs()) text.add(number[static_cast<size_t>(v)]);
  text.add(g.output_names());
  return text.hash();
}

}  // namespace ortrain::checkpoint
