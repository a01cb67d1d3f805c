// libFuzzer entry for recipes, which models carry in their metadata: TOML to settings, the settings
// printed and read again, the preparation that they say. Only Error may come out; what a recipe
// prints is accepted and says the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "graph/error.h"
#include "runtime/cli/config.h"
#include "runtime/data/prepare.h"

using namespace ortrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto list = data::parse_prepare(text);
    const std::string printed = data::print_prepare(list);
    if (data::print_prepare(data::parse_prepare(printed)) != printed) std::abort();
  } catch (const Error&) {
  }
  cli::Config config;
  try {
    config.read_toml(text, "fuzz", "/folder");
  } catch (const Error&) {
    return 0;
  }
  const std::string printed = config.print_portable();
  cli::Config again;
  again.read_toml(printed, "printed", "/folder");  // an Error here is a finding
  if (again.print_portable() != printed) std::abort();
  try {
    data::parse_prepare(config.text("prepare"));
  } catch (const Error&) {
  }
  return 0;
}
