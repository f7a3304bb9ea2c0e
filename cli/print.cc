#include "cli/print.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/escape.h"

namespace ropewalk::cli {
namespace {

std::size_t Characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

JsonObject& JsonObject::Raw(const std::string& name, const std::string& json) {
  members_ += std::string(members_.empty() ? "" : ",") + JsonString(name) + ":" + json;
  return *this;
}
JsonObject& JsonObject::Text(const std::string& name, std::string_view value) { return Raw(name, JsonString(value)); }
JsonObject& JsonObject::Number(const std::string& name, std::int64_t value) { return Raw(name, std::to_string(value)); }

std::string JsonArray(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out += (out.size() == 1 ? "" : ",") + item;
  return out + "]";
}

std::string Table(const std::vector<std::string>& heading, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::string& cell : heading) widths.push_back(Characters(cell));
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Characters(row[i]));
  auto line = [&](const std::vector<std::string>& row) {
    std::string out;
    for (std::size_t i = 0; i < row.size(); ++i)
      out += row[i] + (i + 1 == row.size() ? "\n" : std::string(widths[i] - Characters(row[i]) + 2, ' '));
    return out;
  };
  std::string out = line(heading);
  for (const auto& row : rows) out += line(row);
  return out;
}

std::string Listing(job::OutputForm form, const std::string& name, const std::vector<std::string>& heading,
                    const std::vector<std::vector<std::string>>& rows, const std::vector<std::string>& objects) {
  if (form == job::OutputForm::kTable) return Table(heading, rows);
  if (form == job::OutputForm::kJson) return JsonObject().Raw(name, JsonArray(objects)).str() + "\n";
  std::string out;
  for (const std::string& object : objects) out += object + "\n";
  return out;
}

std::string HumanDuration(std::int64_t ms) {
  ms = std::max<std::int64_t>(ms, 0);
  char text[64];
  std::int64_t s = ms / 1000;
  if (s < 60) {
    std::snprintf(text, sizeof text, "%.2f s", static_cast<double>(ms) / 1000);
  } else if (s < 3600) {
    std::snprintf(text, sizeof text, "%lld min %lld s", static_cast<long long>(s / 60), static_cast<long long>(s % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld h %lld min", static_cast<long long>(s / 3600), static_cast<long long>(s / 60 % 60));
  }
  return text;
}

std::string HumanTime(std::int64_t unix_us) {
  if (unix_us == 0) return "-";
  std::time_t seconds = unix_us / 1'000'000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%F %T %z", &local);
  return text;
}

}  // namespace ropewalk::cli
