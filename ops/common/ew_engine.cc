// Plans and runs elementwise programs: collapses the dims, chooses how a tile lies over them, gives
// each temporary a slot of one tile and recycles it after its last use.
//
// Three ways to lay tiles over the output, after neighbouring dims that broadcast alike are merged:
//   flat   one dim left: any run of elements is a tile; inputs are contiguous or one number
//   rows   the innermost dim is long: a tile lies within one row; a row vector is read in place, a
//          column is one number per row
//   block  the innermost dims are short: a tile is several whole periods; broadcast inputs are
//          written out to a slot, once per thread where every period sees the same values
// Results of a program go straight to the output memory unless that is (at run time) the memory of
// an input that a later instruction still reads; then they are stored at the end of the tile.
#include "ops/common/ew_engine.h"

#include <algorithm>
#include <cstring>

#include "graph/error.h"

namespace ortrain::ops {

namespace {

constexpr int kMaxInputs = 128, kMaxOutputs = 16, kMaxDims = 12, kEwSlots = 40;
constexpr int64_t kLongRow = 192;      // elements from which the rows layout pays
constexpr int64_t kGrain = 16 * 1024;  // elements per thread below which threads cost more

struct Ref {
  enum class Kind : uint8_t { kNone, kSlot, kInput, kConst, kOutput } kind = Kind::kNone;
  int index = 0;
};

struct Step {
  enum class Kind : uint8_t { kCompute, kConvert, kSpread, kStore } kind = Kind::kCompute;
  EwFn fn = nullptr;            // kCompute
  EwConvert convert = nullptr;  // kConvert, kSpread (loads); kStore
  std::array<Ref, 3> x = {};    // operands; kConvert and kSpread: x[0] is the input
  Ref y;                        // a slot, or an output
  int output = -1;              // kCompute with y = output: that output; kStore: the output
  bool once = false;            // kSpread: the same for each tile of a thread
};

struct Input {
  DType dtype = DType::kUndefined;
  size_t size = 4;                            // bytes per element
  std::array<int64_t, kMaxDims> stride = {};  // elements, per collapsed dim; 0 = broadcast
  bool full = false, single = false;          // no dim broadcast; all dims broadcast
  EwConvert load = nullptr;                   // null: already of the class
};

enum class Layout : uint8_t { kFlat, kRows, kBlock };

struct Plan {
  DType cls = DType::kF32;
  int64_t tile = 1024;  // elements per slot
  int64_t total = 0;
  Layout layout = Layout::kFlat;
  std::vector<int64_t> dims;  // collapsed, outermost first
  int split = 0;              // dims[split..] make one period (rows: the last dim)
  int64_t outer = 1, period = 1;
  int64_t per_unit = 1;  // elements (flat), elements of a row (rows), periods (block) per tile
  int64_t units = 1, units_per_row = 1;
  int64_t grain_units = 1;
  std::vector<Input> in;
  std::vector<DType> out;
  std::vector<double> consts;
  std::vector<Step> safe, direct;  // the second writes results straight to the outputs
  int slots = 0;
  int threads = 1;
};

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
    if (!s.fn)
      fail(ErrorCode::kUnsupported, "'", ew_name(instr.code), "' is not defined for ",
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

// Index over the outer dims [0, split) with the offset of each input that advances there.
struct Odometer {
  const Plan& p;
  std::array<int64_t, kMaxDims> index = {};
  std::array<int64_t, kMaxInputs> offset = {};
  Odometer(const Plan& plan, int64_t at) : p(plan) {
    for (int d = p.split; d-- > 0;) {
      const size_t k = static_cast<size_t>(d);
      index[k] = at % p.dims[k];
      at /= p.dims[k];
      for (size_t i = 0; i < p.in.size(); ++i) offset[i] += index[k] * p.in[i].stride[k];
    }
  }
  void next() {
    for (int d = p.split; d-- > 0;) {
      const size_t k = static_cast<size_t>(d);
      const bool wrap = ++index[k] == p.dims[k];
      const int64_t by = wrap ? 1 - p.dims[k] : 1;
      for (size_t i = 0; i < p.in.size(); ++i) offset[i] += by * p.in[i].stride[k];
      if (!wrap) return;
      index[k] = 0;
    }
  }
};

// Writes one period of a broadcast input to `to`, walking dims [d, end).
char* spread(const Plan& p, const Input& x, size_t d, const char* from, char* to,
             EwConvert convert) {
  const int64_t n = p.dims[d], step = x.stride[d];
  if (d + 1 == p.dims.size()) {
    convert(from, step, to, n);
    return to + n * static_cast<int64_t>(size_of(p.cls));
  }
  for (int64_t i = 0; i < n; ++i)
    to = spread(p, x, d + 1, from + i * step * static_cast<int64_t>(x.size), to, convert);
  return to;
}

template <class T>
void copy_tile(const void* from, int64_t step, void* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  if (step == 0) {
    const T v = *x;
    for (int64_t i = 0; i < n; ++i) y[i] = v;
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i];
  }
}

struct Worker {
  const Plan& p;
  const KernelArgs& args;
  const std::vector<Step>& steps;
  bool fresh = true;                            // slots filled once per thread are still empty
  std::array<const char*, kMaxInputs> at = {};  // where the tile starts in each input
  std::array<char*, kMaxOutputs> to = {};
  alignas(64) std::array<char, kEwSlots * kEwTileBytes> slots;
  alignas(8) std::array<std::array<char, 8>, kMaxInputs> numbers;  // converted single numbers
  alignas(8) std::array<std::array<char, 8>, 64> consts;

  Worker(const Plan& plan, const KernelArgs& a, const std::vector<Step>& s)
      : p(plan), args(a), steps(s) {
    const EwConvert from_double = ew_load(DType::kF64, p.cls);
    for (size_t i = 0; i < p.consts.size(); ++i) from_double(&p.consts[i], 0, consts[i].data(), 1);
  }

  void resolve(const Ref& r, const void*& x, int64_t& step) {
    const size_t i = static_cast<size_t>(r.index);
    switch (r.kind) {
      case Ref::Kind::kSlot:
        x = slots.data() + i * kEwTileBytes;
        step = 1;
        return;
      case Ref::Kind::kOutput:
        x = to[i];
        step = 1;
        return;
      case Ref::Kind::kConst:
        x = consts[i].data();
        step = 0;
        return;
      case Ref::Kind::kInput: {
        const Input& in = p.in[i];
        x = at[i];
        step =
            in.single || (p.layout == Layout::kRows && in.stride[p.dims.size() - 1] == 0) ? 0 : 1;
        if (step == 0 && in.load) {
          in.load(at[i], 0, numbers[i].data(), 1);
          x = numbers[i].data();
        }
        return;
      }
      case Ref::Kind::kNone: return;
    }
  }

  // One tile of n elements; block layout: of n / period periods, the first at `odometer`.
  void tile(int64_t n, const Odometer* odometer) {
    for (const Step& s : steps) {
      if (s.kind == Step::Kind::kCompute) {
        EwCall call;
        call.n = n;
        resolve(s.x[0], call.x[0], call.step[0]);
        for (size_t a = 1; a < 3; ++a) {
          if (s.x[a].kind == Ref::Kind::kNone) {
            call.x[a] = call.x[0], call.step[a] = 0;
          } else {
            resolve(s.x[a], call.x[a], call.step[a]);
          }
        }
        call.y = s.y.kind == Ref::Kind::kOutput
                     ? static_cast<void*>(to[static_cast<size_t>(s.y.index)])
                     : slots.data() + static_cast<size_t>(s.y.index) * kEwTileBytes;
        s.fn(call);
      } else if (s.kind == Step::Kind::kConvert) {
        s.convert(at[static_cast<size_t>(s.x[0].index)], 1,
                  slots.data() + static_cast<size_t>(s.y.index) * kEwTileBytes, n);
      } else if (s.kind == Step::Kind::kSpread) {
        if (!s.once || fresh) fill(s, *odometer, n / p.period);
      } else {
        const void* x = nullptr;
        int64_t step = 1;
        resolve(s.x[0], x, step);
        s.convert(x, step, to[static_cast<size_t>(s.output)], n);
      }
    }
    fresh = false;
  }

  void fill(const Step& s, Odometer row, int64_t periods) {
    const size_t i = static_cast<size_t>(s.x[0].index);
    const Input& x = p.in[i];
    char* y = slots.data() + static_cast<size_t>(s.y.index) * kEwTileBytes;
    const EwConvert convert = s.convert             ? s.convert
                              : size_of(p.cls) == 4 ? copy_tile<float>
                                                    : copy_tile<double>;
    const char* base = static_cast<const char*>(args.in[i]);
    if (s.once) periods = p.per_unit;  // later tiles of this thread may be longer than this one
    bool same = true;                  // one number per period
    for (size_t d = static_cast<size_t>(p.split); d < p.dims.size(); ++d) same &= x.stride[d] == 0;
    for (int64_t r = 0; r < periods; ++r) {
      const char* from = base + row.offset[i] * static_cast<int64_t>(x.size);
      if (same) {
        if (s.convert || p.cls != DType::kF32) {
          convert(from, 0, y, p.period);
        } else {
          const float v = *reinterpret_cast<const float*>(from);
          float* to = reinterpret_cast<float*>(y);
          for (int64_t k = 0; k < p.period; ++k) to[k] = v;
        }
        y += p.period * static_cast<int64_t>(size_of(p.cls));
      } else {
        y = spread(p, x, static_cast<size_t>(p.split), from, y, convert);
      }
      if (!s.once) row.next();
    }
  }

  void place(int64_t flat, const Odometer* odometer, int64_t within) {
    for (size_t i = 0; i < p.in.size(); ++i) {
      const Input& x = p.in[i];
      const int64_t offset = x.full ? flat
                             : x.single || !odometer
                                 ? 0
                                 : odometer->offset[i] + within * x.stride[p.dims.size() - 1];
      at[i] = static_cast<const char*>(args.in[i]) + offset * static_cast<int64_t>(x.size);
    }
    for (size_t o = 0; o < p.out.size(); ++o)
      to[o] = static_cast<char*>(args.out[o]) + flat * static_cast<int64_t>(size_of(p.out[o]));
  }

  void run(int64_t begin, int64_t end) {
    if (p.layout == Layout::kFlat) {
      for (int64_t u = begin; u < end; ++u) {
        place(u * p.tile, nullptr, 0);
        tile(std::min(p.tile, p.total - u * p.tile), nullptr);
      }
    } else if (p.layout == Layout::kRows) {
      Odometer row(p, begin / p.units_per_row);
      int64_t chunk = begin % p.units_per_row, flat = begin / p.units_per_row * p.period;
      for (int64_t u = begin; u < end; ++u) {
        const int64_t within = chunk * p.per_unit;
        place(flat + within, &row, within);
        tile(std::min(p.per_unit, p.period - within), nullptr);
        if (++chunk == p.units_per_row) chunk = 0, flat += p.period, row.next();
      }
    } else {
      bool walks = false;  // some input is spread anew for each tile
      for (const Step& s : steps) walks |= s.kind == Step::Kind::kSpread && !s.once;
      const Odometer start(p, 0);
      for (int64_t u = begin; u < end; ++u) {
        const int64_t first = u * p.per_unit, periods = std::min(p.per_unit, p.outer - first);
        place(first * p.period, nullptr, 0);
        if (walks) {
          const Odometer row(p, first);
          tile(periods * p.period, &row);
        } else {
          tile(periods * p.period, &start);
        }
      }
    }
  }
};

void run_plan(const Plan& p, const KernelArgs& args) {
  bool aliased = false;
  for (size_t o = 0; o < p.out.size(); ++o)
    for (size_t i = 0; i < p.in.size(); ++i) aliased |= args.out[o] == args.in[i];
  const std::vector<Step>& steps = aliased ? p.safe : p.direct;
  parallel_for(p.threads, p.units, p.grain_units, [&](int64_t begin, int64_t end) {
    Worker worker(p, args, steps);
    worker.run(begin, end);
  });
}

}  // namespace

Kernel ew_prepare(const EwProgram& program, DType cls, const std::vector<TensorDesc>& in,
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
  if (p.total == 0) return {.run = [](const KernelArgs&) {}};
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
  if (p.slots > kEwSlots || p.consts.size() > 64)
    fail(ErrorCode::kUnsupported, "an elementwise program that needs ", p.slots, " tiles and ",
         p.consts.size(), " numbers");
  return {.run = [p = std::move(p)](const KernelArgs& args) { run_plan(p, args); }};
}

}  // namespace ortrain::ops
