// Cells of tables as numbers: what counts as missing, and features that are filled in and scaled by what is trained on.
//
// Thread rule: pure functions.
#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <vector>

namespace ropewalk::mlrunner {

// Without spaces and tabs around it.
std::string_view Trimmed(std::string_view text);
// Empty, NA, N/A, NaN, null and ?.
bool IsMissing(std::string_view text);

// Whether all of `text` is a number of that type; a plus may come before it.
template <class T>
bool ParseWhole(std::string_view text, T* value) {
  if (text.starts_with("+-")) return false;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [behind, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && behind == text.data() + text.size() && !text.empty();
}

// Each of `width` columns of `features` (rows, width): NaN becomes the mean of the rows `training`, and with `scale` all are moved and
// divided to mean 0 and deviation 1 of these. A column that says nothing becomes zeros.
void FillAndScale(std::vector<float>* features, std::int64_t width, const std::vector<std::int64_t>& training, bool scale);

}  // namespace ropewalk::mlrunner
