// Strided copies: how axes are merged, which inner loop runs, and how the work is split.
//
// Three inner loops: contiguous rows (both strides 1), tiled transposes (one axis contiguous on
// each side), and a plain strided loop for the rest. Pieces depend on the shape and the thread
// count only; the result does not depend on either.
#include "ops/common/movement.h"

#include <algorithm>
#include <cstring>

#include "graph/error.h"

namespace ortrain::ops {

constexpr int kMaxRank = 16;

int64_t product(const Dims& dims, int begin, int end) {
  int64_t p = 1;
  for (int i = begin; i < end; ++i) p *= dims[static_cast<size_t>(i)];
  return p;
}
int64_t product(const Dims& dims) { return product(dims, 0, static_cast<int>(dims.size())); }

Dims dense_strides(const Dims& dims) {
  Dims s(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) s[i - 1] = s[i] * dims[i];
  return s;
}

StridedCopy permuted(const Dims& in, const std::vector<int64_t>& perm, size_t size) {
  const Dims strides = dense_strides(in);
  StridedCopy c;
  c.size = size;
  for (int64_t p : perm) {
    c.dims.push_back(in[static_cast<size_t>(p)]);
    c.src.push_back(strides[static_cast<size_t>(p)]);
  }
  c.dst = dense_strides(c.dims);
  return c;
}

StridedCopy simplify(StridedCopy c) {
  StridedCopy r = c;
  r.dims.clear(), r.src.clear(), r.dst.clear();
  for (size_t i = 0; i < c.dims.size(); ++i) {
    if (c.dims[i] == 1) continue;
    if (!r.dims.empty() && r.src.back() == c.src[i] * c.dims[i] &&
        r.dst.back() == c.dst[i] * c.dims[i]) {
      r.dims.back() *= c.dims[i];
      r.src.back() = c.src[i];
      r.dst.back() = c.dst[i];
    } else {
      r.dims.push_back(c.dims[i]);
      r.src.push_back(c.src[i]);
      r.dst.push_back(c.dst[i]);
    }
  }
  if (r.dims.size() > kMaxRank)
    fail(ErrorCode::kUnsupported, "a copy over ", r.dims.size(), " axes; at most ", kMaxRank);
  return r;
}

namespace {

constexpr int64_t kPieceBytes = 32768;  // below this an OpenMP fork costs more than it saves

// Walks the index space `dims` from flat index `first`, keeping both offsets.
struct Walk {
  const int64_t* dims;
  const int64_t* src;
  const int64_t* dst;
  int rank;
  int64_t at[kMaxRank];
  int64_t s = 0, d = 0;
  Walk(const int64_t* n, const int64_t* ss, const int64_t* ds, int r, int64_t first)
      : dims(n), src(ss), dst(ds), rank(r) {
    for (int k = r; k-- > 0;) {
      at[k] = first % n[k];
      first /= n[k];
      s += at[k] * ss[k];
      d += at[k] * ds[k];
    }
  }
  // Steps left on the last axis, the current one included.
  int64_t run() const { return rank == 0 ? 1 : dims[rank - 1] - at[rank - 1]; }
  int64_t step_s() const { return rank == 0 ? 0 : src[rank - 1]; }
  int64_t step_d() const { return rank == 0 ? 0 : dst[rank - 1]; }
  // Moves on by n <= run() steps.
  void advance(int64_t n) {
    if (rank == 0) return;
    at[rank - 1] += n - 1;
    s += (n - 1) * src[rank - 1];
    d += (n - 1) * dst[rank - 1];
    next();
  }
  void next() {
    for (int k = rank; k-- > 0;) {
      s += src[k];
      d += dst[k];
      if (++at[k] < dims[k]) return;
      s -= dims[k] * src[k];
      d -= dims[k] * dst[k];
      at[k] = 0;
    }
  }
};

template <class T>
void rows(const StridedCopy& c, const T* src, T* dst, int threads) {
  const int outer = static_cast<int>(c.dims.size()) - 1;
  const int64_t n = c.dims.back(), count = product(c.dims, 0, outer);
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  const auto* from = reinterpret_cast<const std::byte*>(src);
  auto* to = reinterpret_cast<std::byte*>(dst);
  if (count < threads) {  // long rows are cut so that every thread gets work
    Walk w(c.dims.data(), c.src.data(), c.dst.data(), outer, 0);
    for (int64_t i = 0; i < count; ++i, w.next())
      parallel_for(threads, bytes, kPieceBytes, [&](int64_t begin, int64_t end) {
        std::memcpy(to + w.d * static_cast<int64_t>(sizeof(T)) + begin,
                    from + w.s * static_cast<int64_t>(sizeof(T)) + begin,
                    static_cast<size_t>(end - begin));
      });
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kPieceBytes / bytes);
  parallel_for(threads, count, grain, [&](int64_t begin, int64_t end) {
    Walk w(c.dims.data(), c.src.data(), c.dst.data(), outer, begin);
    while (begin < end) {
      const int64_t run = std::min(end - begin, w.run());
      const T *x = src + w.s, *const stop = x + run * w.step_s();
      T* y = dst + w.d;
      if (bytes <= 256 && bytes % 16 == 0 && w.step_s() != 0) {
        // In 16-byte steps: a library call costs more than the copy.
        for (; x != stop; x += w.step_s(), y += w.step_d())
          for (int64_t i = 0; i < bytes; i += 16)
            std::memcpy(reinterpret_cast<std::byte*>(y) + i,
                        reinterpret_cast<const std::byte*>(x) + i, 16);
      } else {
        for (int64_t i = 0; i < run; ++i, x += w.step_s(), y += w.step_d())
          std::memcpy(y, x, static_cast<size_t>(bytes));
      }
      w.advance(run);
      begin += run;
    }
  });
}

// N rows of src interleaved: dst[i * ld + j] = src[j * ls + i] for i < m, j < N.
template <int N, class T>
void interleave(const T* src, int64_t ls, T* dst, int64_t ld, int64_t m) {
  for (int64_t i = 0; i < m; ++i)
    for (int j = 0; j < N; ++j) dst[i * ld + j] = src[j * ls + i];
}

// dst[i * ld + j] = src[j * ls + i] for i < m, j < n.
template <class T>
void tile(const T* src, int64_t ls, T* dst, int64_t ld, int64_t m, int64_t n) {
  if (n == 1) return interleave<1>(src, ls, dst, ld, m);
  if (n == 2) return interleave<2>(src, ls, dst, ld, m);
  if (n == 3) return interleave<3>(src, ls, dst, ld, m);
  int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    using V = uint32_t __attribute__((vector_size(16)));
    const auto load = [](const T* p) {
      V v;
      std::memcpy(&v, p, 16);
      return v;
    };
    const auto store = [](T* p, V v) { std::memcpy(p, &v, 16); };
    for (; i + 4 <= m; i += 4) {
      int64_t j = 0;
      for (; j + 4 <= n; j += 4) {
        const T* s = src + j * ls + i;
        const V a = load(s), b = load(s + ls), c = load(s + 2 * ls), d = load(s + 3 * ls);
        const V ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        const V ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const V cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        const V cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        T* t = dst + i * ld + j;
        store(t, __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5));
        store(t + ld, __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7));
        store(t + 2 * ld, __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5));
        store(t + 3 * ld, __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7));
      }
      for (; j < n; ++j)
        for (int64_t k = i; k < i + 4; ++k) dst[k * ld + j] = src[j * ls + k];
    }
  }
  for (; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) dst[i * ld + j] = src[j * ls + i];
}

// Axis p is contiguous in src, the last axis q contiguous in dst.
template <class T>
void transposed(const StridedCopy& c, int p, const T* src, T* dst, int threads) {
  const int q = static_cast<int>(c.dims.size()) - 1;
  int64_t dims[kMaxRank], ss[kMaxRank], ds[kMaxRank];
  int outer = 0;
  for (int k = 0; k < q; ++k)
    if (k != p) {
      const auto i = static_cast<size_t>(k);
      dims[outer] = c.dims[i], ss[outer] = c.src[i], ds[outer++] = c.dst[i];
    }
  const auto ip = static_cast<size_t>(p), iq = static_cast<size_t>(q);
  const int64_t m = c.dims[ip], n = c.dims[iq], ld = c.dst[ip], ls = c.src[iq];
  // Tiles of 64 x 64 elements: 16 KiB of each side.
  constexpr int64_t kTile = 64;
  // Rows a multiple of 1 KiB apart fall into few cache sets: such tiles go through a buffer.
  const int64_t size = sizeof(T);
  const bool collides = ld * size % 1024 == 0 || ls * size % 1024 == 0;
  const int64_t bands = (m + kTile - 1) / kTile;
  int64_t count = bands;
  for (int k = 0; k < outer; ++k) count *= dims[k];
  const int64_t unit = std::min(m, kTile) * n * static_cast<int64_t>(sizeof(T));
  const int64_t grain = std::max<int64_t>(1, kPieceBytes / unit);
  parallel_for(threads, count, grain, [&](int64_t begin, int64_t end) {
    Walk w(dims, ss, ds, outer, begin / bands);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t band = i % bands, first = band * kTile, rows_here = std::min(kTile, m - first);
      for (int64_t j = 0; j < n; j += kTile) {
        const T* from = src + w.s + first + j * ls;
        T* to = dst + w.d + first * ld + j;
        const int64_t columns = std::min(kTile, n - j);
        if (!collides) {
          tile(from, ls, to, ld, rows_here, columns);
          continue;
        }
        T buffer[kTile * kTile];
        tile(from, ls, buffer, kTile, rows_here, columns);
        for (int64_t k = 0; k < rows_here; ++k)
          std::memcpy(to + k * ld, buffer + k * kTile, static_cast<size_t>(columns) * sizeof(T));
      }
      if (band == bands - 1) w.next();
    }
  });
}

template <class T>
void strided(const StridedCopy& c, const T* src, T* dst, int threads) {
  const int outer = static_cast<int>(c.dims.size()) - 1;
  const int64_t n = c.dims.back(), s = c.src.back(), d = c.dst.back();
  const int64_t grain =
      std::max<int64_t>(1, kPieceBytes / (4 * n * static_cast<int64_t>(sizeof(T))));
  parallel_for(threads, product(c.dims, 0, outer), grain, [&](int64_t begin, int64_t end) {
    Walk w(c.dims.data(), c.src.data(), c.dst.data(), outer, begin);
    for (int64_t i = begin; i < end; ++i, w.next()) {
      const T* from = src + w.s;
      T* to = dst + w.d;
      if (s == 0 && d == 1) {
        std::fill_n(to, n, *from);
      } else if (d == 1) {
        for (int64_t j = 0; j < n; ++j) to[j] = from[j * s];
      } else {
        for (int64_t j = 0; j < n; ++j) to[j * d] = from[j * s];
      }
    }
  });
}

template <class T>
void run_typed(const StridedCopy& c, const T* src, T* dst, int threads) {
  src += c.src_offset;
  dst += c.dst_offset;
  if (c.dims.empty()) {
    *dst = *src;
    return;
  }
  if (product(c.dims) == 0) return;
  const int last = static_cast<int>(c.dims.size()) - 1;
  if (c.dst.back() == 1 && c.src.back() == 1) return rows(c, src, dst, threads);
  if (c.dst.back() == 1 && c.src.back() != 0 && c.dims.back() > 1)
    for (int p = 0; p < last; ++p)
      if (c.src[static_cast<size_t>(p)] == 1) return transposed(c, p, src, dst, threads);
  strided(c, src, dst, threads);
}

}  // namespace

void run_copy(const StridedCopy& c, const void* src, void* dst, int threads) {
  by_size(c.size, [&]<class T>() {
    run_typed(c, static_cast<const T*>(src), static_cast<T*>(dst), threads);
  });
}

void copy_ref(const StridedCopy& c, const void* src, void* dst) {
  by_size(c.size,
          [&]<class T>() { copy_ref(c, static_cast<const T*>(src), static_cast<T*>(dst)); });
}

std::vector<KernelEntry> view_kernels() {
  return {{"cpu", "ref", nullptr, [](const KernelQuery& q) -> Kernel {
             return {0, [bytes = q.out[0].bytes()](const KernelArgs& a) {
                       if (bytes > 0) std::memcpy(a.out[0], a.in[0], bytes);
                     }};
           }}};
}

void carry_ints(InferCtx& c, const StridedCopy& copy) {
  const auto ints = c.ints(0);
  if (!ints || product(copy.dims) > 4096) return;
  std::vector<Dim> out(static_cast<size_t>(product(copy.dims)));
  copy_ref(copy, ints->data(), out.data());
  c.out_ints(0, std::move(out));
}

void carry_ints(InferCtx& c) {
  if (auto ints = c.ints(0)) c.out_ints(0, std::move(*ints));
}

std::vector<int64_t> numbers(const std::vector<Dim>& dims, std::string_view what) {
  std::vector<int64_t> out;
  for (const Dim& d : dims) {
    if (!d.is_const())
      fail(ErrorCode::kUnsupported, what, " holds the unknown extent ", d.str(),
           "; it must be a number");
    out.push_back(d.value());
  }
  return out;
}

std::optional<LayoutChange> axis_channels_last(Graph& g, NodeId n, int64_t missing) {
  Node& node = g.node(n);
  const int rank = g.value(node.inputs[0]).shape.rank();
  node.attrs.set("axis", last_axis(normalize_axis(node.attrs.i("axis", missing), rank), rank));
  LayoutChange change;
  for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i)
    if (g.value(node.inputs[static_cast<size_t>(i)]).shape.rank() == rank)
      change.inputs.push_back(i);
  for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) change.outputs.push_back(i);
  return change;
}

bool axes_input_channels_last(Graph& g, NodeId n, int i, size_t count) {
  InferCtx c(g, n);
  const int rank = c.rank(0);
  std::vector<int64_t> axes;
  if (c.has(i)) {
    const auto known = c.ints(i);
    if (!known) return false;
    axes = numbers(*known, "axes");
  } else {
    for (size_t k = 0; k < count; ++k) axes.push_back(static_cast<int64_t>(k));
  }
  for (int64_t& a : axes) a = last_axis(normalize_axis(a, rank), rank);
  g.set_input(n, i, g.add_const(HostTensor::ints(axes)));
  return true;
}

void check_index_type(InferCtx& c, int i) {
  if (c.dtype(i) != DType::kI64 && c.dtype(i) != DType::kI32)
    c.fail(cat("indices must be i32 or i64, got ", name_of(c.dtype(i))));
}

void fill_zero(void* dst, size_t bytes, int threads) {
  parallel_for(
      threads, static_cast<int64_t>(bytes), kPieceBytes * 4, [&](int64_t begin, int64_t end) {
        std::memset(static_cast<std::byte*>(dst) + begin, 0, static_cast<size_t>(end - begin));
      });
}

}  // namespace ortrain::ops
