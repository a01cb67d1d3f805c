// See verify_scale.h.
#include "graph/verify_scale.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "graph/error.h"
#include "graph/ew.h"
#include "graph/op_def.h"
#include "graph/pipeline.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

// The power of the loss scale that a value is multiplied by.
struct Power {
  bool known = true;
  bool zero = false;  // the constant 0: of any power
  int power = 0;
  bool operator==(const Power&) const = default;
};
constexpr Power kUnknown{false, false, 0};

class Follower {
 public:
  explicit Follower(const Graph& g) : g_(g), of_(static_cast<size_t>(g.value_count())) {}

  std::string run() {
    if (!start()) return {};
    for (NodeId n : g_.topo()) visit(n);
    for (const StateUpdate& u : g_.updates())
      if (is_sum(u.state)) need(u.next, 1, "sum of gradients " + g_.describe_value(u.state));
    return problems_;
  }

 private:
  template <class... Parts>
  void problem(const Parts&... parts) {
    problems_ += cat("I13: ", parts..., "\n");
  }
  Power& of(ValueId v) { return of_[static_cast<size_t>(v)]; }
  bool is_sum(ValueId v) const {
    return g_.value(v).name.starts_with(std::string(kWindowPrefix) + "grad/");
  }

  bool start() {
    bool there = false;
    for (ValueId v : g_.sources(Source::kState)) {
      if (g_.value(v).name == kLossScaleName) of(v).power = 1, there = true;
      if (is_sum(v)) of(v).power = 1;
    }
    if (there)
      for (ValueId v : g_.sources(Source::kConst)) {
        const HostTensor* t = g_.tensor(v);
        of(v).zero = t && uniform_contents(*t) == 0.0;
      }
    return there;
  }

  void need(ValueId v, int power, const std::string& what) {
    const Power p = of(v);
    if (p.known && !p.zero && p.power != power)
      problem(what, " has the loss scale to the power ", p.power, ", expected ", power);
  }

  // The node is linear in its scaled inputs, which have one power.
  Power linear(const std::vector<Power>& in, const std::string& where) {
    Power out;
    for (const Power& p : in) {
      if (!p.known) return kUnknown;
      if (p.power == 0) continue;
      if (out.power != 0 && out.power != p.power) {
        problem(where, " takes values with the loss scale to the powers ", out.power, " and ",
                p.power);
        return kUnknown;
      }
      out.power = p.power;
    }
    return out;
  }

  Power elementwise(Ew code, const std::vector<Power>& in, const std::string& where) {
    const auto unknown = [](const Power& p) { return !p.known; };
    if (std::any_of(in.begin(), in.end(), unknown)) return kUnknown;
    const bool scaled = std::any_of(in.begin(), in.end(), [](const Power& p) { return p.power; });
    if (!scaled) return {};
    switch (code) {
      case Ew::kMul: {
        Power out;
        for (const Power& p : in) out.power += p.power, out.zero |= p.zero;
        return out;
      }
      case Ew::kDiv: return {true, in[0].zero, in[0].power - in[1].power};
      case Ew::kReciprocal: return {true, false, -in[0].power};
      case Ew::kAdd:
      case Ew::kSub:
      case Ew::kMin:
      case Ew::kMax:
      case Ew::kWhere: {
        std::optional<int> power;
        for (size_t i = code == Ew::kWhere ? 1 : 0; i < in.size(); ++i) {
          if (in[i].zero) continue;
          if (power && *power != in[i].power) {
            problem(where, " joins values with the loss scale to the powers ", *power, " and ",
                    in[i].power);
            return kUnknown;
          }
          power = in[i].power;
        }
        return {true, false, power.value_or(0)};
      }
      case Ew::kIdentity:
      case Ew::kNeg:
      case Ew::kAbs:
      case Ew::kCast: return in[0];
      case Ew::kPow:
      case Ew::kMod: return kUnknown;
      default: return in.size() > 1 ? linear(in, where) : kUnknown;  // "...Grad" of two inputs
    }
  }

  // A fused chain, instruction by instruction.
  std::vector<Power> chain(const Node& n, const std::vector<Power>& in) {
    const EwProgram program = EwProgram::parse(n.attrs.strings("program"), n.attrs.ints("outputs"));
    std::vector<Power> made;
    for (const EwInstr& x : program.code) {
      std::vector<Power> args;
      for (const EwOperand& a : x.args) {
        const auto at = static_cast<size_t>(a.index);
        if (a.kind == EwOperand::Kind::kInput) args.push_back(in[at]);
        if (a.kind == EwOperand::Kind::kTemp) args.push_back(made[at]);
        if (a.kind == EwOperand::Kind::kConst) args.push_back({true, a.value == 0, 0});
      }
      made.push_back(elementwise(x.code, args, cat(n.op->name, " '", n.origin, "'")));
    }
    std::vector<Power> out;
    for (int o : program.outputs) out.push_back(made[static_cast<size_t>(o)]);
    return out;
  }

  // Update kernels (inputs lr, step, apply, scale?, then parameter, gradient and states by turns)
  // multiply the gradient by their input "scale".
  bool is_update(const Node& n) const {
    const auto& names = n.op->inputs;
    return names.size() == 5 && names[2] == "apply" && names[3] == "scale?";
  }
  void check_update(NodeId id, const Node& n) {
    // Behind the groups: rows that a gradient touches.
    const size_t tensors = n.inputs.size() - 4 - n.attrs.ints("touched").size();
    const size_t groups = tensors - n.outputs.size();
    const Power scale = n.inputs[3] == kNone ? Power() : of(n.inputs[3]);
    if (!scale.known || groups == 0) return;
    for (size_t at = 4; at < 4 + tensors; at += tensors / groups)
      need(n.inputs[at + 1], -scale.power,
           cat("in ", g_.describe(id), ", times its scale, the gradient of ",
               g_.describe_value(n.inputs[at])));
  }

  void visit(NodeId id) {
    const Node& n = g_.node(id);
    if (is_update(n)) return check_update(id, n);  // what it makes is not scaled
    std::vector<Power> in;
    bool plain = true, zero = n.op->view || n.op->ew == Ew::kIdentity || n.op->ew == Ew::kCast;
    zero = zero && n.inputs[0] != kNone && of(n.inputs[0]).zero;
    for (ValueId v : n.inputs) {
      in.push_back(v == kNone ? Power() : of(v));
      plain = plain && in.back().known && in.back().power == 0;
    }
    if (plain) {
      if (zero) of(n.outputs[0]).zero = true;
      return;
    }
    std::vector<Power> out(n.outputs.size(), kUnknown);
    if (n.attrs.find("program") && n.attrs.find("outputs"))
      out = chain(n, in);
    else if (n.op->ew != Ew::kNone)
      out.assign(out.size(), elementwise(n.op->ew, in, g_.describe(id)));
    else
      out.assign(out.size(), linear(in, g_.describe(id)));
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.outputs[i] != kNone && is_float(g_.value(n.outputs[i]).dtype))
        of(n.outputs[i]) = out[i];
  }

  const Graph& g_;
  std::vector<Power> of_;  // by value
  std::string problems_;
};

}  // namespace

std::string loss_scale_problems(const Graph& g) { return Follower(g).run(); }

}  // namespace ortrain
