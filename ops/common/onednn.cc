// oneDNN adapter: see onednn.h. The 2.6 shim is the `DNNL_VERSION_MAJOR < 3` blocks: op descriptors
// before primitive descriptors, and nothing else.
#include "ops/common/onednn.h"

#include <omp.h>

#include "graph/error.h"
#include "ops/common/isa.h"

namespace ortrain::onednn {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}
dnnl::stream& stream() {
  static dnnl::stream s(engine());
  return s;
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// A primitive descriptor of type P::primitive_desc, from P's op descriptor arguments and a hint.
#if DNNL_VERSION_MAJOR < 3
template <class P, class... A>
auto describe(const dnnl::primitive_attr& attr, A&&... args) {
  return typename P::primitive_desc(typename P::desc(std::forward<A>(args)...), attr, engine());
}
template <class P, class Hint, class... A>
auto describe_backward(const Hint& hint, A&&... args) {
  return typename P::primitive_desc(typename P::desc(std::forward<A>(args)...), attributes(),
                                    engine(), hint);
}
#else
template <class P, class... A>
auto describe(const dnnl::primitive_attr& attr, A&&... args) {
  return typename P::primitive_desc(engine(), std::forward<A>(args)..., attr);
}
template <class P, class Hint, class... A>
auto describe_backward(const Hint& hint, A&&... args) {
  return typename P::primitive_desc(engine(), std::forward<A>(args)..., hint, attributes());
}
#endif

template <class P, class Pd>
void complete(Primitive& out, const Pd& pd, Make make) {
  out.scratchpad = pd.scratchpad_desc();
  out.impl = pd.impl_info_str();
  if (make == Make::kFull) out.prim = P(pd);
}

bool empty(const Md& md) { return md.get_size() == 0; }

auto inner_product_pd(const Md& src, const Md& weights, const Md& bias, const Md& dst) {
  using P = dnnl::inner_product_forward;
  return empty(bias)
             ? describe<P>(attributes(), prop_kind::forward_training, src, weights, dst)
             : describe<P>(attributes(), prop_kind::forward_training, src, weights, bias, dst);
}

auto conv_pd(const ConvSpec& s) {
  using P = dnnl::convolution_forward;
  const auto kind = prop_kind::forward_training;
  const auto algo = algorithm::convolution_direct;
  return empty(s.bias) ? describe<P>(attributes(), kind, algo, s.src, s.weights, s.dst, s.strides,
                                     s.dilations, s.pads_begin, s.pads_end)
                       : describe<P>(attributes(), kind, algo, s.src, s.weights, s.bias, s.dst,
                                     s.strides, s.dilations, s.pads_begin, s.pads_end);
}

}  // namespace

// --- layouts ------------------------------------------------------------------------------------
Dims row_major_strides(const Dims& dims) {
  Dims s(dims.size());
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0; step *= dims[i]) s[i] = step;
  return s;
}

namespace {
memory::data_type type_of(DType d) {
  return d == DType::kBF16  ? memory::data_type::bf16
         : d == DType::kF16 ? memory::data_type::f16
                            : memory::data_type::f32;
}
}  // namespace

Md strided(const Dims& dims, const Dims& strides, DType dtype) {
  return Md(dims, type_of(dtype), strides);
}
Md dense(const Dims& dims, DType dtype) { return strided(dims, row_major_strides(dims), dtype); }
Md any(const Dims& dims, DType dtype) { return Md(dims, type_of(dtype), memory::format_tag::any); }

HalfUnits half_units([[maybe_unused]] DType dtype) {
#if DNNL_VERSION_MAJOR < 3
  return HalfUnits::kNone;  // none of its names for them is sure
#else
  const auto has = [](dnnl::cpu_isa isa) {
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & static_cast<unsigned>(isa)) ==
           static_cast<unsigned>(isa);
  };
  using Isa = dnnl::cpu_isa;
  if (dtype == DType::kBF16) {
    if (has(Isa::avx512_core_amx)) return HalfUnits::kTiles;
    if (has(Isa::avx512_core_bf16) && ops::made_by_amd()) return HalfUnits::kFast;
    return has(Isa::avx512_core) ? HalfUnits::kSlow : HalfUnits::kNone;
  }
  if (dtype != DType::kF16) return HalfUnits::kNone;
  return has(Isa::avx512_core_amx_fp16) ? HalfUnits::kTiles
         : has(Isa::avx512_core_fp16)   ? HalfUnits::kSlow
                                        : HalfUnits::kNone;
#endif
}

Md channels_last(const Dims& nhwc, DType dtype) {
  Dims dims = nhwc, strides = row_major_strides(nhwc);
  dims.insert(dims.begin() + 1, dims.back());
  dims.pop_back();
  strides.insert(strides.begin() + 1, strides.back());
  strides.pop_back();
  return strided(dims, strides, dtype);
}

Md matrix(int64_t rows, int64_t cols, bool trans, DType dtype) {
  return strided({rows, cols}, trans ? Dims{1, rows} : Dims{cols, 1}, dtype);
}

// --- primitives ---------------------------------------------------------------------------------
Primitive matmul(const Md& a, const Md& b, const Md& c, Make make) {
  Primitive p;
  const auto pd = describe<dnnl::matmul>(attributes(), a, b, c);
  p.src = pd.src_desc(), p.weights = pd.weights_desc(), p.dst = pd.dst_desc();
  complete<dnnl::matmul>(p, pd, make);
  return p;
}

Primitive inner_product(const Md& src, const Md& weights, const Md& bias, const Md& dst,
                        Make make) {
  Primitive p;
  const auto pd = inner_product_pd(src, weights, bias, dst);
  p.src = pd.src_desc(), p.weights = pd.weights_desc(), p.dst = pd.dst_desc(), p.bias = bias;
  complete<dnnl::inner_product_forward>(p, pd, make);
  return p;
}

Primitive inner_product_grad_input(const Md& src, const Md& weights, const Md& dst) {
  Primitive p;
  const auto hint = inner_product_pd(src, weights, Md(), dst);
  const auto pd = describe_backward<dnnl::inner_product_backward_data>(hint, src, weights, dst);
  p.src = pd.diff_src_desc(), p.weights = pd.weights_desc(), p.dst = pd.diff_dst_desc();
  complete<dnnl::inner_product_backward_data>(p, pd, Make::kFull);
  return p;
}

Primitive inner_product_grad_weight(const Md& src, const Md& weights, const Md& bias,
                                    const Md& dst) {
  using P = dnnl::inner_product_backward_weights;
  Primitive p;
  const auto hint = inner_product_pd(src, weights, bias, dst);
  const auto pd = empty(bias) ? describe_backward<P>(hint, src, weights, dst)
                              : describe_backward<P>(hint, src, weights, bias, dst);
  p.src = pd.src_desc(), p.weights = pd.diff_weights_desc(), p.dst = pd.diff_dst_desc();
  p.bias = bias;
  complete<P>(p, pd, Make::kFull);
  return p;
}

Primitive conv(const ConvSpec& s, Make make) {
  Primitive p;
  const auto pd = conv_pd(s);
  p.src = pd.src_desc(), p.weights = pd.weights_desc(), p.dst = pd.dst_desc(), p.bias = s.bias;
  complete<dnnl::convolution_forward>(p, pd, make);
  return p;
}

Primitive conv_grad_input(const ConvSpec& s, Make make) {
  using P = dnnl::convolution_backward_data;
  Primitive p;
  ConvSpec forward = s;
  forward.bias = Md();
  const auto hint = conv_pd(forward);
  const auto pd = describe_backward<P>(hint, algorithm::convolution_direct, s.src, s.weights, s.dst,
                                       s.strides, s.dilations, s.pads_begin, s.pads_end);
  p.src = pd.diff_src_desc(), p.weights = pd.weights_desc(), p.dst = pd.diff_dst_desc();
  complete<P>(p, pd, make);
  return p;
}

Primitive conv_grad_weight(const ConvSpec& s, Make make) {
  using P = dnnl::convolution_backward_weights;
  const auto algo = algorithm::convolution_direct;
  Primitive p;
  const auto hint = conv_pd(s);
  const auto pd = empty(s.bias)
                      ? describe_backward<P>(hint, algo, s.src, s.weights, s.dst, s.strides,
                                             s.dilations, s.pads_begin, s.pads_end)
                      : describe_backward<P>(hint, algo, s.src, s.weights, s.bias, s.dst, s.strides,
                                             s.dilations, s.pads_begin, s.pads_end);
  p.src = pd.src_desc(), p.weights = pd.diff_weights_desc(), p.dst = pd.diff_dst_desc();
  p.bias = s.bias;
  complete<P>(p, pd, make);
  return p;
}

std::string reject_not_f32(const KernelQuery& q) {
  for (const auto* list : {&q.in, &q.out})
    for (const TensorDesc& t : *list) {
      if (!t.present()) continue;
      if (t.dtype != DType::kF32) return cat("takes f32, not ", name_of(t.dtype));
      if (t.count() == 0) return "empty tensor";
    }
  return {};
}

// --- Program ------------------------------------------------------------------------------------
namespace {
size_t align64(size_t bytes) { return (bytes + 63) & ~size_t{63}; }
}  // namespace

Program::Program(const KernelQuery& q) : state_(std::make_unique<State>()) {
  state_->threads = q.threads;
  omp_set_num_threads(q.threads);  // primitives divide their work when they are made
}

Slot Program::work(const Md& md) {
  const size_t at = work_;
  work_ += align64(md.get_size());
  return {Slot::Where::kWork, at, md};
}

void Program::add(const Primitive& p, const std::vector<std::pair<int, Slot>>& args) {
  Step step{p.prim, {}, {}, {}};
  const auto bind = [&](int name, Slot::Where where, size_t index, const Md& md) {
    step.args.push_back({where, index, memory(md, engine(), nullptr)});
    step.exec.push_back({name, step.args.back().memory.get()});
  };
  for (const auto& [name, slot] : args) bind(name, slot.where, slot.index, slot.md);
  if (p.scratchpad.get_size() > 0) {
    scratch_ = std::max(scratch_, p.scratchpad.get_size());
    bind(DNNL_ARG_SCRATCHPAD, Slot::Where::kWork, SIZE_MAX, p.scratchpad);
  }
  state_->steps.push_back(std::move(step));
}

void Program::reorder(const Slot& from, const Slot& to) {
  dnnl::primitive_attr attr = attributes();
  const dnnl::reorder::primitive_desc pd(engine(), from.md, engine(), to.md, attr);
  Primitive p;
  p.scratchpad = pd.scratchpad_desc();
  p.prim = dnnl::reorder(pd);
  add(p, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

Slot Program::as(const Slot& slot, const Md& md) {
  if (slot.md == md) return slot;
  Slot other = work(md);
  reorder(slot, other);
  return other;
}

Slot Program::before(const Slot& slot, const Md& md) { return slot.md == md ? slot : work(md); }
void Program::put_back(const Slot& computed, const Slot& slot) {
  if (computed.where != slot.where || computed.index != slot.index) reorder(computed, slot);
}

void Program::call(std::function<void(const KernelArgs&)> f) {
  state_->steps.push_back({{}, {}, {}, std::move(f)});
}

void Program::State::run(const KernelArgs& a) {
  if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
  for (Step& step : steps) {
    if (step.call) {
      step.call(a);
      continue;
    }
    for (Arg& arg : step.args) {
      void* p = nullptr;
      if (arg.where == Slot::Where::kIn) {
        p = const_cast<void*>(a.in[arg.index]);
      } else if (arg.where == Slot::Where::kOut) {
        p = a.out[arg.index];
      } else {
        const size_t at = arg.index == SIZE_MAX ? scratch_at : arg.index;
        p = static_cast<std::byte*>(a.workspace) + at;
      }
      dnnl_memory_set_data_handle(arg.memory.get(), p);
    }
    const dnnl_status_t status = dnnl_primitive_execute(
        step.prim.get(), stream().get(), static_cast<int>(step.exec.size()), step.exec.data());
    ORTRAIN_CHECK(status == dnnl_success, "a oneDNN primitive failed to execute");
  }
}

Kernel Program::finish() && {
  state_->scratch_at = work_;
  Kernel kernel;
  kernel.workspace = work_ + align64(scratch_);
  kernel.run = [state = std::shared_ptr<State>(std::move(state_))](const KernelArgs& a) {
    state->run(a);
  };
  return kernel;
}

}  // namespace ortrain::onednn
