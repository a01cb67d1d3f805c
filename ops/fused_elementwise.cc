// ortrain.FusedElementwise(xs*) -> ys*: a chain of elementwise operators as one pass over memory.
//
// Written by the pass fuse_late. Attributes: program (graph/ew.h's text form), outputs (which
// instructions are results), types (of the outputs), class (what is computed in: f32 or f64), dims
// (of every output; inputs broadcast to them). Runs tile by tile in the L1 cache
// (ops/common/ew_engine.cc); an output may take the memory of an input of its size.
#include "graph/error.h"
#include "ops/common/ew_engine.h"

namespace ortrain::ops {

namespace {

DType class_of(const Attrs& attrs) {
  const auto cls = dtype_from_name(attrs.s("class", "f32"));
  if (!cls || (*cls != DType::kF32 && *cls != DType::kF64))
    fail(ErrorCode::kModel, "FusedElementwise: class must be f32 or f64");
  return *cls;
}

EwProgram program_of(const Attrs& attrs) {
  return EwProgram::parse(attrs.strings("program"), attrs.ints("outputs"));
}

void infer_fused(InferCtx& c) {
  const EwProgram program = program_of(c.attrs());
  const std::vector<std::string> types = c.attrs().strings("types");
  if (types.size() != program.outputs.size() || static_cast<int>(types.size()) != c.output_count())
    c.fail("as many types as outputs are needed");
  for (const EwInstr& instr : program.code)
    for (const EwOperand& o : instr.args)
      if (o.kind == EwOperand::Kind::kInput && !c.has(o.index))
        c.fail(cat("the program reads input ", o.index));
  const Shape dims(c.attrs().ints("dims"));
  for (int i = 0; i < c.input_count(); ++i)
    if (!(broadcast(dims, c.shape(i)) == dims)) c.fail(cat("input ", i, " does not broadcast"));
  for (size_t o = 0; o < types.size(); ++o) {
    const auto type = dtype_from_name(types[o]);
    if (!type) c.fail("unknown type " + types[o]);
    c.out(static_cast<int>(o), *type, dims);
  }
}

std::string simd_reject(const KernelQuery& q) {
  return class_of(q.attrs) == DType::kF32 ? "" : "computes in f32 only";
}
Kernel simd_prepare(const KernelQuery& q) {
  return ew_prepare(program_of(q.attrs), class_of(q.attrs), q.in, q.out, q.threads, true);
}
Kernel ref_prepare(const KernelQuery& q) {
  return ew_prepare(program_of(q.attrs), class_of(q.attrs), q.in, q.out, q.threads, false);
}

// Every pair: the engine copes with any output in the place of any input.
std::vector<std::pair<int, int>> all_pairs() {
  std::vector<std::pair<int, int>> out;
  for (int o = 0; o < 6; ++o)
    for (int i = 0; i < 16; ++i) out.emplace_back(o, i);
  return out;
}

Example example(std::vector<ExampleInput> in, std::vector<std::string> program,
                std::vector<int64_t> outputs, std::vector<std::string> types,
                std::vector<int64_t> dims) {
  Example e;
  e.outputs = static_cast<int>(outputs.size());
  e.in = std::move(in);
  e.attrs = {{"program", std::move(program)},
             {"outputs", std::move(outputs)},
             {"types", std::move(types)},
             {"class", std::string("f64")},
             {"dims", std::move(dims)}};
  return e;
}

}  // namespace

OpDef fused_elementwise_op() {
  return {
      .name = "ortrain.FusedElementwise",
      .inputs = {"xs*"},
      .outputs = {"ys*"},
      .infer = infer_fused,
      .inplace = all_pairs(),
      .kernels = {{"cpu", "simd", simd_reject, simd_prepare}, {"cpu", "ref", nullptr, ref_prepare}},
      .examples = {example({f({2, 3}), f({3})}, {"add x0 x1", "tanh t0"}, {1}, {"f64"}, {2, 3}),
                   example({f({40, 70}), f({70}), f({40, 1}), f({})},
                           {"mul x0 x1", "add t0 x2", "mul t1 #0.5", "sub t2 x3"}, {1, 3},
                           {"f64", "f64"}, {40, 70}),
                   example({f({3, 300}), f({3, 300})}, {"gt x0 x1", "where t0 x0 #0", "add t1 x0"},
                           {0, 2}, {"bool", "f64"}, {3, 300}),
                   example({f({4, 5, 7}), f({5, 1}), f({4, 1, 7}), bools({4, 5, 7})},
                           {"add x0 x1", "mul t0 x2", "where x3 t1 x0"}, {2}, {"f64"}, {4, 5, 7}),
                   example({f({0, 3}), f({3})}, {"add x0 x1", "exp t0"}, {1}, {"f64"}, {0, 3})},
  };
}

void register_fused_elementwise(OpTable& table) { table.add(fused_elementwise_op()); }

}  // namespace ortrain::ops
