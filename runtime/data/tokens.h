// Token streams (raw uint16 or uint32) and plain text as windows for next-token training.
//
// Sample i holds `window` tokens from position i * stride on; its labels are the tokens one
// further. Arrays: the model's integer input [N, window] (named "tokens" where no model is known)
// and "labels". Text becomes bytes, or characters (UTF-8) numbered by a vocabulary,
// vocabularies["text"]. Refuses (kData): too few tokens, sizes that are no multiple of a token,
// invalid UTF-8 and unknown characters with line and byte.
#pragma once

#include <string>

#include "runtime/data/dataset.h"

namespace ortrain::data {

Dataset open_tokens(const std::string& path, const OpenOptions& options);
Dataset open_text(const std::string& path, const OpenOptions& options);

// One character of UTF-8 at text[at]; moves `at` behind it. False where the bytes are none.
bool next_character(std::string_view text, size_t& at, uint32_t& code);

}  // namespace ortrain::data
