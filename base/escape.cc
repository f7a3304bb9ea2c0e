#include "base/escape.h"

namespace ropewalk {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

void AppendHexByte(std::string* out, unsigned char byte) {
  *out += "\\x";
  *out += kDigits[byte >> 4];
  *out += kDigits[byte & 15];
}

}  // namespace

std::size_t Utf8Length(std::string_view bytes) {
  auto at = [&](std::size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u; };
  auto tail = [&](std::size_t i) { return (at(i) & 0xc0) == 0x80; };
  unsigned first = at(0);
  if (first < 0x80) return bytes.empty() ? 0 : 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if (!tail(1) || !tail(2)) return 0;
    if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) > 0x9f)) return 0;
    return 3;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if ((first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) > 0x8f)) return 0;
    return 4;
  }
  return 0;
}

std::string EscapeForLog(std::string_view bytes, std::size_t bytes_max) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    if (out.size() >= bytes_max) return out + "...";
    auto byte = static_cast<unsigned char>(bytes[i]);
    std::size_t length = Utf8Length(bytes.substr(i));
    bool c1_control = length == 2 && byte == 0xc2 && static_cast<unsigned char>(bytes[i + 1]) < 0xa0;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\\') {
      out += "\\\\";
    } else if (byte < 0x20 || byte == 0x7f || length == 0 || c1_control) {
      AppendHexByte(&out, byte);
      if (c1_control) AppendHexByte(&out, static_cast<unsigned char>(bytes[i + 1]));
    } else {
      out.append(bytes.substr(i, length));
    }
    i += length == 0 ? 1 : length;
  }
  return out;
}

std::string JsonString(std::string_view bytes) {
  std::string out = "\"";
  for (std::size_t i = 0; i < bytes.size();) {
    auto byte = static_cast<unsigned char>(bytes[i]);
    std::size_t length = Utf8Length(bytes.substr(i));
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (byte == '"' || byte == '\\') {
      out += '\\';
      out += bytes[i];
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out.append(bytes.substr(i, length));
    }
    i += length == 0 ? 1 : length;
  }
  return out + '"';
}

std::string HexString(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

bool ParseHex(std::string_view hex, std::string* bytes) {
  auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  bytes->clear();
  if (hex.size() % 2 != 0) return false;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    int high = digit(hex[i]), low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return false;
    *bytes += static_cast<char>(high * 16 + low);
  }
  return true;
}

}  // namespace ropewalk
