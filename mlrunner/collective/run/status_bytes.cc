#include "mlrunner/collective/run/status_bytes.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/escape.h"

namespace ropewalk::collective {
namespace {

constexpr std::size_t kTextBytesMax = 1 << 10;

}  // namespace

void Write(const Status& status, ByteWriter* writer) {
  writer->Fixed(static_cast<std::uint8_t>(status.code()));
  for (const std::string* text : {&status.tag(), &status.what(), &status.why(), &status.fix()})
    writer->Sized(std::string_view(*text).substr(0, kTextBytesMax));
}

std::optional<Status> ReadStatus(ByteReader* reader) {
  const auto code = reader->Fixed<std::uint8_t>();
  std::string texts[4];
  for (std::string& text : texts) text = EscapeForLog(reader->Sized(), kTextBytesMax);
  if (!reader->ok() || code == 0 || code > static_cast<std::uint8_t>(Code::kInternal)) return std::nullopt;
  return Status(Code{code}, texts[0], texts[1], texts[2], texts[3]);
}

}  // namespace ropewalk::collective
