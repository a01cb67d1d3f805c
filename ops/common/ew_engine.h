// The elementwise engine: runs an EwProgram over broadcast inputs, tile by tile in the L1 cache.
//
// A tile function computes n consecutive elements of one code; there is one table of them per class
// (f32, f64, i64, u64) in plain C++ (ew_ref.cc) and one for f32 with vector instructions
// (ew_simd.cc). Inputs of other element types are converted as a tile is loaded, results as it is
// stored. An output may be the same memory as an input of the same size.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/ew.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

// One call of a tile function: x[i] points to n elements (step 1) or to one for all (step 0).
struct EwCall {
  const void* x[3];
  int64_t step[3];
  void* y;
  int64_t n;
};
using EwFn = void (*)(const EwCall&);

inline constexpr int64_t kEwTileBytes = 4096;

struct EwTable {
  EwFn fn[static_cast<size_t>(Ew::kCount)] = {};  // null: the code does not exist for this class
};
const EwTable& ew_ref_table(DType cls);  // kF32, kF64, kI64, kU64
const EwTable& ew_simd_table();          // f32, for the CPU that runs; complete (falls back to ref)
EwTable ew_make_simd_table();  // the same, made for Highway's chosen target of this moment (tests)

// Converts n elements (a step of 0 reads one element n times). Floats to integers truncate and
// saturate, NaN gives 0; integers wrap; anything to bool is "not zero".
using EwConvert = void (*)(const void* from, int64_t step, void* to, int64_t n);
EwConvert ew_load(DType from, DType cls);
EwConvert ew_store(DType cls, DType to);
void ew_load_bool_simd(const void* from, int64_t step, void* to, int64_t n);   // bool -> f32
void ew_store_bool_simd(const void* from, int64_t step, void* to, int64_t n);  // f32 -> bool

// The class that a single node computes in, from its element types.
DType ew_class(Ew code, const std::vector<TensorDesc>& in, const std::vector<TensorDesc>& out);

// Prepares `program` for these inputs and outputs (all outputs have the dims of out[0]; inputs
// broadcast to it). Throws Error(kUnsupported) when it needs more than kEwSlots tiles at once.
Kernel ew_prepare(const EwProgram& program, DType cls, const std::vector<TensorDesc>& in,
                  const std::vector<TensorDesc>& out, int threads, bool simd);

// The program of one node of an op with an elementwise code, or of one that decomposes into such
// ops; nullopt when it is neither.
std::optional<EwProgram> ew_program_of(const KernelQuery& q);

}  // namespace ortrain::ops
