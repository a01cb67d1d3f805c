// See widen.h. Scratch memory: the converted inputs, the results, then the kernel's own.
#include "runtime/widen.h"

#include <algorithm>

#include "graph/half.h"

namespace ortrain {
namespace {

constexpr int64_t kGrain = 32768;  // elements per thread
size_t align64(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// A 16-bit tensor of the node and where its f32 version lies.
struct Part {
  size_t index;
  DType dtype;
  int64_t count;
  size_t offset;
};

struct Widened {
  KernelQuery q;
  std::vector<HostTensor> constants;  // what q.constants points to
  std::vector<Part> in, out;
  size_t bytes = 0;
};

Widened widen(const KernelQuery& q) {
  Widened w{q, {}, {}, {}, 0};
  w.constants.reserve(q.constants.size());
  const auto add = [&](TensorDesc& t, size_t i, std::vector<Part>& parts) {
    if (!is_half(t.dtype)) return;
    parts.push_back({i, t.dtype, t.count(), w.bytes});
    t.dtype = DType::kF32;
    w.bytes += align64(t.bytes());
  };
  for (size_t i = 0; i < w.q.in.size(); ++i) add(w.q.in[i], i, w.in);
  for (size_t i = 0; i < w.q.out.size(); ++i) add(w.q.out[i], i, w.out);
  for (const HostTensor*& t : w.q.constants) {
    if (!t || !is_half(t->dtype())) continue;
    w.constants.push_back(t->cast(DType::kF32));
    t = &w.constants.back();
  }
  return w;
}

}  // namespace

bool has_half(const KernelQuery& q) {
  const auto half = [](const TensorDesc& t) { return is_half(t.dtype); };
  return std::any_of(q.in.begin(), q.in.end(), half) ||
         std::any_of(q.out.begin(), q.out.end(), half);
}

std::string reject_widened(const KernelEntry& entry, const KernelQuery& q) {
  return entry.reject ? entry.reject(widen(q).q) : std::string();
}

Kernel prepare_widened(const KernelEntry& entry, const KernelQuery& q) {
  const Widened w = widen(q);
  Kernel inner = entry.prepare(w.q);
  if (!inner.run) return {};
  // kernel.h: lists are never shorter than the operator's; variadic ones are as long as the node's.
  constexpr size_t kMore = 16;
  Kernel k;
  k.workspace = w.bytes + inner.workspace;
  k.run = [run = std::move(inner.run), from = w.in, to = w.out, bytes = w.bytes,
           in = std::vector<const void*>(q.in.size() + kMore),
           out = std::vector<void*>(q.out.size() + kMore), inputs = q.in.size(),
           outputs = q.out.size(), threads = q.threads](const KernelArgs& a) mutable {
    auto* base = static_cast<std::byte*>(a.workspace);
    const auto at = [base](const Part& p) { return reinterpret_cast<float*>(base + p.offset); };
    std::copy_n(a.in, inputs, in.begin());
    std::copy_n(a.out, outputs, out.begin());
    for (const Part& p : from) {
      const auto* x = static_cast<const uint16_t*>(a.in[p.index]);
      parallel_for(threads, p.count, kGrain, [&](int64_t begin, int64_t end) {
        half_to_float(p.dtype, x + begin, at(p) + begin, end - begin);
      });
      in[p.index] = at(p);
    }
    for (const Part& p : to) out[p.index] = at(p);
    run({in.data(), out.data(), base + bytes, a.fault});
    for (const Part& p : to) {
      auto* y = static_cast<uint16_t*>(a.out[p.index]);
      parallel_for(threads, p.count, kGrain, [&](int64_t begin, int64_t end) {
        float_to_half(p.dtype, at(p) + begin, y + begin, end - begin);
      });
    }
  };
  return k;
}

}  // namespace ortrain
