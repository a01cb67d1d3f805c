// Pictures as PNG, and bytes as base64: for event files and reports.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ortrain::cli {

// 8-bit grey (1 channel) or RGB (3), rows from the top; pixels.size() is width * height * channels.
std::string encode_png(int width, int height, int channels, std::span<const uint8_t> pixels);
std::string base64(const std::string& bytes);

}  // namespace ortrain::cli
