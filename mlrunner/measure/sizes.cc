#include "mlrunner/measure/sizes.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/escape.h"
#include "job/options.h"
#include "mlrunner/measure/job.h"

namespace ropewalk::measure {
namespace {

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Status Bad(const std::string& part, const std::string& why) {
  return Status(Code::kInvalid, "BENCH21", "--sizes: \"" + EscapeForLog(part, 100) + "\" is no size and no range of sizes", why,
                "--sizes 4K,1M for some, --sizes 1K:64M for a range in which each is twice the one before, 1K:64M:4 for four times");
}

Result<std::int64_t> ParseSize(const std::string& part, const std::string& text) {
  const std::optional<std::uint64_t> bytes = job::ParseBytes(text);
  if (!bytes) return Bad(part, "a size is a number of bytes, with K, M or G behind it for powers of 1024");
  if (*bytes < 1 || *bytes > static_cast<std::uint64_t>(kBytesMax))
    return Bad(part, fmt::format("sizes lie between 1 byte and {}G", kBytesMax >> 30));
  return static_cast<std::int64_t>(*bytes);
}

}  // namespace

Result<std::vector<std::int64_t>> ParseSizes(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const std::string& part : Split(text, ',')) {
    const std::vector<std::string> ends = Split(part, ':');
    ASSIGN_OR_RETURN(const std::int64_t low, ParseSize(part, ends[0]));
    std::int64_t high = low, factor = 2;
    if (ends.size() > 3) return Bad(part, "a range has a first size, a last one and a factor");
    if (ends.size() > 1) {
      ASSIGN_OR_RETURN(high, ParseSize(part, ends[1]));
      if (high < low) return Bad(part, "its last size is smaller than its first one");
    }
    if (ends.size() > 2) {
      const char* end = ends[2].data() + ends[2].size();
      const auto parsed = std::from_chars(ends[2].data(), end, factor);
      if (parsed.ec != std::errc() || parsed.ptr != end || factor < 2 || factor > kBytesMax)
        return Bad(part, "its factor is no whole number from 2 on");
    }
    for (std::int64_t size = low; size <= high; size *= factor) {
      if (sizes.size() == kSizesMax) return Bad(part, fmt::format("with it there are more than {} sizes", kSizesMax));
      sizes.push_back(size);
      if (size > high / factor) break;
    }
  }
  return sizes;
}

}  // namespace ropewalk::measure
