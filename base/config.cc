#include "base/config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/escape.h"
#include "base/nearest.h"

namespace ropewalk {
namespace {

bool ParseNumber(std::string_view text, std::uint64_t* number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseSwitch(std::string_view text, std::uint64_t* number) {
  *number = text == "true" || text == "on" || text == "yes" || text == "1";
  return *number != 0 || text == "false" || text == "off" || text == "no" || text == "0";
}

bool ParseDecimal(std::string_view text, double* number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*number);
}

// "512, 512" or "[512, 512]"; blanks around numbers are nothing, an empty text is no numbers.
bool ParseNumbers(std::string_view text, std::vector<std::int64_t>* numbers) {
  numbers->clear();
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  auto trim = [](std::string_view part) {
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    return part;
  };
  if (trim(text).empty()) return true;
  for (;;) {
    std::size_t comma = text.find(',');
    std::uint64_t number;
    if (!ParseNumber(trim(text.substr(0, comma)), &number) || number > std::numeric_limits<std::int64_t>::max()) return false;
    numbers->push_back(static_cast<std::int64_t>(number));
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

// Whether the text is a value of the type; number types also give the number.
bool Parse(ConfigType type, std::string_view text, std::uint64_t* number) {
  switch (type) {
    case ConfigType::kText:
      return text.find('\0') == std::string_view::npos;
    case ConfigType::kNumber:
      return ParseNumber(text, number);
    case ConfigType::kBytes:
      return ParseByteCount(text, number);
    case ConfigType::kSwitch:
      return ParseSwitch(text, number);
    case ConfigType::kDecimal: {
      double decimal;
      return ParseDecimal(text, &decimal);
    }
    case ConfigType::kNumbers: {
      std::vector<std::int64_t> numbers;
      return ParseNumbers(text, &numbers);
    }
  }
  return false;
}

const char* Accepts(ConfigType type) {
  switch (type) {
    case ConfigType::kText:
      return "a text";
    case ConfigType::kNumber:
      return "a whole number, 0 or more";
    case ConfigType::kBytes:
      return "a number of bytes like 512M or 2G";
    case ConfigType::kSwitch:
      return "true or false";
    case ConfigType::kDecimal:
      return "a number like 0.05 or 1e-3";
    case ConfigType::kNumbers:
      return "whole numbers like [512, 512]";
  }
  return "";
}

std::string Shown(const std::string& text) { return "\"" + EscapeForLog(text, 200) + "\""; }

}  // namespace

bool ParseByteCount(std::string_view text, std::uint64_t* bytes) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *bytes);
  if (error != std::errc()) return false;
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.empty() || unit == "B") return true;
  std::size_t power = std::string_view("KMGT").find(unit[0]);
  unit.remove_prefix(1);
  if (power == std::string_view::npos || !(unit.empty() || unit == "B" || unit == "iB")) return false;
  unsigned shift = 10 * (static_cast<unsigned>(power) + 1);
  if (*bytes > (~std::uint64_t{0} >> shift)) return false;
  *bytes <<= shift;
  return true;
}

Config::Config(std::vector<ConfigKey> keys, std::string how_to_list) : how_to_list_(std::move(how_to_list)) {
  for (ConfigKey& key : keys) {
    index_[key.name] = values_.size();
    Value value;
    value.key = std::move(key);
    value.TakeDefault();
    values_.push_back(std::move(value));
  }
}

void Config::Value::TakeDefault() {
  layer = ConfigLayer::kDefault;
  text = key.fallback;
  origin = "default";
  if (!Parse(key.type, text, &number)) std::abort();  // a default that its own type refuses is our bug
}

Status Config::Set(ConfigLayer layer, const ConfigEntry& entry) {
  auto found = index_.find(entry.name);
  if (found == index_.end()) {
    std::vector<std::string> names;
    std::string section = entry.name.substr(0, entry.name.find('.')), accepted;
    for (const Value& value : values_) {
      names.push_back(value.key.name);
      if (value.key.name.starts_with(section + ".")) accepted += (accepted.empty() ? "" : ", ") + value.key.name.substr(section.size() + 1);
    }
    std::string near = NearestName(entry.name, names);
    return Status(Code::kInvalid, "SPEC01", entry.origin + ": unknown key " + Shown(entry.name),
                  accepted.empty() ? "there is no such section" : "[" + section + "] accepts " + accepted,
                  near.empty() ? how_to_list_ : "did you mean \"" + near + "\"?");
  }
  Value& value = values_[found->second];
  std::uint64_t number = 0;
  if ((entry.is_list && value.key.type != ConfigType::kNumbers) || !Parse(value.key.type, entry.value, &number)) {
    return Status(Code::kInvalid, "SPEC02", entry.origin + ": " + Shown(entry.value) + " is no value for " + entry.name,
                  std::string("it takes ") + Accepts(value.key.type), "mend the value");
  }
  if (layer < value.layer) return {};
  value.layer = layer;
  value.text = entry.value;
  value.number = number;
  value.origin = entry.origin;
  return {};
}

Status Config::SetFromEnvironment(std::span<const std::string> environment) {
  constexpr std::string_view kPrefix = "ROPEWALK_";
  for (const std::string& variable : environment) {
    std::size_t equals = variable.find('=');
    if (equals == std::string::npos || !variable.starts_with(kPrefix)) continue;
    std::string name = variable.substr(kPrefix.size(), equals - kPrefix.size());
    std::size_t border = name.find("__");
    if (border == std::string::npos || border == 0) continue;
    name.replace(border, 2, ".");
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    RETURN_IF_ERROR(Set(ConfigLayer::kEnvironment, {name, variable.substr(equals + 1), "environment " + variable.substr(0, equals)}));
  }
  return {};
}

const Config::Value& Config::Find(std::string_view name) const {
  auto found = index_.find(name);
  if (found == index_.end()) std::abort();
  return values_[found->second];
}

const std::string& Config::Text(std::string_view name) const { return Find(name).text; }
std::uint64_t Config::Number(std::string_view name) const { return Find(name).number; }
bool Config::Switch(std::string_view name) const { return Find(name).number != 0; }
double Config::Decimal(std::string_view name) const {
  double number = 0;
  if (!ParseDecimal(Find(name).text, &number)) std::abort();
  return number;
}
std::vector<std::int64_t> Config::Numbers(std::string_view name) const {
  std::vector<std::int64_t> numbers;
  if (!ParseNumbers(Find(name).text, &numbers)) std::abort();
  return numbers;
}
const std::string& Config::Origin(std::string_view name) const { return Find(name).origin; }
ConfigLayer Config::Layer(std::string_view name) const { return Find(name).layer; }
bool Config::IsSet(std::string_view name) const { return Layer(name) != ConfigLayer::kDefault; }
void Config::Unset(std::string_view name) {
  auto found = index_.find(name);
  if (found == index_.end()) std::abort();
  values_[found->second].TakeDefault();
}

std::vector<ConfigEntry> Config::Show() const {
  std::vector<ConfigEntry> entries;
  for (const Value& value : values_) entries.push_back({value.key.name, value.text, value.origin});
  return entries;
}

}  // namespace ropewalk
