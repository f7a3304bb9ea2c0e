// Bounds-checked reading of an ELF file at any offset: it may be cut or forged.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::job {

class ElfImage {
 public:
  explicit ElfImage(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  std::optional<T> At(std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  std::string_view TextAt(std::uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    std::string_view rest = bytes_.substr(offset);
    return rest.substr(0, rest.find('\0'));
  }

 private:
  std::string_view bytes_;
};

// Maps the file for the time of `read`. kInvalid ELF01 when it cannot be read; an empty file is an empty image.
Status WithImageOf(const std::string& path, const std::function<void(std::string_view)>& read);

}  // namespace ropewalk::job
