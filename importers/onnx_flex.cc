// FlexAttention (ai.onnx.preview) with modifier graphs: they are inlined between
// ortrain.FlexScores, Softmax and ortrain.FlexValues. Without modifiers the operator's own record
// serves.
#include "graph/error.h"
#include "importers/onnx_import.h"
#include "importers/onnx_tensor.h"

namespace ortrain {

namespace {
const onnx::GraphProto* modifier(const onnx::NodeProto& p, const char* name) {
  for (const auto& a : p.attribute())
    if (a.name() == name && a.has_g()) return &a.g();
  return nullptr;
}
}  // namespace

bool Importer::add_flex_attention(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  const onnx::GraphProto *on_scores = modifier(p, "score_mod"),
                         *on_shares = modifier(p, "prob_mod");
  if (!on_scores && !on_shares) return false;
  const std::string shown = "FlexAttention '" + origin + "'";
  for (const char* op : {"ortrain.FlexScores", "ortrain.FlexValues", "Softmax"})
    if (!has_record(op, origin)) return poison(p, s), true;
  const auto in = read_inputs(p, origin, s);
  if (!in) return true;
  if (in->size() != 3 || (*in)[0] == kNone || (*in)[1] == kNone || (*in)[2] == kNone ||
      p.output_size() != 1)
    fail(ErrorCode::kModel, shown, " takes Q, K and V and gives Y");
  onnx::NodeProto plain;  // its attributes that are no graphs
  for (const auto& a : p.attribute())
    if (!a.has_g()) *plain.add_attribute() = a;
  plain.set_op_type(p.op_type());
  Attrs given;
  if (!read_attributes(plain, origin, s, given)) return poison(p, s), true;
  Attrs attrs;
  if (given.has("scale")) attrs.set("scale", given.f("scale", 1));
  if (const int64_t precision = given.i("softmax_precision", 0); precision != 0) {
    const DType d = precision > 0 && precision < 100 ? dtype_from_onnx(static_cast<int>(precision))
                                                     : DType::kUndefined;
    if (!is_float(d)) fail(ErrorCode::kModel, shown, ": softmax_precision is ", precision);
    attrs.set("dtype", std::string(name_of(d)));
  }
  const auto node = [&](const char* op, std::vector<ValueId> inputs, Attrs a) {
    return graph.node(graph.add_node(ops_.get(op), std::move(inputs), std::move(a), 1, origin))
        .outputs[0];
  };
  const auto modified = [&](const onnx::GraphProto* g, ValueId x) {
    if (!g) return x;
    if (g->input_size() != 1 || g->output_size() != 1)
      fail(ErrorCode::kModel, shown, ": a modifier takes one tensor and gives one");
    Scope body = inner_scope(s, origin);
    define(body, g->input(0).name(), {.id = x});
    const auto results = add_body(*g, body, origin, shown);
    return results ? (*results)[0] : ValueId{kNone};
  };
  const ValueId scores =
      modified(on_scores, node("ortrain.FlexScores", {(*in)[0], (*in)[1]}, attrs));
  if (scores == kNone) return poison(p, s), true;
  const ValueId shares = modified(on_shares, node("Softmax", {scores}, {{"axis", int64_t{-1}}}));
  if (shares == kNone) return poison(p, s), true;
  if (!p.output(0).empty())
    define_value(s, p.output(0), node("ortrain.FlexValues", {shares, (*in)[2]}, {}));
  return true;
}

}  // namespace ortrain
