// limit_instruction_set(): our own vector kernels obey oneDNN's ONEDNN_MAX_CPU_ISA (or
// DNNL_MAX_CPU_ISA), so that one variable shows how a lesser x86 CPU computes.
//
// AVX2 (and AVX2_VNNI...) leave out AVX-512; SSE41 and AVX leave out AVX2 as well; other values,
// and other machines, change nothing. Call first in main. Loops under ORTRAIN_SIMD
// (ops/common/simd.h) are chosen by the loader, before any variable is read, and stay as they are.
// made_by_amd(): for the few choices that the instruction set alone does not decide.
#pragma once

namespace ortrain::ops {

void limit_instruction_set();
// Whether this CPU is AMD's, whose AVX-512 units are others than Intel's.
bool made_by_amd();

}  // namespace ortrain::ops
