// Copies of float tensors that do not lie aligned in a model file.
//
// A file's bytes are mapped at addresses that the file decides, so a float tensor at an odd place
// must be copied before anything may read it as floats. Once training has its own weights, these
// copies are a second set of them: release() gives their memory back, restore() fetches the
// contents from the file again. In between nobody may read them; a reader would crash, not get
// wrong numbers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "importers/files.h"

namespace ortrain {

class Copies {
 public:
  Copies() = default;
  Copies(Copies&&) = delete;
  ~Copies();
  // A copy of `bytes`, which lie in `file`, aligned to a page. The pages read of the file are
  // dropped. `file` must stay where it is.
  const std::byte* add(std::span<const std::byte> bytes, const MappedFile& file);
  void release();
  void restore();

 private:
  struct Copy {
    std::byte* data;
    std::span<const std::byte> from;
    const MappedFile* file;
  };
  static void fill(const Copy& c);
  std::vector<Copy> copies_;
  bool released_ = false;
};

}  // namespace ortrain
