#include "storage/toml_file.h"

#define TOML_EXCEPTIONS 0
// The parser asserts on some malformed headers ("[[["), which it goes on to refuse with line and column.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "storage/file_system.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kFileBytesMax = 1 << 20;

std::string Place(const std::string& path, const toml::source_region& source) {
  return path + ":" + std::to_string(source.begin.line) + ":" + std::to_string(source.begin.column);
}

// As few digits as tell it from every other number.
std::string Shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// "512, 512"
bool Numbers(const toml::array* array, std::string* text) {
  if (array == nullptr) return false;
  for (const toml::node& node : *array) {
    auto number = node.value_exact<std::int64_t>();
    if (!number) return false;
    *text += (text->empty() ? "" : ", ") + std::to_string(*number);
  }
  return true;
}

struct Walker {
  const std::string& path;
  std::vector<std::pair<toml::source_position, ConfigEntry>> entries;

  Status Walk(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      std::string name = prefix + std::string(key.str());
      std::string place = Place(path, key.source());
      if (const toml::table* inner = node.as_table(); inner != nullptr) {
        RETURN_IF_ERROR(Walk(*inner, name + "."));
      } else if (auto text = node.value_exact<std::string>()) {
        Add(key, name, *text, place);
      } else if (auto number = node.value_exact<std::int64_t>()) {
        Add(key, name, std::to_string(*number), place);
      } else if (auto on = node.value_exact<bool>()) {
        Add(key, name, *on ? "true" : "false", place);
      } else if (auto decimal = node.value_exact<double>()) {
        Add(key, name, Shortest(*decimal), place);
      } else if (std::string numbers; Numbers(node.as_array(), &numbers)) {
        Add(key, name, numbers, place, true);
      } else {
        return Status(Code::kInvalid, "SPEC03",
                      place + ": the value of \"" + name + "\" is no text, number, true/false or list of whole numbers",
                      "no key takes a value of another kind", "mend the value");
      }
    }
    return {};
  }
  void Add(const toml::key& key, const std::string& name, const std::string& value, const std::string& place, bool is_list = false) {
    entries.emplace_back(key.source().begin, ConfigEntry{name, value, place, is_list});
  }
};

}  // namespace

Result<std::vector<ConfigEntry>> ReadTomlFile(const std::string& path) {
  std::string text;
  if (int error = LocalFileSystem().ReadSmall(path, kFileBytesMax, &text); error != 0)
    return IoError(error, error == ENOENT ? "IO01" : "IO02", "cannot read the configuration " + QuotedPath(path));
  toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    return Status(Code::kInvalid, "SPEC03", Place(path, parsed.error().source()) + ": this is no TOML",
                  std::string(parsed.error().description()), "mend the line");
  }
  Walker walker{path, {}};
  RETURN_IF_ERROR(walker.Walk(parsed.table(), ""));
  // In the order of the file, so that the first mistake is reported first.
  std::stable_sort(walker.entries.begin(), walker.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.line, a.first.column) < std::pair(b.first.line, b.first.column);
  });
  std::vector<ConfigEntry> entries;
  for (auto& [position, entry] : walker.entries) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace ropewalk::storage
