// Keys:  A            there is a file of marks (below)
//        F            the format of the records
//        R <be64>     record by sequence number        value = checksum u64 | bytes
//        S            the snapshot                     value = checksum u64 | upto u64 | state
//        V <name>     a named value                    value = checksum u64 | bytes
// Checksums cover the key as well, so a value that turns up under another key is noticed.
//
// ACKNOWLEDGED holds two slots {magic, RocksDB's number of the last acknowledged write, XXH3}, written in turn, so that a write of one that
// is torn leaves the other.
#include "storage/journal.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kGroupBytesMax = 16 << 20;  // of one write; more waits for the next

std::string RecordKey(std::uint64_t sequence) {
  std::string key = "R";
  for (int shift = 56; shift >= 0; shift -= 8) key += static_cast<char>(sequence >> shift);  // big-endian sorts by number
  return key;
}

std::uint64_t SequenceOf(const rocksdb::Slice& key) {
  std::uint64_t sequence = 0;
  for (std::size_t i = 1; i < key.size(); ++i) sequence = sequence << 8 | static_cast<unsigned char>(key[i]);
  return sequence;
}

std::string Guarded(const std::string& key, std::string_view bytes) {
  std::string value;
  ByteWriter out(&value);
  out.Fixed(HashCombine(Checksum64(key), Checksum64(bytes)));
  out.Raw(bytes);
  return value;
}

bool Unguard(std::string_view key, std::string_view value, std::string_view* bytes) {
  ByteReader in(value);
  auto checksum = in.Fixed<std::uint64_t>();
  *bytes = in.Raw(in.remaining());
  return in.ok() && checksum == HashCombine(Checksum64(key), Checksum64(*bytes));
}

constexpr std::uint64_t kMarkMagic = 0x314b434157505252ull;
constexpr off_t kMarkSlotBytes = 4096;  // a sector of its own: a torn write of one slot leaves the other alone

struct Mark {
  std::uint64_t magic = 0, number = 0, checksum = 0;
  std::uint64_t Checksum() const { return Checksum64(std::string_view(reinterpret_cast<const char*>(this), offsetof(Mark, checksum))); }
};

std::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

}  // namespace

struct Journal::Impl {
  struct Pending {
    std::span<const std::string> records;
    std::uint64_t last = 0;
    Status status;
    bool done = false;
  };

  ~Impl() {
    if (mark_fd >= 0) close(mark_fd);
  }

  JournalOptions options;
  std::unique_ptr<rocksdb::DB> db;

  std::mutex mark_mutex;  // guards the next three
  int mark_fd = -1;
  int mark_slot = 0;  // of the newest mark
  std::uint64_t acknowledged = 0;

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Pending*> queue;
  bool writing = false;
  std::uint64_t last = 0;
  std::uint64_t snapshot_upto = 0;
  Status broken;  // after the first failed write nothing more is accepted

  std::string Name() const { return "journal " + QuotedPath(options.folder); }

  Status Damaged(const std::string& why) const {
    return Status(Code::kDataLoss, "STATE02", Name() + " is damaged", why,
                  "restore the folder from a copy; without one, move it away and submit the jobs again");
  }

  Status Translate(const rocksdb::Status& status, const std::string& doing) const {
    if (status.ok()) return {};
    std::string text = status.ToString();
    if (status.IsCorruption()) return Damaged(text);
    if (status.IsNoSpace() || text.find("No space left") != std::string::npos) {
      return Status(Code::kResourceExhausted, "STATE05", Name() + ": the disk is full while " + doing, text,
                    "free space on that disk and start again");
    }
    if (text.find("lock") != std::string::npos) {
      return Status(Code::kUnavailable, "STATE01", Name() + " is in use", "another process has it open (" + text + ")",
                    "stop the other master, or use another folder");
    }
    return Status(Code::kUserError, "STATE04", Name() + ": error while " + doing, text, "check the folder's disk and permissions");
  }

  Status Write(rocksdb::WriteBatch* batch, const std::string& doing) {
    rocksdb::WriteOptions write;
    write.sync = true;
    RETURN_IF_ERROR(Translate(db->Write(write, batch), doing));
    return Acknowledge();
  }

  // Everything written so far is synced (each write is, before its number becomes visible).
  Status Acknowledge() {
    std::lock_guard lock(mark_mutex);
    Mark mark{kMarkMagic, db->GetLatestSequenceNumber(), 0};
    if (mark.number <= acknowledged) return {};  // another thread's mark covers this write
    mark.checksum = mark.Checksum();
    mark_slot = 1 - mark_slot;
    std::string_view bytes(reinterpret_cast<const char*>(&mark), sizeof mark);
    if (pwrite(mark_fd, bytes.data(), bytes.size(), static_cast<off_t>(mark_slot) * kMarkSlotBytes) != static_cast<ssize_t>(bytes.size()) ||
        fdatasync(mark_fd) != 0) {
      Status why = IoError(errno, "STATE05", Name() + ": cannot write how far it was acknowledged");
      return Status(why.code() == Code::kResourceExhausted ? Code::kResourceExhausted : Code::kUserError,
                    why.code() == Code::kResourceExhausted ? "STATE05" : "STATE04", why.what(), why.why(), why.fix());
    }
    acknowledged = mark.number;
    return {};
  }

  // Opens the file of marks; kDataLoss when writes are missing that it names.
  Status CheckMark() {
    const std::string path = options.folder + "/ACKNOWLEDGED";
    mark_fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    const bool missing = mark_fd < 0 && errno == ENOENT;
    if (missing) {
      auto marks = Read("A");
      if (!marks.ok()) return marks.status();
      if (marks->has_value()) return Damaged(QuotedPath(path) + " is gone");
      mark_fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT, 0600);
    }
    if (mark_fd < 0) {
      Status why = IoError(errno, "STATE04", "cannot open " + QuotedPath(path));
      return Status(Code::kUserError, why.tag(), why.what(), why.why(), why.fix());
    }
    bool any = false, none_written = true;
    for (int slot : {0, 1}) {
      Mark mark;
      ssize_t n = pread(mark_fd, &mark, sizeof mark, static_cast<off_t>(slot) * kMarkSlotBytes);
      if (n != static_cast<ssize_t>(sizeof mark)) continue;
      if (mark.magic == 0 && mark.number == 0 && mark.checksum == 0) continue;  // never written
      none_written = false;
      if (mark.magic != kMarkMagic || mark.checksum != mark.Checksum()) continue;
      any = true;
      if (mark.number >= acknowledged) {
        acknowledged = mark.number;
        mark_slot = slot;
      }
    }
    if (!any && !none_written) return Damaged("neither slot of " + QuotedPath(path) + " can be read");
    const std::uint64_t number = db->GetLatestSequenceNumber();
    if (number < acknowledged)
      return Damaged("writes up to number " + std::to_string(acknowledged) + " were acknowledged, and those after " +
                     std::to_string(number) + " are gone: the end of its log is damaged");
    if (none_written && ftruncate(mark_fd, 2 * kMarkSlotBytes) != 0) return Damaged("cannot size " + QuotedPath(path));
    if (none_written) {
      if (fsync(mark_fd) != 0) return Damaged("cannot sync " + QuotedPath(path));
      RETURN_IF_ERROR(SyncFolder());
    }
    auto marks = Read("A");
    if (!marks.ok()) return marks.status();
    if (marks->has_value()) return {};
    rocksdb::WriteBatch batch;
    batch.Put("A", Guarded("A", "1"));
    return Write(&batch, "writing that there are marks");
  }

  Status SyncFolder() const {
    int fd = open(options.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = fd >= 0 && fsync(fd) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    if (synced) return {};
    Status why = IoError(error, "STATE04", "cannot sync the folder of the " + Name());
    return Status(Code::kUserError, why.tag(), why.what(), why.why(), why.fix());
  }

  // Reads and verifies one key. nullopt: absent.
  Result<std::optional<std::string>> Read(const std::string& key) const {
    std::string value;
    rocksdb::ReadOptions read;
    read.verify_checksums = true;
    rocksdb::Status status = db->Get(read, key, &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return Translate(status, "reading");
    std::string_view bytes;
    if (!Unguard(key, value, &bytes)) return Damaged("the checksum of an entry is wrong");
    return std::optional<std::string>(std::string(bytes));
  }

  Status Begin() {
    auto format = Read("F");
    if (!format.ok()) return format.status();
    if (!format->has_value()) {
      rocksdb::WriteBatch batch;
      batch.Put("F", Guarded("F", options.format));
      RETURN_IF_ERROR(Write(&batch, "writing the format"));
    } else if (**format != options.format) {
      return Status(Code::kVersionSkew, "STATE03", Name() + " has the format \"" + **format + "\"",
                    "this program reads \"" + options.format + "\"", "use the program's version that wrote it, or another folder");
    }
    auto snapshot = Read("S");
    if (!snapshot.ok()) return snapshot.status();
    if (snapshot->has_value()) last = snapshot_upto = ByteReader(**snapshot).Fixed<std::uint64_t>();
    std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions()));
    it->SeekForPrev("S");
    while (it->Valid() && it->key() == rocksdb::Slice("S")) it->Prev();
    if (it->Valid() && it->key().size() == 9 && it->key()[0] == 'R') last = std::max(last, SequenceOf(it->key()));
    return Translate(it->status(), "reading");
  }

  // Writes as many waiting requests as fit into one synced batch. Called by one thread at a time, without the mutex.
  void WriteGroup(std::deque<Pending*>* group, std::uint64_t first) {
    rocksdb::WriteBatch batch;
    std::uint64_t sequence = first;
    for (Pending* pending : *group) {
      for (const std::string& record : pending->records) {
        std::string key = RecordKey(sequence++);
        batch.Put(key, Guarded(key, record));
      }
      pending->last = sequence - 1;
    }
    Status status = Write(&batch, "appending");
    for (Pending* pending : *group) pending->status = status;
  }
};

Journal::Journal(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Journal::~Journal() = default;

Result<std::unique_ptr<Journal>> Journal::Open(JournalOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  if (mkdir(impl->options.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    Status why = IoError(errno, "STATE04", "cannot make the folder of the " + impl->Name());
    return Status(Code::kUserError, why.tag(), why.what(), why.why(), why.fix());
  }
  rocksdb::Options db_options;
  db_options.create_if_missing = true;
  db_options.paranoid_checks = true;
  // A torn tail is a write that was never acknowledged; damage anywhere else must not silently end the replay, as the default mode would.
  db_options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  db_options.write_buffer_size = 16 << 20;
  db_options.max_total_wal_size = 64 << 20;
  db_options.max_open_files = 128;
  db_options.max_background_jobs = 2;
  db_options.keep_log_file_num = 2;
  db_options.max_log_file_size = 4 << 20;
  db_options.info_log_level = rocksdb::WARN_LEVEL;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;  // CRC32c runs in software in Debian's build
  db_options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::DB* db = nullptr;
  rocksdb::Status opened = rocksdb::DB::Open(db_options, impl->options.folder, &db);
  impl->db.reset(db);
  if (!opened.ok()) return impl->Translate(opened, "opening");
  RETURN_IF_ERROR(impl->CheckMark());
  RETURN_IF_ERROR(impl->Begin());
  return std::unique_ptr<Journal>(new Journal(std::move(impl)));
}

Result<std::uint64_t> Journal::Append(std::span<const std::string> records) {
  Impl& j = *impl_;
  std::unique_lock lock(j.mutex);
  if (!j.broken.ok()) return j.broken;
  if (records.empty()) return j.last;
  Impl::Pending mine{records, 0, Status(), false};
  j.queue.push_back(&mine);
  // Whoever finds nobody writing writes for all that wait; the sync of one serves them all.
  while (!mine.done) {
    if (j.writing) {
      j.wake.wait(lock);
      continue;
    }
    j.writing = true;
    std::deque<Impl::Pending*> group;
    std::size_t bytes = 0;
    while (!j.queue.empty() && (group.empty() || bytes < kGroupBytesMax)) {
      for (const std::string& record : j.queue.front()->records) bytes += record.size();
      group.push_back(j.queue.front());
      j.queue.pop_front();
    }
    std::uint64_t first = j.last + 1;
    Status broken = j.broken;
    lock.unlock();
    if (broken.ok()) j.WriteGroup(&group, first);
    lock.lock();
    for (Impl::Pending* pending : group) {
      if (!broken.ok()) pending->status = broken;
      if (pending->status.ok()) j.last = pending->last;
      if (!pending->status.ok() && j.broken.ok()) j.broken = pending->status;
      pending->done = true;
    }
    j.writing = false;
    j.wake.notify_all();
  }
  if (!mine.status.ok()) return mine.status;
  return mine.last;
}

Result<std::optional<JournalSnapshot>> Journal::LoadSnapshot() const {
  auto value = impl_->Read("S");
  if (!value.ok()) return value.status();
  if (!value->has_value()) return std::optional<JournalSnapshot>();
  ByteReader in(**value);
  JournalSnapshot snapshot;
  snapshot.upto = in.Fixed<std::uint64_t>();
  snapshot.state = in.Raw(in.remaining());
  return std::optional<JournalSnapshot>(std::move(snapshot));
}

Status Journal::Replay(std::uint64_t after, const std::function<Status(std::uint64_t sequence, std::string_view record)>& record) const {
  std::uint64_t last = last_sequence();
  rocksdb::ReadOptions read;
  read.verify_checksums = true;
  std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator(read));
  std::uint64_t expected = after + 1;
  for (it->Seek(RecordKey(expected)); it->Valid() && expected <= last; it->Next(), ++expected) {
    if (it->key().size() != 9 || it->key()[0] != 'R' || SequenceOf(it->key()) != expected) break;
    std::string_view bytes;
    if (!Unguard(View(it->key()), View(it->value()), &bytes))
      return impl_->Damaged("the checksum of record " + std::to_string(expected) + " is wrong");
    RETURN_IF_ERROR(record(expected, bytes));
  }
  RETURN_IF_ERROR(impl_->Translate(it->status(), "replaying"));
  if (expected <= last) return impl_->Damaged("record " + std::to_string(expected) + " of " + std::to_string(last) + " is missing");
  return {};
}

Status Journal::Snapshot(std::string_view state, std::uint64_t upto) {
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->broken.ok()) return impl_->broken;
    if (upto > impl_->last || upto < impl_->snapshot_upto) {
      return Status(Code::kInvalid, "STATE06",
                    "a snapshot up to record " + std::to_string(upto) + ", but records reach from " +
                        std::to_string(impl_->snapshot_upto + 1) + " to " + std::to_string(impl_->last),
                    "it would end before or after what the journal holds", "this is a bug of Ropewalk: please report it");
    }
  }
  std::string value;
  ByteWriter out(&value);
  out.Fixed(upto);
  out.Raw(state);
  rocksdb::WriteBatch batch;
  batch.Put("S", Guarded("S", value));
  batch.DeleteRange(RecordKey(0), RecordKey(upto + 1));
  Status status = impl_->Write(&batch, "writing a snapshot");
  std::lock_guard lock(impl_->mutex);
  if (status.ok()) impl_->snapshot_upto = std::max(impl_->snapshot_upto, upto);
  if (!status.ok() && impl_->broken.ok()) impl_->broken = status;
  return status;
}

std::uint64_t Journal::last_sequence() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->last;
}

Status Journal::Put(const std::string& name, std::string_view value) {
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->broken.ok()) return impl_->broken;
  }
  rocksdb::WriteBatch batch;
  batch.Put("V" + name, Guarded("V" + name, value));
  Status status = impl_->Write(&batch, "writing " + name);
  std::lock_guard lock(impl_->mutex);
  if (!status.ok() && impl_->broken.ok()) impl_->broken = status;
  return status;
}

Result<std::optional<std::string>> Journal::Get(const std::string& name) const { return impl_->Read("V" + name); }

}  // namespace ropewalk::storage
