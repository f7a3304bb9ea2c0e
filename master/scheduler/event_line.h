// One line of a job's event log, as JSON: a tiny writer, so that the core needs no JSON library.
//
// Thread rule: values.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace ropewalk::scheduler {

class EventLine {
 public:
  EventLine(std::string_view event, std::int64_t at_ms) : kind_(event) {
    text_ = "{";
    Str("event", event).Num("t_ms", at_ms);
  }
  EventLine& Str(std::string_view key, std::string_view value) {
    Key(key);
    Quote(value);
    return *this;
  }
  template <std::integral T>
  EventLine& Num(std::string_view key, T value) {
    Key(key);
    char buffer[24];
    auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
    text_.append(buffer, end);
    return *this;
  }
  EventLine& Flag(std::string_view key, bool value) {
    Key(key);
    text_ += value ? "true" : "false";
    return *this;
  }
  // Hashes do not fit into the numbers of most JSON readers.
  EventLine& Hex(std::string_view key, std::uint64_t value) {
    Key(key);
    char buffer[17];
    auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value, 16);
    Quote({buffer, static_cast<std::size_t>(end - buffer)});
    return *this;
  }
  const std::string& kind() const { return kind_; }
  std::string Finish() const { return text_ + "}"; }

 private:
  void Key(std::string_view key) {
    if (text_.size() > 1) text_ += ',';
    Quote(key);
    text_ += ':';
  }
  void Quote(std::string_view s) {
    static constexpr char kHex[] = "0123456789abcdef";
    text_ += '"';
    for (char c : s) {
      auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20 || byte >= 0x7f) {
        // Messages of users are any bytes. One escape for each byte keeps the line valid JSON and loses nothing.
        text_ += "\\u00";
        text_ += kHex[byte >> 4];
        text_ += kHex[byte & 15];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }
  std::string kind_;
  std::string text_;
};

}  // namespace ropewalk::scheduler
