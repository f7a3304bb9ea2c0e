#include "mlrunner/collective/run/link_costs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/escape.h"
#include "base/hash.h"
#include "base/home_folder.h"
#include "base/unique_fd.h"
#include "mlrunner/collective/calibrate.h"
#include "mlrunner/collective/run/measure_corrections.h"

namespace ropewalk::collective {
namespace {

// Of the fields of LinkModel and Corrections, too: with another one the file is another program's, and is not found.
constexpr std::string_view kForm = "ropewalk-links-2";
constexpr std::size_t kFileBytesMax = 1 << 20;

Status Unwritten(const std::string& path, const char* what) {
  return Status(Code::kUnavailable, "COLL34", "costs of messages are not kept: cannot " + std::string(what) + " " + EscapeForLog(path),
                std::strerror(errno), "name a folder that may be written to (costs_folder, $ROPEWALK_HOME)");
}

Status MakeFolders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (!folder.empty() && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Unwritten(folder, "make");
    if (slash == std::string::npos) return {};
  }
}

// Rank 0's `mine`, on all ranks.
Result<std::string> FromFirst(Communicator* ranks, std::string mine) {
  auto length = static_cast<std::int64_t>(mine.size());
  RETURN_IF_ERROR(ranks->Broadcast({.in = &length, .out = &length, .count = 1, .dtype = Dtype::kI64, .name = "costs"}));
  mine.resize(static_cast<std::size_t>(length));
  if (length > 0)
    RETURN_IF_ERROR(ranks->Broadcast({.in = mine.data(), .out = mine.data(), .count = length, .dtype = Dtype::kU8, .name = "costs"}));
  return mine;
}

}  // namespace

std::string Encode(const Costs& costs) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Sized(Encode(costs.model));
  writer.Sized(Encode(costs.corrections));
  writer.Fixed(costs.measured_at_s);
  return bytes;
}

Result<Costs> DecodeCosts(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::string_view model = reader.Sized(), corrections = reader.Sized();
  Costs costs{.measured_at_s = reader.Fixed<std::int64_t>()};
  if (!reader.ok() || !reader.empty())
    return Status(Code::kDataLoss, "COLL35", "the costs of messages cannot be read", "bytes are missing or too many", "measure them again");
  ASSIGN_OR_RETURN(costs.model, DecodeLinkModel(model));
  ASSIGN_OR_RETURN(costs.corrections, DecodeCorrections(corrections));
  return costs;
}

std::string CostsKey(bool shares_memory, const std::vector<std::string>& machines, const Nodes& nodes) {
  std::string key;
  ByteWriter writer(&key);
  writer.Sized(kForm);
  writer.Sized(shares_memory ? "shared" : "tcp");
  for (const std::string& machine : machines) writer.Sized(machine);
  for (std::int32_t node : nodes) writer.Fixed(node);
  return key;
}

std::string CostsFile(const std::string& folder, std::string_view key) {
  char name[32];
  std::snprintf(name, sizeof(name), "/links-%016llx", static_cast<unsigned long long>(Checksum64(key)));
  return folder + name;
}

Result<Costs> ReadCosts(const std::string& folder, std::string_view key) {
  const std::string path = CostsFile(folder, key);
  auto unread = [&](const std::string& why) {
    return Status(Code::kDataLoss, "COLL35", EscapeForLog(path) + " holds no costs of messages", why, "remove it; they are measured again");
  };
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno != ENOENT) return unread(std::strerror(errno));
    return Status(Code::kNotFound, "COLL34", "there are no costs of messages in " + EscapeForLog(path),
                  "nothing was measured for these ranks", "measure (ChooseBy)");
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return unread("it is no file");
  std::string bytes(kFileBytesMax + 1, '\0');
  std::size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t n = read(file.get(), bytes.data() + length, bytes.size() - length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unread(std::strerror(errno));
    if (n == 0) break;
    length += static_cast<std::size_t>(n);
  }
  if (length > kFileBytesMax) return unread("it is too long");
  bytes.resize(length);
  if (bytes.size() < sizeof(std::uint64_t)) return unread("it is too short");
  const std::string_view content = std::string_view(bytes).substr(0, bytes.size() - sizeof(std::uint64_t));
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + content.size(), sizeof(checksum));
  if (Checksum64(content) != checksum) return unread("it is damaged");
  ByteReader reader(content);
  if (reader.Sized() != key) return unread("it is of other ranks, or of another form");
  const std::string_view costs = reader.Sized();
  if (!reader.ok() || !reader.empty()) return unread("it is of another form");
  return DecodeCosts(costs);
}

Status WriteCosts(const std::string& folder, std::string_view key, const Costs& costs) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Sized(key);
  writer.Sized(Encode(costs));
  writer.Fixed(Checksum64(bytes));
  RETURN_IF_ERROR(MakeFolders(folder));
  // Of a name of its own: others may write theirs now.
  static std::atomic<std::uint64_t> writes{0};
  const std::string path = CostsFile(folder, key), beside = path + "." + std::to_string(getpid()) + "." + std::to_string(++writes);
  const UniqueFd file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Unwritten(beside, "make");
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = write(file.get(), bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      Status status = Unwritten(beside, "write");
      unlink(beside.c_str());
      return status;
    }
    at += static_cast<std::size_t>(n);
  }
  // Not synced: what a power cut spoils is found by the checksum, and measured again.
  if (rename(beside.c_str(), path.c_str()) == 0) return {};
  Status status = Unwritten(path, "rename to");
  unlink(beside.c_str());
  return status;
}

Result<Costs> CostsOf(Communicator* ranks, ChooseBy by, const Ground& ground, const std::vector<std::string>& machines,
                      const std::string& folder) {
  const std::string key = CostsKey(ranks->shares_memory(), machines, ranks->nodes()),
                    place = folder.empty() ? HomeFolder() + "/links" : folder;
  const bool is_first = ranks->rank() == 0;
  std::string said;
  if (is_first && by == ChooseBy::kKeptCosts)
    if (auto kept = ReadCosts(place, key); kept.ok()) said = Encode(*kept);
  ASSIGN_OR_RETURN(said, FromFirst(ranks, std::move(said)));
  const bool is_kept = !said.empty();
  if (!is_kept) {
    Costs mine{.measured_at_s = static_cast<std::int64_t>(std::time(nullptr))};
    ASSIGN_OR_RETURN(mine.model, Calibrate(ranks));
    ASSIGN_OR_RETURN(mine.corrections, MeasureCorrections(ranks, mine.model, ground));
    // Clocks differ, and so may the last bits of what machines compute.
    ASSIGN_OR_RETURN(said, FromFirst(ranks, is_first ? Encode(mine) : ""));
  }
  ASSIGN_OR_RETURN(Costs costs, DecodeCosts(said));
  costs.from = is_kept ? CostsFrom::kFile : CostsFrom::kMeasured;
  if (is_first && !is_kept)
    if (Status status = WriteCosts(place, key, costs); !status.ok()) costs.not_kept = status.what() + ": " + status.why();
  return costs;
}

}  // namespace ropewalk::collective
