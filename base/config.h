// Configuration whose every value knows where it came from. Precedence: flag > environment (ROPEWALK_SECTION__KEY) > file > default; an
// unknown key is refused with its place and the nearest name, since a misspelt one would otherwise silently mean the default.
//
// This part knows neither command lines nor TOML: callers feed it entries (cli/ has the readers).
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk {

enum class ConfigType : std::uint8_t {
  kText,
  kNumber,   // a whole number, not negative
  kBytes,    // 512M
  kSwitch,   // true, false
  kDecimal,  // .05, 1e-3
  kNumbers,  // 512, 512: whole numbers, any number of them
};

struct ConfigKey {
  std::string name;  // "master.listen"
  ConfigType type = ConfigType::kText;
  std::string fallback;  // as it would be written
  std::string help;      // one line
};

// Larger ones win.
enum class ConfigLayer : std::uint8_t { kDefault = 0, kFile = 1, kEnvironment = 2, kFlag = 3 };

struct ConfigEntry {
  std::string name;
  std::string value;
  std::string origin;    // "master.toml:3:1", "environment ROPEWALK_MASTER__LISTEN", "flag --listen", "default"
  bool is_list = false;  // it was written as one: no value for a key that takes one thing
};

class Config {
 public:
  // `how_to_list` is the advice for a key that resembles none.
  explicit Config(std::vector<ConfigKey> keys, std::string how_to_list = "`ropewalk config show` lists all keys");

  // SPEC01: unknown key. SPEC02: a value that its type refuses. Both name the origin. An entry of a lower layer than the one that stands is
  // checked and then ignored; within a layer the last one wins.
  Status Set(ConfigLayer layer, const ConfigEntry& entry);

  // All NAME=value with a name ROPEWALK_SECTION__KEY; variables without the double underscore belong to others.
  Status SetFromEnvironment(std::span<const std::string> environment);

  // CHECKed by an abort: a name or type that was not declared is our bug.
  const std::string& Text(std::string_view name) const;
  std::uint64_t Number(std::string_view name) const;  // kNumber and kBytes
  bool Switch(std::string_view name) const;
  double Decimal(std::string_view name) const;
  std::vector<std::int64_t> Numbers(std::string_view name) const;
  // False where only the default stands.
  bool IsSet(std::string_view name) const;
  // Where its value comes from.
  const std::string& Origin(std::string_view name) const;
  ConfigLayer Layer(std::string_view name) const;
  // Back to its default: what was set means nothing beside a value of a higher layer.
  void Unset(std::string_view name);

  std::vector<ConfigEntry> Show() const;  // in the order of declaration

 private:
  struct Value {
    ConfigKey key;
    ConfigLayer layer = ConfigLayer::kDefault;
    std::string text, origin;
    std::uint64_t number = 0;
    void TakeDefault();
  };
  const Value& Find(std::string_view name) const;
  std::string how_to_list_;
  std::vector<Value> values_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// "512", "64K", "4MiB", "2G": bytes; K, M, G and T count in 1024s. False: no such number, or above 2^64.
bool ParseByteCount(std::string_view text, std::uint64_t* bytes);

}  // namespace ropewalk
