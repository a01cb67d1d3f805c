// The one adapter to oneDNN: memory layouts, primitives made at plan time, and Program, a short
// list of primitives that becomes a Kernel.
//
// Written to the 3.x API; a shim in onednn.cc lets Debian 12's 2.6 compile too. f32, and 16-bit
// floats where a layout says so (sums are f32). Scratch memory is the caller's (Kernel::workspace).
// run() sets data handles and executes: no oneDNN object is made after prepare(). Kernels of one
// process share the engine and the stream; the OpenMP pool is the process's own, set to
// KernelQuery::threads. Refuses (by throwing dnnl::error at plan time) what the library cannot do;
// reject functions ask first with `why_not`. No relu post-ops: the library's relu turns NaN into 0,
// and a diverged step would look finite.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace ortrain::onednn {

using Md = dnnl::memory::desc;

// f32, bf16 or f16.
Md dense(const Dims& dims, DType dtype = DType::kF32);  // row-major
Md strided(const Dims& dims, const Dims& strides,
           DType dtype = DType::kF32);                // in elements
Md any(const Dims& dims, DType dtype = DType::kF32);  // the library chooses
// Row-major [..., C] seen as [N, C, spatial...]: the dims that oneDNN wants for channels-last data.
Md channels_last(const Dims& nhwc, DType dtype = DType::kF32);
// w[rows, cols] of a matrix stored row-major, or its transpose (stored [cols, rows]) when `trans`.
Md matrix(int64_t rows, int64_t cols, bool trans, DType dtype = DType::kF32);
// Products of a 16-bit type, operands as they are: the library has none, or some, or they run on
// units that are faster than f32's, or on AMX's tiles. bf16: AVX-512 BF16 of AMD (Zen 4 and later)
// is fast: vdpbf16ps has twice the rate of f32 FMA there; Intel's has half of it. f16: AMX-FP16.
enum class HalfUnits : uint8_t { kNone, kSlow, kFast, kTiles };
HalfUnits half_units(DType dtype);
Dims row_major_strides(const Dims& dims);

// A primitive and the layouts it wants. For backward primitives `src`, `weights`, `bias`, `dst` are
// those of the diffs where these are what is computed.
struct Primitive {
  dnnl::primitive prim;
  Md src, weights, bias, dst, scratchpad;
  std::string impl;
};

struct ConvSpec {
  Md src, weights, bias, dst;  // bias may be empty
  dnnl::memory::dims strides, dilations /* 0 = dense */, pads_begin, pads_end;
};

// Only whether the primitive exists is asked; nothing is compiled.
enum class Make : uint8_t { kFull, kProbe };
Primitive matmul(const Md& a, const Md& b, const Md& c, Make make = Make::kFull);
Primitive inner_product(const Md& src, const Md& weights, const Md& bias, const Md& dst,
                        Make make = Make::kFull);
Primitive inner_product_grad_input(const Md& src, const Md& weights, const Md& dst);
Primitive inner_product_grad_weight(const Md& src, const Md& weights, const Md& bias,
                                    const Md& dst);
Primitive conv(const ConvSpec& s, Make make = Make::kFull);
Primitive conv_grad_input(const ConvSpec& s, Make make = Make::kFull);
Primitive conv_grad_weight(const ConvSpec& s, Make make = Make::kFull);

// "" when `f` makes its primitives, else the library's reason.
template <class F>
std::string why_not(F&& f) {
  try {
    f();
    return {};
  } catch (const dnnl::error& e) {
    return std::string("oneDNN: ") + e.what();
  }
}
// The common part of every reject: f32 everywhere, nothing empty.
std::string reject_not_f32(const KernelQuery& q);

// Where a primitive's argument lies.
struct Slot {
  enum class Where : uint8_t { kIn, kOut, kWork } where;
  size_t index;  // input, output, or byte offset in the workspace
  Md md;
};
inline Slot in(size_t i, Md md) { return {Slot::Where::kIn, i, std::move(md)}; }
inline Slot out(size_t i, Md md) { return {Slot::Where::kOut, i, std::move(md)}; }

class Program {
 public:
  explicit Program(const KernelQuery& q);
  Slot work(const Md& md);  // reserves workspace for it
  void add(const Primitive& p, const std::vector<std::pair<int, Slot>>& args);
  void reorder(const Slot& from, const Slot& to);
  // `slot` in layout `md`: itself when it has it, else a workspace slot that a reorder fills.
  Slot as(const Slot& slot, const Md& md);
  // The slot that a primitive shall write so that `slot` gets it: itself, or a workspace slot,
  // which `put_back` reorders into `slot` after the primitive.
  Slot before(const Slot& slot, const Md& md);
  void put_back(const Slot& computed, const Slot& slot);
  void call(std::function<void(const KernelArgs&)> f);  // own code between primitives
  Kernel finish() &&;

 private:
  struct Arg {
    Slot::Where where;
    size_t index;
    dnnl::memory memory;
  };
  struct Step {
    dnnl::primitive prim;
    std::vector<Arg> args;
    std::vector<dnnl_exec_arg_t> exec;
    std::function<void(const KernelArgs&)> call;
  };
  struct State {
    std::vector<Step> steps;
    int threads = 1;
    size_t scratch_at = 0;
    void run(const KernelArgs& a);
  };
  std::unique_ptr<State> state_;
  size_t work_ = 0, scratch_ = 0;
};

}  // namespace ortrain::onednn
