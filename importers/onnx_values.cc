// Tensors, Constant nodes and attributes: the part of the importer (onnx_import.h) that turns data
// of the file into values.
#include <algorithm>

#include "graph/error.h"
#include "importers/onnx_import.h"

namespace ortrain {
namespace {

using Attribute = onnx::AttributeProto;

// The type field, or what it must be (files of IR 1 lack it).
Attribute::AttributeType type_of(const Attribute& a) {
  if (a.has_type() && a.type() != Attribute::UNDEFINED) return a.type();
  if (a.has_f()) return Attribute::FLOAT;
  if (a.has_i()) return Attribute::INT;
  if (a.has_s()) return Attribute::STRING;
  if (a.has_t()) return Attribute::TENSOR;
  if (a.has_g()) return Attribute::GRAPH;
  if (a.floats_size()) return Attribute::FLOATS;
  if (a.strings_size()) return Attribute::STRINGS;
  if (a.ints_size()) return Attribute::INTS;
  return Attribute::UNDEFINED;
}

}  // namespace

Importer::Named Importer::unusable(const std::string& reason) {
  reasons_.push_back(reason);
  return {.kind = Named::Kind::kUnusable, .index = reasons_.size() - 1};
}

// A float tensor with an axis may train; scalars and other types are constants.
ValueId Importer::add_source(HostTensor t, const std::string& name, bool may_train) {
  if (may_train && is_float(t.dtype()) && t.rank() > 0)
    return graph.add_param(std::move(t), unique_name(name));
  return graph.add_const(std::move(t), unique_name(name));
}

Importer::Named Importer::add_tensor(const onnx::TensorProto& t, const std::string& name,
                                     bool exported) {
  const int site = site_of(t.raw_data());
  if (site < 0 || static_cast<size_t>(site) >= index_.tensors.size())
    fail(ErrorCode::kModel, "tensor '", name, "' is malformed");
  if (dtype_from_onnx(t.data_type()) == DType::kUndefined)
    return unusable(cat("tensor '", name, "' has element type ", onnx_dtype_name(t.data_type()),
                        ", which is not supported"));
  const auto& data = index_.tensors[static_cast<size_t>(site)];
  HostTensor tensor = read_tensor(t, data, file_, external_);
  const bool slot = exported && is_float(tensor.dtype());
  TensorSlot where{.site = site, .dtype = tensor.dtype(), .dims = tensor.dims()};
  const ValueId v = add_source(std::move(tensor), name, exported);
  where.name = graph.value(v).name;
  if (slot) slots.push_back(std::move(where));
  return {.id = v};
}

bool Importer::add_constant(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  if (p.output_size() != 1 || p.output(0).empty() || p.input_size() != 0)
    fail(ErrorCode::kModel, "Constant '", origin, "' has ", p.input_size(), " inputs and ",
         p.output_size(), " outputs, expected 0 and 1");
  if (p.attribute_size() != 1)
    fail(ErrorCode::kModel, "Constant '", origin, "' has ", p.attribute_size(),
         " attributes, expected 1");
  const Attribute* a = resolve(p.attribute(0), s);
  if (!a) fail(ErrorCode::kModel, "Constant '", origin, "': its attribute is not given");
  const bool own = a == &p.attribute(0);  // not handed in by a function call
  // All calls of a function share the tensors of its body: they are one tensor in the file.
  const onnx::FunctionProto* function = function_of(s);
  const bool share = own && function;
  std::string name = s.prefix + p.output(0);
  if (share) {
    const auto it = function_constants_.find(&p);
    if (it != function_constants_.end()) {
      define(s, p.output(0), {.id = it->second});
      return true;
    }
    name = full_op_name(function->domain(), function->name()) + "/" + p.output(0);
  }

  const std::string& kind = p.attribute(0).name();
  const auto expect = [&](bool ok, const char* type) {
    if (!ok) fail(ErrorCode::kModel, "Constant '", origin, "': ", kind, " is not ", type);
  };
  Named out;
  if (kind == "value") {
    expect(a->has_t(), "a tensor");
    try {
      out = add_tensor(a->t(), name, own);
    } catch (const Error& e) {
      throw e.within(cat("Constant '", origin, "'"));
    }
  } else if (kind == "value_float") {
    expect(a->has_f(), "a number");
    out.id = add_source(HostTensor::scalar<float>(a->f()), name, false);
  } else if (kind == "value_floats") {
    const std::vector<float> v(a->floats().begin(), a->floats().end());
    out.id = add_source(
        HostTensor::from<float>({static_cast<int64_t>(v.size())}, std::span<const float>(v)), name,
        own);
    const int site = site_of(a->doc_string());
    if (own && site >= 0)
      slots.push_back({.name = graph.value(out.id).name,
                       .where = TensorSlot::Where::kFloats,
                       .site = site,
                       .dtype = DType::kF32,
                       .dims = {static_cast<int64_t>(v.size())}});
  } else if (kind == "value_int") {
    expect(a->has_i(), "an integer");
    out.id = add_source(HostTensor::scalar<int64_t>(a->i()), name, false);
  } else if (kind == "value_ints") {
    out.id = add_source(HostTensor::ints({a->ints().begin(), a->ints().end()}), name, false);
  } else {
    out = unusable(cat("Constant with ", kind, ": strings and sparse tensors are not supported"));
  }
  if (share && out.kind == Named::Kind::kTensor) function_constants_[&p] = out.id;
  define(s, p.output(0), out);
  return true;
}

// The attribute itself, or what the function call passes for it; null when it passes nothing.
const Attribute* Importer::resolve(const Attribute& a, const Scope& s) const {
  if (a.ref_attr_name().empty()) return &a;
  for (const Scope* at = &s; at; at = at->outer) {  // branches see the attributes of their function
    if (!at->function) continue;
    const auto it = at->attributes.find(a.ref_attr_name());
    return it == at->attributes.end() ? nullptr : it->second;
  }
  fail(ErrorCode::kModel, "attribute '", a.name(), "' refers to '", a.ref_attr_name(),
       "' outside of a function");
}

bool Importer::read_attributes(const onnx::NodeProto& p, const std::string& origin, const Scope& s,
                               Attrs& out) {
  bool fine = true;
  const auto refuse = [&](const std::string& what) {
    problem(p.op_type() + ": " + what, origin);
    fine = false;
  };
  for (const Attribute& given : p.attribute()) {
    const Attribute* a = resolve(given, s);
    const std::string& name = given.name();
    if (!a) continue;
    if (out.has(name))
      fail(ErrorCode::kModel, p.op_type(), " '", origin, "' has attribute '", name, "' twice");
    switch (type_of(*a)) {
      case Attribute::INT:
        if (name == "to" || name == "dtype" || name == "output_dtype" || name == "precision") {
          if (name[0] != 't' && name[0] != 'd' && a->i() == 0) break;  // 0: not given
          const auto number = static_cast<int>(std::clamp<int64_t>(a->i(), -1, 1 << 20));
          const DType d = dtype_from_onnx(number);
          if (d == DType::kUndefined)
            refuse(cat("element type ", onnx_dtype_name(number), " is not supported"));
          else
            out.set(name, std::string(name_of(d)));
        } else {
          out.set(name, a->i());
        }
        break;
      case Attribute::FLOAT: out.set(name, static_cast<double>(a->f())); break;
      case Attribute::STRING: out.set(name, a->s()); break;
      case Attribute::INTS:
        out.set(name, std::vector<int64_t>(a->ints().begin(), a->ints().end()));
        break;
      case Attribute::FLOATS:
        out.set(name, std::vector<double>(a->floats().begin(), a->floats().end()));
        break;
      case Attribute::STRINGS:
        out.set(name, std::vector<std::string>(a->strings().begin(), a->strings().end()));
        break;
      case Attribute::TENSOR: {
        if (p.op_type() != "ConstantOfShape" || name != "value") {
          refuse("tensor attribute '" + name + "' is not supported");
          break;
        }
        const int site = site_of(a->t().raw_data());
        if (site < 0 || static_cast<size_t>(site) >= index_.tensors.size() ||
            dtype_from_onnx(a->t().data_type()) == DType::kUndefined) {
          refuse("its value has element type " + onnx_dtype_name(a->t().data_type()));
          break;
        }
        HostTensor t;
        try {
          t = read_tensor(a->t(), index_.tensors[static_cast<size_t>(site)], file_, external_);
        } catch (const Error& e) {
          throw e.within(cat("ConstantOfShape '", origin, "'"));
        }
        if (t.count() != 1)
          fail(ErrorCode::kModel, "ConstantOfShape '", origin, "': its value has ", t.count(),
               " elements, expected 1");
        out.set("dtype", std::string(name_of(t.dtype())));
        if (is_float(t.dtype()))
          out.set("value", t.as_double(0));
        else
          out.set("value", t.as_int(0));
        break;
      }
      case Attribute::SPARSE_TENSOR:
      case Attribute::SPARSE_TENSORS: refuse("sparse tensors are not supported"); break;
      case Attribute::TYPE_PROTO:
        if (p.op_type() != "Optional") refuse("attribute '" + name + "' is a type");
        break;
      default: refuse(cat("attribute '", name, "' has a type that is not supported"));
    }
  }
  return fine;
}

}  // namespace ortrain
