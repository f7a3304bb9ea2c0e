#include "master/daemon/record_store.h"

#include <openssl/sha.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <set>
#include <utility>

#include <glog/logging.h>

#include "base/bytes.h"
#include "base/escape.h"
#include "master/daemon/files.h"
#include "storage/journal.h"

namespace ropewalk::master {
namespace {

constexpr char kInline = 0;
constexpr char kInFile = 1;

std::string Sha256(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

Status Damaged(std::string what, std::string why) {
  return {Code::kDataLoss, "MASTER04", std::move(what), std::move(why), "restore the state folder from a backup"};
}

}  // namespace

struct RecordStore::Impl {
  std::string large_folder;
  std::unique_ptr<storage::Journal> journal;
  std::set<std::string> large;  // names (hex) that are there

  std::string PathOf(const std::string& name) const { return large_folder + "/" + name; }

  Result<std::string> Entry(const std::string& record) {
    if (record.size() <= kLargeRecordBytes) return std::string(1, kInline) + record;
    const std::string digest = Sha256(record);
    const std::string name = HexString(digest);
    // The content is the name: a file that is there has these bytes, since files appear whole.
    if (!large.contains(name)) {
      RETURN_IF_ERROR(WriteFileDurably(PathOf(name), record));
      large.insert(name);
    }
    std::string entry(1, kInFile);
    ByteWriter writer(&entry);
    writer.Raw(digest);
    writer.Fixed<std::uint64_t>(record.size());
    return entry;
  }

  Result<std::string> Record(std::string_view entry) const {
    if (!entry.empty() && entry[0] == kInline) return std::string(entry.substr(1));
    ByteReader reader(entry.substr(entry.empty() ? 0 : 1));
    const std::string digest(reader.Raw(SHA256_DIGEST_LENGTH));
    const auto size = reader.Fixed<std::uint64_t>();
    if (!reader.ok() || !reader.empty() || entry[0] != kInFile)
      return Damaged("an entry of the journal cannot be read", "it is of no known form");
    const std::string path = PathOf(HexString(digest));
    ASSIGN_OR_RETURN(std::string record, ReadWholeFile(path, size));
    if (record.size() != size || Sha256(record) != digest)
      return Damaged(EscapeForLog(path) + " is damaged", "it does not hash to its name");
    return record;
  }
};

RecordStore::RecordStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RecordStore::~RecordStore() = default;

Result<std::unique_ptr<RecordStore>> RecordStore::Open(const std::string& folder) {
  auto impl = std::make_unique<Impl>();
  impl->large_folder = folder + "/large";
  RETURN_IF_ERROR(MakeFolder(impl->large_folder));
  ASSIGN_OR_RETURN(impl->journal, storage::Journal::Open({.folder = folder + "/journal"}));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(impl->large_folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() == 2 * SHA256_DIGEST_LENGTH)
      impl->large.insert(name);
    else
      std::filesystem::remove(entry.path(), error);  // half written when a master died
  }
  return std::unique_ptr<RecordStore>(new RecordStore(std::move(impl)));
}

Status RecordStore::Replay(const std::function<Status(std::string)>& record) const {
  ASSIGN_OR_RETURN(auto snapshot, impl_->journal->LoadSnapshot());
  const auto one = [&](std::string_view entry) -> Status {
    ASSIGN_OR_RETURN(std::string bytes, impl_->Record(entry));
    return record(std::move(bytes));
  };
  std::uint64_t after = 0;
  if (snapshot.has_value()) {
    after = snapshot->upto;
    ByteReader reader(snapshot->state);
    for (std::uint64_t n = reader.Varint(); n > 0 && reader.ok(); --n) {
      std::string_view entry = reader.Sized();
      if (!reader.ok()) break;
      RETURN_IF_ERROR(one(entry));
    }
    if (!reader.ok() || !reader.empty()) return Damaged("the journal's snapshot cannot be read", "its length is wrong");
  }
  return impl_->journal->Replay(after, [&](std::uint64_t, std::string_view entry) { return one(entry); });
}

Status RecordStore::Append(std::span<const std::string> records) {
  std::vector<std::string> entries;
  entries.reserve(records.size());
  for (const std::string& record : records) {
    ASSIGN_OR_RETURN(std::string entry, impl_->Entry(record));
    entries.push_back(std::move(entry));
  }
  auto appended = impl_->journal->Append(entries);
  return appended.ok() ? Status() : appended.status();
}

Status RecordStore::Snapshot(std::span<const std::string> records) {
  std::string state;
  ByteWriter writer(&state);
  writer.Varint(records.size());
  std::set<std::string> named;
  for (const std::string& record : records) {
    Result<std::string> entry = impl_->Entry(record);
    if (!entry.ok()) return entry.status();
    if (entry->front() == kInFile) named.insert(HexString(std::string_view(*entry).substr(1, SHA256_DIGEST_LENGTH)));
    writer.Sized(*entry);
  }
  RETURN_IF_ERROR(impl_->journal->Snapshot(state, impl_->journal->last_sequence()));
  // Only now does nothing name the others any more.
  for (auto it = impl_->large.begin(); it != impl_->large.end();) {
    if (named.contains(*it)) {
      ++it;
      continue;
    }
    if (unlink(impl_->PathOf(*it).c_str()) != 0) PLOG(WARNING) << "cannot remove " << impl_->PathOf(*it);
    it = impl_->large.erase(it);
  }
  return {};
}

Result<std::uint64_t> RecordStore::NextEpoch() {
  ASSIGN_OR_RETURN(auto text, impl_->journal->Get("epoch"));
  std::uint64_t epoch = 0;
  if (text.has_value()) std::from_chars(text->data(), text->data() + text->size(), epoch);
  ++epoch;
  RETURN_IF_ERROR(impl_->journal->Put("epoch", std::to_string(epoch)));
  return epoch;
}

std::uint64_t RecordStore::large_files() const { return impl_->large.size(); }

}  // namespace ropewalk::master
