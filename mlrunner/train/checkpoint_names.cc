#include "mlrunner/train/checkpoint_names.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kHidden = ".step-", kPart = "part-", kAside = "aside-";
constexpr std::size_t kRunDigits = 16;

// The whole of `text` as a number.
template <class T>
bool Read(std::string_view text, int base, T* number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, base);
  return error == std::errc() && end == text.data() + text.size();
}

// What stands before the next dash, which is taken away with it.
std::string_view NextField(std::string_view* text) {
  const std::string_view field = text->substr(0, text->find('-'));
  text->remove_prefix(std::min(text->size(), field.size() + 1));
  return field;
}

}  // namespace

std::string CheckpointName(std::int64_t step) { return fmt::format("{}{:012}{}", kPrefix, step, kSuffix); }

std::int64_t StepIn(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return -1;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  std::int64_t step = -1;
  return Read(name, 10, &step) && name.size() >= 12 ? step : -1;
}

std::string AsideName(std::uint64_t run, std::string_view checkpoint_name) {
  return fmt::format("{}{:016x}-{}", kAside, run, checkpoint_name);
}

std::int64_t StepHereOrAside(std::string_view name) {
  if (name.starts_with(kAside)) name.remove_prefix(std::min(name.size(), kAside.size() + kRunDigits + 1));
  return StepIn(name);
}

bool MayBeRenamed(std::string_view name) {
  return name.ends_with(kSuffix) && !IsHidden(name) && StepHereOrAside(name) < 0 && !PartIn(name);
}

std::string HiddenName(std::string_view of, const CheckpointWriter& writer) {
  return fmt::format("{}{}-{:016x}-{}{}", kHidden, of, writer.run, writer.forming, kSuffix);
}

bool IsHidden(std::string_view name) { return name.starts_with(kHidden) && name.ends_with(kSuffix); }

bool IsOfAnEarlierSave(std::string_view name, const CheckpointWriter& writer) {
  name.remove_suffix(kSuffix.size());
  const std::size_t dash = name.rfind('-');
  std::uint32_t forming = 0;
  return Read(name.substr(dash + 1), 10, &forming) && forming <= writer.forming &&
         name.substr(0, dash).ends_with(fmt::format("-{:016x}", writer.run));
}

std::string ToString(const PartName& part) {
  return fmt::format("{}{:012}-{:016x}-{}-{}-{}{}", kPart, part.step, part.writer.run, part.writer.forming, part.writer.rank, part.tries,
                     kSuffix);
}

std::optional<PartName> PartIn(std::string_view name) {
  if (!name.starts_with(kPart) || !name.ends_with(kSuffix)) return {};
  name.remove_prefix(kPart.size());
  name.remove_suffix(kSuffix.size());
  PartName part;
  if (!Read(NextField(&name), 10, &part.step) || !Read(NextField(&name), 16, &part.writer.run) ||
      !Read(NextField(&name), 10, &part.writer.forming) || !Read(NextField(&name), 10, &part.writer.rank) ||
      !Read(NextField(&name), 10, &part.tries) || !name.empty())
    return {};
  return part;
}

}  // namespace ropewalk::mlrunner
