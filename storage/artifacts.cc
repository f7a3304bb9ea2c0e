#include "storage/artifacts.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/escape.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kSha256Bytes = 32;
constexpr std::size_t kPieceBytes = 1 << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

class Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void Add(const void* bytes, std::size_t count) { EVP_DigestUpdate(context_.get(), bytes, count); }
  std::string Finish() {
    std::string hash(kSha256Bytes, '\0');
    unsigned length = 0;
    EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(hash.data()), &length);
    return hash;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

// Hashes what is in the file from its start. errno on failure.
int HashFile(int fd, std::string* hash) {
  Hasher hasher;
  std::string piece(kPieceBytes, '\0');
  for (off_t at = 0;;) {
    ssize_t n = pread(fd, piece.data(), piece.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) break;
    hasher.Add(piece.data(), static_cast<std::size_t>(n));
    at += n;
  }
  *hash = hasher.Finish();
  return 0;
}

int WriteAt(int fd, std::string_view bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return 0;
}

Status Disk(int error_number, const std::string& what) { return IoError(error_number, "ART03", what); }

std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::int64_t MtimeNs(const struct stat& info) { return info.st_mtim.tv_sec * 1'000'000'000ll + info.st_mtim.tv_nsec; }

}  // namespace

struct ArtifactStore::Impl {
  ArtifactOptions options;
  mutable std::mutex mutex;  // held while an upload is written, hashed and synced

  struct Entry {
    std::uint64_t bytes = 0;  // whole; of its part otherwise
    bool whole = false;
    std::int64_t used_ns = 0;
    std::uint32_t pins = 0;
  };
  mutable std::mutex books_mutex;  // for short: pins are set by control threads
  mutable std::map<std::string, Entry, std::less<>> entries;
  std::uint64_t bytes = 0;

  // Counts what is there, and drops uploads that were left long ago.
  Status Scan() {
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(options.folder, error)) {
      std::string name = file.path().filename();
      const bool part = name.ends_with(".part");
      if (part) name.resize(name.size() - 5);
      std::optional<std::string> sha256 = FromHex(name);
      struct stat info;
      if (!sha256 || stat(file.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      if (part && MtimeNs(info) + options.upload_idle_ms * 1'000'000 < NowNs()) {
        unlink(file.path().c_str());
        continue;
      }
      Entry& entry = entries[*sha256];
      entry = {static_cast<std::uint64_t>(info.st_size), !part, MtimeNs(info), 0};
      bytes += entry.bytes;
    }
    if (error) return Disk(error.value(), "cannot list " + QuotedPath(options.folder));
    return {};
  }
  static std::optional<std::string> FromHex(const std::string& name) {
    std::string raw(kSha256Bytes, '\0');
    if (name.size() != 2 * kSha256Bytes || name.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<char>(std::stoi(name.substr(2 * i, 2), nullptr, 16));
    return raw;
  }

  // Drops what may go until `more` bytes fit beside the rest; `keep` is what they are for.
  Status MakeRoom(std::string_view keep, std::uint64_t more) {
    std::lock_guard lock(books_mutex);
    const std::int64_t idle_ns = NowNs() - options.upload_grace_ms * 1'000'000;
    while (bytes + more > options.bytes_max) {
      auto victim = entries.end();
      auto rank = [](const Entry& entry) { return std::pair(entry.whole, entry.used_ns); };  // uploads that stand still go first
      for (auto at = entries.begin(); at != entries.end(); ++at) {
        const Entry& entry = at->second;
        if (at->first == keep || entry.pins > 0 || entry.bytes == 0 || (!entry.whole && entry.used_ns > idle_ns)) continue;
        if (victim == entries.end() || rank(entry) < rank(victim->second)) victim = at;
      }
      if (victim == entries.end())
        return Status(Code::kResourceExhausted, "ART05", "no room for artifact " + HexString(keep).substr(0, 12),
                      "jobs that have not ended use the " + std::to_string(options.bytes_max) + " bytes of this store",
                      "wait for one to end, or give the store more room");
      const std::string path = victim->second.whole ? Path(victim->first) : Part(victim->first);
      if (unlink(path.c_str()) != 0 && errno != ENOENT) return Disk(errno, "cannot remove " + QuotedPath(path));
      bytes -= victim->second.bytes;
      entries.erase(victim);
    }
    bytes += more;
    Entry& entry = entries[std::string(keep)];
    entry.bytes += more;
    entry.used_ns = NowNs();
    return {};
  }
  void Forget(std::string_view sha256) {  // an upload that was dropped
    std::lock_guard lock(books_mutex);
    auto at = entries.find(sha256);
    if (at == entries.end()) return;
    bytes -= std::exchange(at->second.bytes, 0);
    at->second.whole = false;
    if (at->second.pins == 0) entries.erase(at);
  }

  std::string Path(std::string_view sha256) const { return options.folder + "/" + HexString(sha256); }
  std::string Part(std::string_view sha256) const { return Path(sha256) + ".part"; }
  static bool Exists(const std::string& path, std::uint64_t* bytes) {
    struct stat info;
    if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
    *bytes = static_cast<std::uint64_t>(info.st_size);
    return true;
  }

  // Verifies the received file and gives it its name.
  Status Complete(std::string_view sha256, int fd) {
    std::string part = Part(sha256), hash;
    if (int error = HashFile(fd, &hash); error != 0) return Disk(error, "cannot read " + QuotedPath(part));
    if (hash != sha256) {
      unlink(part.c_str());
      Forget(sha256);
      return Status(Code::kDataLoss, "ART02", "artifact " + HexString(sha256).substr(0, 12) + " arrived damaged",
                    "its content has another SHA-256", "send it again");
    }
    // Synced before it gets its name: a name is the promise that the content is whole.
    if (fchmod(fd, 0500) != 0 || fsync(fd) != 0) return Disk(errno, "cannot sync " + QuotedPath(part));
    if (rename(part.c_str(), Path(sha256).c_str()) != 0) return Disk(errno, "cannot rename " + QuotedPath(part));
    Descriptor folder(open(options.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() < 0 || fsync(folder.get()) != 0) return Disk(errno, "cannot sync the folder " + QuotedPath(options.folder));
    return {};
  }
};

ArtifactStore::ArtifactStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ArtifactStore::~ArtifactStore() = default;

Result<std::unique_ptr<ArtifactStore>> ArtifactStore::Open(ArtifactOptions options) {
  if (mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Disk(errno, "cannot make the folder " + QuotedPath(options.folder));
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  RETURN_IF_ERROR(impl->Scan());
  return std::unique_ptr<ArtifactStore>(new ArtifactStore(std::move(impl)));
}

bool ArtifactStore::Has(std::string_view sha256) const {
  if (!Size(sha256).ok()) return false;
  std::lock_guard lock(impl_->books_mutex);
  if (auto at = impl_->entries.find(sha256); at != impl_->entries.end()) at->second.used_ns = NowNs();
  return true;
}

void ArtifactStore::Pin(std::string_view sha256) {
  std::lock_guard lock(impl_->books_mutex);
  Impl::Entry& entry = impl_->entries[std::string(sha256)];
  ++entry.pins;
  entry.used_ns = NowNs();
  // For the order after a restart; without it, it is only evicted sooner than it should.
  if (entry.whole) (void)utimensat(AT_FDCWD, impl_->Path(sha256).c_str(), nullptr, 0);
}

void ArtifactStore::Unpin(std::string_view sha256) {
  std::lock_guard lock(impl_->books_mutex);
  auto at = impl_->entries.find(sha256);
  if (at == impl_->entries.end() || at->second.pins == 0) return;
  at->second.used_ns = NowNs();
  if (--at->second.pins == 0 && at->second.bytes == 0 && !at->second.whole) impl_->entries.erase(at);  // it never came
}

std::uint64_t ArtifactStore::bytes() const {
  std::lock_guard lock(impl_->books_mutex);
  return impl_->bytes;
}
std::string ArtifactStore::PathOf(std::string_view sha256) const { return impl_->Path(sha256); }

std::uint64_t ArtifactStore::ReceivedBytes(std::string_view sha256) const {
  std::uint64_t bytes = 0;
  return Impl::Exists(impl_->Part(sha256), &bytes) ? bytes : 0;
}

Result<std::uint64_t> ArtifactStore::Size(std::string_view sha256) const {
  std::uint64_t bytes = 0;
  if (sha256.size() != kSha256Bytes || !Impl::Exists(impl_->Path(sha256), &bytes))
    return Status(Code::kNotFound, "ART04", "artifact " + HexString(sha256).substr(0, 12) + " is not here", "it was dropped or never sent",
                  "send it first");
  return bytes;
}

Result<bool> ArtifactStore::Put(std::string_view sha256, std::uint64_t offset, std::uint64_t size, std::string_view chunk) {
  auto invalid = [&](const std::string& why) {
    return Status(Code::kInvalid, "ART01", "artifact " + HexString(sha256.substr(0, 6)) + " is refused", why,
                  "submit again, with client and master of one version");
  };
  if (sha256.size() != kSha256Bytes) return invalid("its name is no SHA-256");
  if (size > impl_->options.artifact_bytes_max)
    return Status(Code::kInvalid, "ART01", "artifact " + HexString(sha256).substr(0, 12) + " is refused",
                  std::to_string(size) + " bytes are more than the limit of " + std::to_string(impl_->options.artifact_bytes_max),
                  "make the executable smaller (strip)");
  if (offset > size || chunk.size() > size - offset) return invalid("a chunk reaches beyond its size");
  std::lock_guard lock(impl_->mutex);
  if (Has(sha256)) return true;
  std::string part = impl_->Part(sha256);
  Descriptor file(open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return Disk(errno, "cannot make " + QuotedPath(part));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return Disk(errno, "cannot look at " + QuotedPath(part));
  auto received = static_cast<std::uint64_t>(info.st_size);
  if (received > size) {
    unlink(part.c_str());
    impl_->Forget(sha256);
    return invalid("more bytes have arrived than its size; send it again");
  }
  if (offset > received) return invalid("bytes " + std::to_string(received) + " to " + std::to_string(offset) + " are missing");
  std::string_view fresh = chunk.substr(std::min<std::uint64_t>(chunk.size(), received - offset));
  RETURN_IF_ERROR(impl_->MakeRoom(sha256, fresh.size()));
  if (int error = WriteAt(file.get(), fresh, received); error != 0) {
    unlink(part.c_str());  // what the file holds now is not known: the upload starts again
    impl_->Forget(sha256);
    return Disk(error, "cannot write " + QuotedPath(part));
  }
  if (received + fresh.size() < size) return false;
  RETURN_IF_ERROR(impl_->Complete(sha256, file.get()));
  std::lock_guard books(impl_->books_mutex);
  impl_->entries[std::string(sha256)].whole = true;
  return true;
}

Result<std::string> ArtifactStore::Read(std::string_view sha256, std::uint64_t offset, std::uint64_t bytes_max) const {
  auto size = Size(sha256);
  if (!size.ok()) return size.status();
  Descriptor file(open(impl_->Path(sha256).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return Disk(errno, "cannot read " + QuotedPath(impl_->Path(sha256)));
  std::string bytes(static_cast<std::size_t>(offset < *size ? std::min(bytes_max, *size - offset) : 0), '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    ssize_t n = pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Disk(n < 0 ? errno : EIO, "cannot read " + QuotedPath(impl_->Path(sha256)));
    done += static_cast<std::size_t>(n);
  }
  return bytes;
}

Result<std::string> ArtifactStore::Add(const std::string& path) {
  auto hash = Sha256OfFile(path);
  if (!hash.ok()) return hash;
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return IoError(errno, "IO02", "cannot read " + QuotedPath(path));
  auto size = static_cast<std::uint64_t>(info.st_size);
  std::string piece(kPieceBytes, '\0');
  for (std::uint64_t at = 0;;) {
    ssize_t n = pread(file.get(), piece.data(), piece.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError(errno, "IO02", "cannot read " + QuotedPath(path));
    auto done = Put(*hash, at, size, std::string_view(piece).substr(0, static_cast<std::size_t>(n)));
    if (!done.ok()) return done.status();
    if (*done) return hash;
    if (n == 0)
      return Status(Code::kUserError, "IO02", QuotedPath(path) + " changed while it was read", "it became shorter",
                    "try again once nobody writes it");
    at += static_cast<std::uint64_t>(n);
  }
}

std::string Sha256(std::string_view bytes) {
  Hasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  return hasher.Finish();
}

Result<std::string> Sha256OfFile(const std::string& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return IoError(errno, errno == ENOENT ? "IO01" : "IO02", "cannot read " + QuotedPath(path));
  std::string hash;
  if (int error = HashFile(file.get(), &hash); error != 0) return IoError(error, "IO02", "cannot read " + QuotedPath(path));
  return hash;
}

}  // namespace ropewalk::storage
