#include "mlrunner/train/spec_members.h"

#include <cstdint>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "base/config.h"

namespace ropewalk::mlrunner {
namespace {

template <class Spec, class Visit>
  requires std::is_same_v<std::remove_const_t<Spec>, ModelSpec>
void ForEachMember(Spec& spec, const Visit& visit) {
  visit("hidden", spec.hidden);
  visit("layers", spec.layers);
  visit("width", spec.width);
  visit("heads", spec.heads);
  visit("length", spec.length);
  visit("tied", spec.tied);
}
template <class Spec, class Visit>
  requires std::is_same_v<std::remove_const_t<Spec>, DataSpec>
void ForEachMember(Spec& spec, const Visit& visit) {
  visit("held_out", spec.held_out);
}

template <class T>
std::string TextOf(const T& value) {
  return fmt::format("{}", value);
}
std::string TextOf(const std::vector<std::int64_t>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

// By what reads job files, so that both mean the same.
template <class T>
void Take(const std::string& text, T* value) {
  using enum ConfigType;
  constexpr bool is_list = std::is_same_v<T, std::vector<std::int64_t>>;
  constexpr ConfigType type = is_list ? kNumbers : std::is_same_v<T, bool> ? kSwitch : std::is_floating_point_v<T> ? kDecimal : kNumber;
  const Config config({{"member", type, text, ""}});
  if constexpr (is_list) {
    *value = config.Numbers("member");
  } else if constexpr (std::is_same_v<T, bool>) {
    *value = config.Switch("member");
  } else if constexpr (std::is_floating_point_v<T>) {
    *value = config.Decimal("member");
  } else {
    *value = static_cast<T>(config.Number("member"));
  }
}

template <class Spec>
std::map<std::string, std::string> Texts(const Spec& spec) {
  std::map<std::string, std::string> texts;
  ForEachMember(spec, [&](const char* name, const auto& value) { texts[name] = TextOf(value); });
  return texts;
}

template <class Spec>
void SetAll(std::map<std::string, std::string> texts, Spec* spec) {
  ForEachMember(*spec, [&](const char* name, auto& value) {
    if (const auto found = texts.find(name); found != texts.end()) {
      Take(found->second, &value);
      texts.erase(found);
    }
  });
  for (const auto& [name, text] : texts) spec->more[name] = text;
}

}  // namespace

std::map<std::string, std::string> TextsOf(const ModelSpec& spec) { return Texts(spec); }
std::map<std::string, std::string> TextsOf(const DataSpec& spec) { return Texts(spec); }
void SetTexts(const std::map<std::string, std::string>& texts, ModelSpec* spec) { SetAll(texts, spec); }
void SetTexts(const std::map<std::string, std::string>& texts, DataSpec* spec) { SetAll(texts, spec); }

}  // namespace ropewalk::mlrunner
