// Little-endian byte writing and bounds-checked reading. The reader never throws and never reads past its end: after the first short
// read `ok()` is false and every further read gives zeros or empty views, so a decoder checks once, at its end.
//
// Thread rule: values.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace ropewalk {

static_assert(std::endian::native == std::endian::little, "stored and sent integers are little-endian copies");

inline std::span<const std::byte> AsBytes(std::string_view s) { return std::as_bytes(std::span(s.data(), s.size())); }
inline std::string_view AsView(std::span<const std::byte> b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(out) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void Fixed(const T& value) {
    out_->append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Varint(std::uint64_t value) {
    char buffer[10];
    int n = 0;
    for (; value >= 0x80; value >>= 7) buffer[n++] = static_cast<char>(value | 0x80);
    buffer[n++] = static_cast<char>(value);
    out_->append(buffer, n);
  }
  void Raw(std::string_view bytes) { out_->append(bytes); }
  void Sized(std::string_view bytes) {  // length, then the bytes
    Varint(bytes.size());
    out_->append(bytes);
  }

 private:
  std::string* out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  bool ok() const { return ok_; }
  bool empty() const { return at_ == end_; }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - at_); }
  const char* position() const { return at_; }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  T Fixed() {
    T value{};
    if (remaining() < sizeof(T)) return Fail(), value;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ != end_; shift += 7) {
      auto byte = static_cast<unsigned char>(*at_++);
      value |= std::uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return Fail(), 0;
  }
  std::string_view Raw(std::size_t n) {
    if (remaining() < n) return Fail(), std::string_view();
    std::string_view view(at_, n);
    at_ += n;
    return view;
  }
  std::string_view Sized() {
    std::uint64_t n = Varint();
    if (n > remaining()) return Fail(), std::string_view();
    return Raw(static_cast<std::size_t>(n));
  }

 private:
  void Fail() {
    ok_ = false;
    at_ = end_;
  }
  const char* at_;
  const char* end_;
  bool ok_ = true;
};

}  // namespace ropewalk
