#include "storage/metric_file.h"

#include <cerrno>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::string_view kMagic = "ropewalk-metrics-1\n";
constexpr std::size_t kFileBytesMax = 256u << 20;
// Written anew when it is so many times as long as it was then, and longer than this by more than that.
constexpr std::uint64_t kGrowth = 4, kGrowthBytes = 1u << 20;

std::string Record(const Metrics& metrics) {
  const std::string bytes = Encode(metrics);
  std::string record;
  ByteWriter writer(&record);
  writer.Fixed(static_cast<std::uint32_t>(bytes.size()));
  writer.Fixed(Checksum64(bytes));
  writer.Raw(bytes);
  return record;
}

Status Met(int error, const std::string& verb, const std::string& path) {
  return IoError(error, "METRIC02", "cannot " + verb + " the metrics " + QuotedPath(path));
}

}  // namespace

Result<MetricHistory> ReadMetricFile(FileSystem& files, const std::string& path, MetricHistory::Limits limits) {
  std::string bytes;
  if (const int error = files.ReadSmall(path, kFileBytesMax, &bytes); error != 0) return Met(error, "read", path);
  if (!bytes.starts_with(kMagic))
    return Status(Code::kInvalid, "METRIC03", QuotedPath(path) + " holds no metrics", "it does not begin as such a file does",
                  "name the file that ROPEWALK_METRICS named");
  MetricHistory history(limits);
  ByteReader reader(std::string_view(bytes).substr(kMagic.size()));
  while (!reader.empty()) {
    const auto length = reader.Fixed<std::uint32_t>();
    const auto checksum = reader.Fixed<std::uint64_t>();
    const std::string_view record = reader.Raw(length);
    if (!reader.ok() || Checksum64(record) != checksum) break;
    const Result<Metrics> metrics = DecodeMetrics(record);
    if (!metrics.ok()) break;
    history.Add(*metrics);
  }
  return history;
}

MetricFile::MetricFile(FileSystem& files, std::string path, MetricHistory history)
    : files_(files), path_(std::move(path)), history_(std::move(history)) {}

Result<std::unique_ptr<MetricFile>> MetricFile::Open(FileSystem& files, std::string path, MetricHistory::Limits limits) {
  Result<MetricHistory> history = ReadMetricFile(files, path, limits);
  if (!history.ok() && history.status().code() != Code::kNotFound) return history.status();
  std::unique_ptr<MetricFile> file(new MetricFile(files, std::move(path), history.ok() ? *std::move(history) : MetricHistory(limits)));
  RETURN_IF_ERROR(file->WriteAnew());
  return file;
}

Status MetricFile::WriteAnew() {
  const std::string fresh = path_ + ".new";
  file_ = nullptr;
  std::unique_ptr<WritableFile> file;
  if (const int error = files_.Create(fresh, &file); error != 0) return Met(error, "write", fresh);
  std::string bytes(kMagic);
  if (!history_.empty()) bytes += Record(history_.All());
  if (const int error = file->Append(AsBytes(bytes)); error != 0) return Met(error, "write", fresh);
  if (const int error = files_.Rename(fresh, path_, RenameMode::kReplace); error != 0) return Met(error, "rename", fresh);
  file_ = std::move(file);
  bytes_ = bytes_when_new_ = bytes.size();
  return {};
}

Status MetricFile::Add(const Metrics& metrics) {
  history_.Add(metrics);
  if (file_ == nullptr || bytes_ > kGrowth * bytes_when_new_ + kGrowthBytes) return WriteAnew();
  const std::string record = Record(metrics);
  if (const int error = file_->Append(AsBytes(record)); error != 0) {
    file_ = nullptr;  // half a record may stand there: what came behind it would not be read
    return Met(error, "write", path_);
  }
  bytes_ += record.size();
  return {};
}

}  // namespace ropewalk::storage
