// ReverseSequence: per batch entry, the first sequence_lens[b] steps in reverse order, the rest as
// they are. A length outside [0, steps] is reported and counts as 0. It is its own inverse, so the
// gradient is the same op on dy.
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  const int64_t batch = c.attrs().i("batch_axis", 1), time = c.attrs().i("time_axis", 0);
  if (c.rank(0) < 2 || batch == time || batch < 0 || batch > 1 || time < 0 || time > 1)
    c.fail(cat("batch_axis ", batch, " and time_axis ", time, " for ", c.shape(0).str()));
  if (c.dtype(1) != DType::kI64) c.fail("sequence_lens must be i64");
  c.out(0, c.dtype(0), c.shape(0));
}

Kernel kernel(const KernelQuery& q) {
  const Dims& d = q.in[0].dims;
  const bool batch_first = q.attrs.i("batch_axis", 1) == 0;
  const int64_t bytes =
      product(d, 2, q.in[0].rank()) * static_cast<int64_t>(size_of(q.in[0].dtype));
  return {0, [batch_first, bytes, rows = d[0], columns = d[1]](const KernelArgs& a) {
            const int64_t steps = batch_first ? columns : rows;
            if (bytes == 0) return;
            for (int64_t r = 0; r < rows; ++r)
              for (int64_t col = 0; col < columns; ++col) {
                const int64_t b = batch_first ? r : col, t = batch_first ? col : r;
                int64_t n = a.x<int64_t>(1)[b];
                if (n < 0 || n > steps) {
                  a.fault->report(b, n, 0, steps + 1);
                  n = 0;
                }
                const int64_t s = t < n ? n - 1 - t : t;
                const int64_t from = batch_first ? r * columns + s : s * columns + col;
                std::memcpy(a.y<std::byte>(0) + (r * columns + col) * bytes,
                            a.x<std::byte>(0) + from * bytes, static_cast<size_t>(bytes));
              }
          }};
}

}  // namespace

void register_reverse_sequence(OpTable& table) {
  table.add({
      .name = "ReverseSequence",
      .inputs = {"input", "sequence_lens"},
      .outputs = {"Y"},
      .since = 10,
      .infer = infer,
      .grad = {grad("input",
                    [](Grad& g) {
                      return g.b.op("ReverseSequence", {g.dy(), g.x(1)}, Attrs(g.attrs()));
                    }),
               no_grad("sequence_lens")},
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {f({4, 3}), ivals({4, 1, 2})}},
                   {.in = {f({3, 5, 2}), ints({3}, 0, 6)},
                    .attrs = {{"batch_axis", 0}, {"time_axis", 1}}},
                   {.in = {f({2, 0}), ints({0}, 0, 1)}}},
  });
}

}  // namespace ortrain::ops
