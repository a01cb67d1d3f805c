// Plans elementwise programs: merges dims, chooses the layout, gives each temporary a slot of one
// tile and recycles it after its last use.
#include "ops/common/ew_plan.h"

#include <algorithm>

#include "graph/error.h"

namespace ortrain::ops::ew {

namespace {

constexpr int64_t kLongRow = 192;      // elements from which the rows layout pays
constexpr int64_t kGrain = 16 * 1024;  // elements per thread below which threads cost more

// Merges neighbouring dims over which every input either advances or stays, drops dims of 1.
void collapse(Plan& p, const std::vector<TensorDesc>& in, const Dims& dims) {
  const size_t rank = dims.size();
  std::vector<char> before;
  for (size_t d = 0; d < rank; ++d) {
    if (dims[d] == 1) continue;
    std::vector<char> moves;
    for (const TensorDesc& t : in) {
      const size_t missing = rank - t.dims.size();
      moves.push_back(d >= missing && t.dims[d - missing] != 1);
    }
    if (!p.dims.empty() && moves == before) {
      p.dims.back() *= dims[d];
      continue;
    }
    if (p.dims.size() == kMaxDims)
      fail(ErrorCode::kUnsupported, "more than ", kMaxDims, " alternating broadcast dims");
    for (size_t i = 0; i < in.size(); ++i) p.in[i].stride[p.dims.size()] = moves[i];
    p.dims.push_back(dims[d]);
    before = std::move(moves);
  }
  if (p.dims.empty()) {
    p.dims.push_back(1);
    for (Input& x : p.in) x.stride[0] = 1;
  }
  for (Input& x : p.in) {
    int64_t step = 1;
    x.full = x.single = true;
    for (size_t d = p.dims.size(); d-- > 0;) {
      (x.stride[d] ? x.single : x.full) = false;
      if (x.stride[d]) x.stride[d] = step, step *= p.dims[d];
    }
  }
}

// Rough cost of a tile function in passes over the tile: transcendental ones are arithmetic-bound.
int64_t cost_of(Ew code) {
  switch (code) {
    case Ew::kExp:
    case Ew::kLog:
    case Ew::kExpm1:
    case Ew::kLog1p:
    case Ew::kTanh:
    case Ew::kSigmoid:
    case Ew::kErf:
    case Ew::kGelu:
    case Ew::kGeluTanh: return 4;
    case Ew::kSoftplus:
    case Ew::kGeluGrad:
    case Ew::kGeluTanhGrad: return 8;
    case Ew::kPow:
    case Ew::kSin:
    case Ew::kCos: return 16;
    default: return 1;
  }
}

void choose_layout(Plan& p, const EwProgram& program) {
  const size_t k = p.dims.size();
  const int64_t inner = p.dims.back();
  int64_t cost = 0;
  for (const EwInstr& instr : program.code) cost += cost_of(instr.code);
  const int64_t grain = std::max<int64_t>(2048, kGrain / (1 + cost / 4));
  if (k == 1) {
    p.layout = Layout::kFlat;
    p.per_unit = p.tile;
    p.units = (p.total + p.tile - 1) / p.tile;
    p.grain_units = std::max<int64_t>(1, grain / p.tile);
    return;
  }
  if (inner >= kLongRow) {
    p.layout = Layout::kRows;
    p.split = static_cast<int>(k) - 1;
    p.outer = p.total / inner;
    p.period = inner;
    p.units_per_row = (inner + p.tile - 1) / p.tile;
    p.per_unit = (inner + p.units_per_row - 1) / p.units_per_row;
    p.per_unit = (p.per_unit + 15) / 16 * 16;
    p.units_per_row = (inner + p.per_unit - 1) / p.per_unit;
    p.units = p.outer * p.units_per_row;
    p.grain_units = std::max<int64_t>(1, grain / p.per_unit);
    return;
  }
  p.layout = Layout::kBlock;
  p.split = static_cast<int>(k) - 1;
  p.period = inner;
  // The whole of a small tensor is one period only if something still repeats over it.
  while (p.split > 1 && p.period * p.dims[static_cast<size_t>(p.split) - 1] <= p.tile)
    p.period *= p.dims[static_cast<size_t>(--p.split)];
  p.outer = p.total / p.period;
  p.per_unit = std::max<int64_t>(1, p.tile / p.period);
  p.units = (p.outer + p.per_unit - 1) / p.per_unit;
  p.grain_units = std::max<int64_t>(1, grain / (p.per_unit * p.period));
}

// Builds the step list. `direct_outputs`: results are computed in the output memory.
std::vector<Step> build(Plan& p, const EwProgram& program, const EwTable& table,
                        bool direct_outputs) {
  const size_t n = program.code.size();
  // Last instruction that reads each temporary; outputs live to the end of the tile.
  std::vector<size_t> last(n, 0);
  std::vector<size_t> last_input(p.in.size(), 0);
  for (size_t i = 0; i < n; ++i)
    for (const EwOperand& o : program.code[i].args) {
      if (o.kind == EwOperand::Kind::kTemp) last[static_cast<size_t>(o.index)] = i;
      if (o.kind == EwOperand::Kind::kInput) last_input[static_cast<size_t>(o.index)] = i;
    }
  std::vector<int> output_of(n, -1);
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const size_t t = static_cast<size_t>(program.outputs[o]);
    last[t] = n;
    if (output_of[t] < 0 && p.out[o] == p.cls) output_of[t] = static_cast<int>(o);
  }
  std::vector<char> busy;
  const auto take = [&] {
    for (size_t s = 0; s < busy.size(); ++s)
      if (!busy[s]) return busy[s] = 1, static_cast<int>(s);
    busy.push_back(1);
    return static_cast<int>(busy.size()) - 1;
  };
  std::vector<Step> steps;
  std::vector<Ref> temp(n), loaded(p.in.size());
  const auto input_ref = [&](int index) -> Ref {
    const size_t i = static_cast<size_t>(index);
    const Input& x = p.in[i];
    const bool one_number =
        x.single || (p.layout == Layout::kRows && x.stride[p.dims.size() - 1] == 0);
    const bool spread = p.layout == Layout::kBlock && !x.full && !x.single;
    if (one_number || (!spread && !x.load)) return {Ref::Kind::kInput, index};
    if (loaded[i].kind == Ref::Kind::kNone) {
      Step s;
      s.kind = spread ? Step::Kind::kSpread : Step::Kind::kConvert;
      s.convert = x.load;
      s.x[0] = {Ref::Kind::kInput, index};
      s.once = spread;
      for (int d = 0; d < p.split; ++d) s.once &= x.stride[static_cast<size_t>(d)] == 0;
      if (s.once) busy.push_back(1);  // a slot that nothing else ever uses
      loaded[i] = {Ref::Kind::kSlot, s.once ? static_cast<int>(busy.size()) - 1 : take()};
      s.y = loaded[i];
      steps.push_back(s);
    }
    return loaded[i];
  };
  for (size_t i = 0; i < n; ++i) {
    const EwInstr& instr = program.code[i];
    Step s;
    s.fn = table.fn[static_cast<size_t>(instr.code)];
    s.round = instr.round;
    if (!s.fn)
      fail(ErrorCode::kUnsupported, "'", ew_name(instr.code), "' is not defined for ",
           name_of(p.cls));
    if (s.round != DType::kUndefined && p.cls != DType::kF32)
      fail(ErrorCode::kUnsupported, "rounding to ", name_of(s.round), " in a program of ",
           name_of(p.cls));
    for (size_t a = 0; a < 3; ++a) {
      const EwOperand& o = instr.args[a];
      if (o.kind == EwOperand::Kind::kInput) s.x[a] = input_ref(o.index);
      if (o.kind == EwOperand::Kind::kTemp) s.x[a] = temp[static_cast<size_t>(o.index)];
      if (o.kind == EwOperand::Kind::kConst) {
        s.x[a] = {Ref::Kind::kConst, static_cast<int>(p.consts.size())};
        p.consts.push_back(o.value);
      }
    }
    // Slots whose last reader this is are free for its result: tile functions work in place.
    for (const EwOperand& o : instr.args) {
      Ref r;
      if (o.kind == EwOperand::Kind::kTemp && last[static_cast<size_t>(o.index)] == i)
        r = temp[static_cast<size_t>(o.index)];
      if (o.kind == EwOperand::Kind::kInput && last_input[static_cast<size_t>(o.index)] == i) {
        r = loaded[static_cast<size_t>(o.index)];
        for (const Step& l : steps)
          if (l.once && l.y.index == r.index && l.y.kind == r.kind) r.kind = Ref::Kind::kNone;
      }
      if (r.kind == Ref::Kind::kSlot) busy[static_cast<size_t>(r.index)] = 0;
    }
    // In place of an input is harmless when nobody reads an input of that size afterwards.
    bool straight = output_of[i] >= 0;
    if (straight && !direct_outputs) {
      for (size_t k = 0; k < p.in.size(); ++k)
        if (p.in[k].full && last_input[k] > i) straight = false;
    }
    if (straight) {
      s.output = output_of[i];
      s.y = {Ref::Kind::kOutput, s.output};
    } else {
      s.y = {Ref::Kind::kSlot, take()};
    }
    temp[i] = s.y;
    steps.push_back(s);
    if (last[i] == 0 && s.y.kind == Ref::Kind::kSlot) busy[static_cast<size_t>(s.y.index)] = 0;
  }
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const Ref from = temp[static_cast<size_t>(program.outputs[o])];
    if (from.kind == Ref::Kind::kOutput && from.index == static_cast<int>(o)) continue;
    Step s;
    s.kind = Step::Kind::kStore;
    s.convert = ew_store(p.cls, p.out[o]);
    s.x[0] = from;
    s.output = static_cast<int>(o);
    steps.push_back(s);
  }
  p.slots = std::max(p.slots, static_cast<int>(busy.size()));
  return steps;
}

}  // namespace

Plan make_plan(const EwProgram& program, DType cls, const std::vector<TensorDesc>& in,
               const std::vector<TensorDesc>& out, int threads, bool simd) {
  Plan p;
  p.cls = cls;
  p.threads = threads;
  p.tile = kEwTileBytes / static_cast<int64_t>(size_of(cls));
  p.total = out[0].count();
  if (in.size() > kMaxInputs || out.size() > kMaxOutputs)
    fail(ErrorCode::kUnsupported, "an elementwise node with ", in.size(), " inputs");
  simd = simd && cls == DType::kF32;
  for (const TensorDesc& t : in) {
    Input x;
    x.dtype = t.dtype;
    x.size = size_of(t.dtype);
    if (t.dtype != cls)
      x.load = simd && t.dtype == DType::kBool ? ew_load_bool_simd : ew_load(t.dtype, cls);
    p.in.push_back(x);
  }
  for (const TensorDesc& t : out) p.out.push_back(t.dtype);
  if (p.total == 0) return p;
  collapse(p, in, out[0].dims);
  choose_layout(p, program);
  const EwTable& table = simd ? ew_simd_table() : ew_ref_table(cls);
  p.safe = build(p, program, table, false);
  p.consts.clear();
  p.direct = build(p, program, table, true);
  if (simd)
    for (std::vector<Step>* steps : {&p.safe, &p.direct})
      for (Step& s : *steps)
        if (s.kind == Step::Kind::kStore && p.out[static_cast<size_t>(s.output)] == DType::kBool)
          s.convert = ew_store_bool_simd;
  if (p.slots > kEwSlots || p.consts.size() > kMaxConsts)
    fail(ErrorCode::kUnsupported, "an elementwise program that needs ", p.slots, " tiles and ",
         p.consts.size(), " numbers");
  return p;
}

}  // namespace ortrain::ops::ew
