// See isa.h: Highway's targets by oneDNN's variable.
#include "ops/common/isa.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace ortrain::ops {

void limit_instruction_set() {
#if HWY_ARCH_X86
  const char* value = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (!value) value = std::getenv("DNNL_MAX_CPU_ISA");
  if (!value) return;
  std::string name = value;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char ch) { return static_cast<char>(std::toupper(ch)); });
  const bool sse = name == "SSE41" || name == "AVX";
  if (!sse && !name.starts_with("AVX2")) return;
  // Better targets have lower bits: all below AVX2's, with it where AVX2 is left out too.
  const int64_t better = HWY_AVX2 - 1;
  hwy::DisableTargets(sse ? better | HWY_AVX2 : better);
#endif
}

bool made_by_amd() {
#if HWY_ARCH_X86
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace ortrain::ops
