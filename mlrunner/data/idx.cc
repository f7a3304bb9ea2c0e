#include "mlrunner/data/idx.h"

#include <fmt/format.h>

#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::size_t kBytesMax = std::size_t{4} << 30;

Status Bad(const std::string& path, const std::string& why) {
  return Status(Code::kUserError, "DATA01", storage::QuotedPath(path) + " is no IDX file of bytes", why, "fetch the file again");
}

// Big-endian.
std::uint32_t Word(const std::string& bytes, std::size_t at) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) word = word << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return word;
}

}  // namespace

Result<IdxBytes> ReadIdx(const std::string& path) {
  ASSIGN_OR_RETURN(std::string bytes, storage::ReadWhole(path, kBytesMax));
  if (bytes.size() < 4) return Bad(path, fmt::format("it has {} bytes, and the first 4 say what it is", bytes.size()));
  std::uint32_t magic = Word(bytes, 0);
  std::size_t rank = magic & 0xff;
  if (magic >> 8 != 0x000008 || rank < 1 || rank > 4)
    return Bad(path, fmt::format("it begins with {:08x}, and 0000080N with N from 1 to 4 is expected", magic));
  const std::size_t head = 4 + 4 * rank;
  if (bytes.size() < head) return Bad(path, fmt::format("it has {} bytes, and {} dimensions need {}", bytes.size(), rank, head));
  IdxBytes idx;
  std::size_t expected = 1;
  for (std::size_t d = 0; d < rank; ++d) {
    idx.dims.push_back(Word(bytes, 4 + 4 * d));
    expected *= static_cast<std::size_t>(idx.dims.back());
    if (expected > kBytesMax) return Bad(path, "its dimensions stand for more bytes than a data set may have");
  }
  if (bytes.size() - head != expected)
    return Bad(path, fmt::format("its dimensions ({}) stand for {} bytes, and {} follow", fmt::join(idx.dims, ", "), expected,
                                 bytes.size() - head));
  bytes.erase(0, head);
  idx.bytes = std::move(bytes);
  return idx;
}

}  // namespace ropewalk::mlrunner
