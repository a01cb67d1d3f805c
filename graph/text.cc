// Text form of a graph: print_graph and its inverse parse_graph. The dump, pass-test and error
// format.
//
// One line per source, node, output, update and decided parameter, sources first, then nodes in
// execution order. parse_graph(print_graph(g)) is g up to ids; elided contents ("...") come back as
// zeros, constants that nothing uses are left out. Refuses (Error(kModel), with the line) what
// print_graph would not write.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr int64_t kShown = 16;  // elements printed unless all contents are asked for

// --- printing
// ---------------------------------------------------------------------------------------------------
std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

// Shortest text that reads back to the same number; always distinguishable from an integer.
template <class T>
std::string number(T d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d).ptr;
  std::string s(buffer, end);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

template <class T, class F>
std::string joined(const std::vector<T>& items, F&& text) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) out += (i ? ", " : "") + text(items[i]);
  return out;
}

std::string attr_text(const AttrValue& a) {
  if (const auto* i = std::get_if<int64_t>(&a)) return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&a)) return number(*d);
  if (const auto* s = std::get_if<std::string>(&a)) return quoted(*s);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&a))
    return "[" + joined(*v, [](int64_t i) { return std::to_string(i); }) + "]";
  if (const auto* v = std::get_if<std::vector<double>>(&a))
    return "floats[" + joined(*v, number<double>) + "]";
  return "strings[" + joined(std::get<std::vector<std::string>>(a), quoted) + "]";
}

std::string value_text(const Graph& g, ValueId v) {
  if (v == kNone) return "_";
  const Value& x = g.value(v);
  std::string out = cat("%", v);
  if (x.typed) out += cat(":", name_of(x.dtype), x.shape.str());
  if (!x.name.empty()) out += " " + quoted(x.name);
  return out;
}

std::string contents(const HostTensor& t, bool all) {
  const int64_t shown = all ? t.count() : std::min(t.count(), kShown);
  std::string out = " = {";
  for (int64_t i = 0; i < shown; ++i) {
    out += i ? ", " : "";
    if (t.dtype() == DType::kF64)
      out += number(t.as_double(i));
    else if (is_float(t.dtype()) || is_storage_float(t.dtype()))
      out += number(static_cast<float>(t.as_double(i)));
    else
      out += std::to_string(t.as_int(i));
  }
  return out + (shown < t.count() ? ", ...}" : "}");
}

void print_source(const Graph& g, ValueId v, const char* kind, bool all, std::string& out) {
  out += cat(kind, " ", value_text(g, v));
  if (const HostTensor* t = g.tensor(v)) out += contents(*t, all);
  out += '\n';
}

std::vector<NodeId> printing_order(const Graph& g) {
  if (!g.order.empty()) return g.order;
  try {
    return g.topo();
  } catch (const Error&) {  // a cycle: print it all the same, by id
    std::vector<NodeId> order;
    for (NodeId n = 0; n < g.node_count(); ++n)
      if (g.node(n).op) order.push_back(n);
    return order;
  }
}

void print_node(const Graph& g, const Node& x, std::string& out) {
  out += joined(x.outputs, [&](ValueId v) { return value_text(g, v); });
  out += cat(" = ", x.op->name, "(");
  out += joined(x.inputs, [](ValueId v) { return v == kNone ? std::string("_") : cat("%", v); });
  out += ")";
  if (!x.attrs.empty())
    out += " {" +
           joined(x.attrs.items(),
                  [](const auto& item) { return item.first + "=" + attr_text(item.second); }) +
           "}";
  if (x.device != 0) out += cat(" @", x.device);
  if (x.stream != 0) out += cat(" ~", x.stream);
  out += " #";
  for (char c : x.origin) out += c == '\n' ? ' ' : c;
  out += '\n';
}

}  // namespace

std::string print_graph(const Graph& g, bool all_contents) {
  std::string out = cat("graph ", quoted(g.name), " ", name_of(g.stage), "\n");
  for (ValueId v : g.inputs()) print_source(g, v, "input", all_contents, out);
  for (ValueId v : g.sources(Source::kParam)) print_source(g, v, "param", all_contents, out);
  for (ValueId v : g.sources(Source::kState)) print_source(g, v, "state", all_contents, out);
  for (ValueId v : g.sources(Source::kConst))
    if (!g.value(v).uses.empty() || g.params.count(v) || is_graph_result(g, v))
      print_source(g, v, "const", all_contents, out);
  for (NodeId n : printing_order(g))
    if (g.node(n).op) print_node(g, g.node(n), out);
  for (size_t i = 0; i < g.outputs().size(); ++i)
    out += cat("output %", g.outputs()[i], " ", quoted(g.output_names()[i]), "\n");
  for (const StateUpdate& u : g.updates()) out += cat("update %", u.state, " <- %", u.next, "\n");
  for (const auto& [v, info] : g.params) {
    out += cat(info.trainable ? "trainable %" : "frozen %", v, " ", quoted(info.reason));
    if (!info.perm.empty()) out += " perm=" + attr_text(info.perm);
    out += '\n';
  }
  return out;
}

// --- parsing
// ----------------------------------------------------------------------------------------------------
namespace {

class Line {
 public:
  Line(std::string_view text, int number) : rest_(text), number_(number) { skip(); }
  [[noreturn]] void bad(std::string_view expected) const {
    fail(ErrorCode::kModel, "graph text line ", number_, ": expected ", expected, " at '",
         rest_.substr(0, 40), "'");
  }
  bool done() const { return rest_.empty(); }
  bool at(char c) const { return !rest_.empty() && rest_[0] == c; }
  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    skip();
    return true;
  }
  void need(std::string_view token) {
    if (!take(token)) bad(token);
  }
  std::string_view word(const char* stop) {
    const size_t end = std::min(rest_.find_first_of(stop), rest_.size());
    const std::string_view w = rest_.substr(0, end);
    rest_.remove_prefix(end);
    skip();
    return w;
  }
  // Up to the bracket that closes the one just taken.
  std::string_view balanced(char open, char close) {
    int depth = 1;
    for (size_t i = 0; i < rest_.size(); ++i) {
      depth += (rest_[i] == open) - (rest_[i] == close);
      if (depth > 0) continue;
      const std::string_view inside = rest_.substr(0, i);
      rest_.remove_prefix(i + 1);
      skip();
      return inside;
    }
    bad("a closing bracket");
  }
  std::string string() {
    need_char('"');
    std::string out;
    for (size_t i = 0; i < rest_.size(); ++i) {
      char c = rest_[i];
      if (c == '"') {
        rest_.remove_prefix(i + 1);
        skip();
        return out;
      }
      if (c == '\\' && i + 1 < rest_.size()) c = rest_[++i] == 'n' ? '\n' : rest_[i];
      out += c;
    }
    bad("a closing quote");
  }
  template <class T>
  T num() {
    T value{};
    const auto r = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (r.ec != std::errc()) bad("a number");
    rest_.remove_prefix(static_cast<size_t>(r.ptr - rest_.data()));
    skip();
    return value;
  }
  bool at_integer() const {
    const size_t end = rest_.find_first_of(",]} ");
    return rest_.substr(0, end).find_first_of(".enif") == std::string_view::npos;
  }
  std::string_view all() { return std::exchange(rest_, {}); }

 private:
  void need_char(char c) {  // keeps the spaces that follow
    if (!at(c)) bad("a quoted string");
    rest_.remove_prefix(1);
  }
  void skip() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t' || rest_[0] == '\r'))
      rest_.remove_prefix(1);
  }
  std::string_view rest_;
  int number_;
};

struct Typed {
  int32_t id = kNone;
  bool typed = false;
  DType dtype = DType::kUndefined;
  Shape shape;
  std::string name;
};

struct Parser {
  Graph g;
  std::map<int32_t, ValueId> ids;  // as written -> here

  ValueId use(Line& line) {
    if (line.take("_")) return kNone;
    line.need("%");
    const auto it = ids.find(line.num<int32_t>());
    if (it == ids.end()) line.bad("a value defined above");
    return it->second;
  }

  static Typed typed(Line& line) {
    Typed t;
    if (line.take("_")) return t;
    line.need("%");
    t.id = line.num<int32_t>();
    if (line.take(":")) {
      const auto dtype = dtype_from_name(line.word("["));
      if (!dtype) line.bad("a type");
      t.dtype = *dtype;
      t.typed = true;
      line.need("[");
      const std::string_view dims = line.balanced('[', ']');
      int depth = 0;
      size_t start = 0;
      for (size_t i = 0; i <= dims.size() && !dims.empty(); ++i) {
        if (i < dims.size()) depth += (dims[i] == '(') - (dims[i] == ')');
        if (i < dims.size() && (dims[i] != ',' || depth > 0)) continue;
        t.shape.push_back(parse_dim(dims.substr(start, i - start)));
        start = i + 1;
      }
    }
    if (line.at('"')) t.name = line.string();
    return t;
  }

  void source(Line& line, Source kind) {
    Typed t = typed(line);
    if (t.id == kNone || !t.typed) line.bad("a typed value");
    if (kind == Source::kInput) {
      ids[t.id] = g.add_input(std::move(t.name), t.dtype, std::move(t.shape));
      return;
    }
    if (!t.shape.is_const()) line.bad("a shape of numbers");
    HostTensor x(t.dtype, t.shape.values());
    if (line.take("=")) {
      line.need("{");
      for (int64_t i = 0; !line.take("}"); ++i) {
        if (i > 0) line.need(",");
        if (line.take("...")) continue;
        if (i >= x.count()) line.bad("fewer elements");
        if (is_float(t.dtype) || is_storage(t.dtype) || !line.at_integer())
          x.set_double(i, line.num<double>());
        else
          set_int(x, i, line.num<int64_t>());
      }
    }
    const ValueId v = g.add_const(std::move(x), std::move(t.name));
    g.value(v).source = kind;
    ids[t.id] = v;
  }

  static void set_int(HostTensor& x, int64_t i, int64_t value) {
    dispatch(x.dtype(), [&]<class T>() {
      if constexpr (std::is_integral_v<T>) x.mutable_data<T>()[i] = static_cast<T>(value);
    });
  }

  static AttrValue attr(Line& line) {
    const auto list = [&]<class T>(T&& item) {
      std::vector<decltype(item())> out;
      while (!line.take("]")) {
        if (!out.empty()) line.need(",");
        out.push_back(item());
      }
      return out;
    };
    if (line.at('"')) return line.string();
    if (line.take("[")) return list([&] { return line.num<int64_t>(); });
    if (line.take("floats[")) return list([&] { return line.num<double>(); });
    if (line.take("strings[")) return list([&] { return line.string(); });
    if (line.at_integer()) return line.num<int64_t>();
    return line.num<double>();
  }

  void node(Line& line) {
    std::vector<Typed> outputs;
    do outputs.push_back(typed(line));
    while (line.take(","));
    line.need("=");
    const std::string_view name = line.word("( ");
    const OpDef* op = g.ops().find(name);
    if (!op) line.bad("a known operator");
    line.need("(");
    std::vector<ValueId> inputs;
    while (!line.take(")")) {
      if (!inputs.empty()) line.need(",");
      inputs.push_back(use(line));
    }
    Attrs attrs;
    if (line.take("{"))
      while (!line.take("}")) {
        line.take(",");
        const std::string key(line.word("="));
        line.need("=");
        attrs.set(key, attr(line));
      }
    const int device = line.take("@") ? line.num<int>() : 0;
    const int stream = line.take("~") ? line.num<int>() : 0;
    std::string origin = line.take("#") ? std::string(line.all()) : std::string(name);
    const NodeId n = g.add_node(*op, std::move(inputs), std::move(attrs), 0, std::move(origin));
    g.node(n).device = device;
    g.node(n).stream = stream;
    for (size_t i = 0; i < outputs.size(); ++i) {
      Typed& t = outputs[i];
      if (g.node(n).outputs.size() <= i) g.node(n).outputs.resize(i + 1, kNone);
      if (t.id == kNone) continue;
      const ValueId v = g.add_output(n, static_cast<int>(i));
      ids[t.id] = v;
      Value& x = g.value(v);
      x.dtype = t.dtype;
      x.shape = std::move(t.shape);
      x.typed = t.typed;
      x.name = std::move(t.name);
    }
  }

  void statement(Line& line) {
    if (line.at('%') || line.at('_')) return node(line);
    const std::string_view kind = line.word(" \t");
    if (kind == "input") return source(line, Source::kInput);
    if (kind == "param") return source(line, Source::kParam);
    if (kind == "state") return source(line, Source::kState);
    if (kind == "const") return source(line, Source::kConst);
    if (kind == "graph") {
      g.name = line.string();
      const std::string_view stage = line.all();
      for (int s = 0; s <= static_cast<int>(Stage::kScheduled); ++s)
        if (name_of(static_cast<Stage>(s)) == stage) g.stage = static_cast<Stage>(s);
    } else if (kind == "output") {
      const ValueId v = use(line);
      g.add_output(v, line.string());
    } else if (kind == "update") {
      const ValueId state = use(line);
      line.need("<-");
      g.add_update(state, use(line));
    } else if (kind == "trainable" || kind == "frozen") {
      ParamInfo& info = g.params[use(line)];
      info.trainable = kind == "trainable";
      info.reason = line.string();
      if (line.take("perm=")) info.perm = std::get<std::vector<int64_t>>(attr(line));
    } else {
      line.bad("input, param, state, const, output, update or a node");
    }
  }
};

}  // namespace

Graph parse_graph(std::string_view text, const OpTable& ops) {
  Parser p{Graph(ops), {}};
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end), ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.done() && !line.at('#')) p.statement(line);
  }
  if (p.g.stage == Stage::kScheduled) p.g.order = p.g.topo();
  return std::move(p.g);
}

}  // namespace ortrain
