#include "mlrunner/train/event_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/bytes.h"
#include "proto/event_file.pb.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::array<std::uint32_t, 256> CrcTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}

double WallSeconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

Status NotWritten(const std::string& path, int error) {
  const Status io = storage::IoError(error, "TRAIN07", "");
  return Status(io.code(), "TRAIN07", "events for TensorBoard cannot be written to " + storage::QuotedPath(path), io.why(),
                "name a folder that can be written to, or leave train.tensorboard out");
}

}  // namespace

std::uint32_t Crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = CrcTable();
  std::uint32_t crc = ~0u;
  for (char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff];
  return ~crc;
}

std::uint32_t MaskedCrc32c(std::string_view bytes) {
  const std::uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

Result<std::unique_ptr<EventFile>> EventFile::Open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return NotWritten(folder, error.value());
  char host[HOST_NAME_MAX + 1] = "host";
  (void)gethostname(host, sizeof host - 1);
  const auto seconds = static_cast<std::int64_t>(WallSeconds());
  // A training that begins again within a second, in the same process, has another file.
  for (int again = 0;; ++again) {
    const std::string path =
        fmt::format("{}/events.out.tfevents.{:010}.{}.{}{}", folder, seconds, host, getpid(), again == 0 ? "" : fmt::format(".{}", again));
    std::FILE* file = std::fopen(path.c_str(), "wxe");
    if (file == nullptr && errno == EEXIST && again < 1000) continue;
    if (file == nullptr) return NotWritten(path, errno);
    std::unique_ptr<EventFile> events(new EventFile(path, file));
    event_file::Event first;
    first.set_wall_time(WallSeconds());
    first.set_file_version("brain.Event:2");
    RETURN_IF_ERROR(events->Record(first.SerializeAsString()));
    return events;
  }
}

EventFile::~EventFile() { (void)std::fclose(file_); }  // a failure was said by Flush

Status EventFile::Record(const std::string& event) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint64_t>(event.size()));
  writer.Fixed(MaskedCrc32c(bytes));
  bytes += event;
  writer.Fixed(MaskedCrc32c(event));
  return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size() ? Status() : NotWritten(path_, errno);
}

Status EventFile::Add(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& scalars) {
  event_file::Event event;
  event.set_wall_time(WallSeconds());
  event.set_step(step);
  for (const auto& [tag, number] : scalars) {
    event_file::Summary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(std::string(tag));
    value->set_simple_value(static_cast<float>(number));
  }
  return Record(event.SerializeAsString());
}

Status EventFile::Flush() { return std::fflush(file_) == 0 ? Status() : NotWritten(path_, errno); }

}  // namespace ropewalk::mlrunner
