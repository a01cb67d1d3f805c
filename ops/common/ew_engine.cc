// Runs planned elementwise programs, tile by tile.
//
// Results of a program go straight to the output memory unless that is (at run time) the memory of
// an input that a later instruction still reads; then they are stored at the end of the tile. All
// slots of a thread lie on its stack; nothing is allocated.
#include "ops/common/ew_engine.h"

#include <algorithm>

#include "graph/half.h"
#include "ops/common/ew_plan.h"

namespace ortrain::ops {

namespace {

using namespace ew;

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
  alignas(8) std::array<std::array<char, 8>, kMaxConsts> consts;

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
        if (s.round != DType::kUndefined)
          round_to_half(s.round, static_cast<float*>(call.y), static_cast<float*>(call.y), n);
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
  Plan p = make_plan(program, cls, in, out, threads, simd);
  if (p.total == 0) return {.run = [](const KernelArgs&) {}};
  return {.run = [p = std::move(p)](const KernelArgs& args) { run_plan(p, args); }};
}

}  // namespace ortrain::ops
