// The plan of one elementwise program: how tiles lie over the output, what each tile does.
//
// Made by ew_plan.cc, run by ew_engine.cc; nobody else needs it. Three ways to lay tiles, after
// neighbouring dims that broadcast alike are merged:
//   flat   one dim left: any run of elements is a tile; inputs are contiguous or one number
//   rows   the innermost dim is long: a tile lies within one row; a row vector is read in place, a
//          column is one number per row
//   block  the innermost dims are short: a tile is several whole periods; broadcast inputs are
//          written out to a slot, once per thread where every period sees the same values
#pragma once

#include <array>
#include <vector>

#include "ops/common/ew_engine.h"

namespace ortrain::ops::ew {

inline constexpr int kMaxInputs = 128, kMaxOutputs = 16, kMaxDims = 12, kEwSlots = 40;
inline constexpr int kMaxConsts = 64;

struct Ref {
  enum class Kind : uint8_t { kNone, kSlot, kInput, kConst, kOutput } kind = Kind::kNone;
  int index = 0;
};

struct Step {
  enum class Kind : uint8_t { kCompute, kConvert, kSpread, kStore } kind = Kind::kCompute;
  EwFn fn = nullptr;                // kCompute
  EwConvert convert = nullptr;      // kConvert, kSpread (loads); kStore
  std::array<Ref, 3> x = {};        // operands; kConvert and kSpread: x[0] is the input
  Ref y;                            // a slot, or an output
  int output = -1;                  // kCompute with y = output: that output; kStore: the output
  DType round = DType::kUndefined;  // kCompute: f16, bf16
  bool once = false;                // kSpread: the same for each tile of a thread
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

// Everything ew_engine.cc needs to run. Throws Error(kUnsupported) beyond the limits above.
Plan make_plan(const EwProgram& program, DType cls, const std::vector<TensorDesc>& in,
               const std::vector<TensorDesc>& out, int threads, bool simd);

}  // namespace ortrain::ops::ew
