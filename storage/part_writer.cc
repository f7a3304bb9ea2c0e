// One attempt's output file.
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/home_process.h"
#include "base/wide_checksum.h"
#include "storage/io_error.h"
#include "storage/output_paths.h"
#include "storage/read_buffer.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kWriteBytes = 128 << 10;  // what was built in place is written in such pieces

// The folder may be made by several tasks at once, and by an earlier attempt.
int EnsureFolder(FileSystem& files, const std::string& path) {
  int error = files.MakeFolder(path);
  return error == EEXIST ? 0 : error;
}

}  // namespace

struct PartWriter::Impl {
  explicit Impl(const OutputSpec& spec) : files(spec), buffer(ReadBuffer::Take()) { XXH3_64bits_reset(&hash); }

  Status Flush() {
    // A forked child shares the offset: what it wrote would stand between its parent's bytes.
    if (!home.here()) return Status(Code::kInternal, "OUT09", "a forked child writes its parent's " + QuotedPath(path));
    if (filled == 0) return {};
    int error = file->Append(std::as_bytes(std::span<const char>(buffer->data(), filled)));
    filled = 0;
    return error == 0 ? Status() : OutputError(error, "cannot write " + QuotedPath(path));
  }

  OutputFiles files;
  std::string path, folder;
  std::unique_ptr<WritableFile> file;
  ReadBuffer::Lease buffer;
  std::size_t filled = 0;
  PartFacts facts;
  XXH3_state_t hash;
  bool finished = false;
  HomeProcess home;
};

PartWriter::PartWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<PartWriter>> PartWriter::Open(const OutputSpec& spec, std::uint32_t part, std::uint32_t attempt) {
  auto impl = std::make_unique<Impl>(spec);
  if (impl->buffer->data() == nullptr)
    return Status(Code::kResourceExhausted, "OUT05", "no memory for an output buffer",
                  "this process may have no more (ulimit -v, or its control group)", "give it more memory");
  OutputPaths paths = PathsOf(spec);
  impl->folder = paths.attempts;
  impl->path = AttemptPath(paths, part, attempt);
  impl->facts.part = part;
  impl->facts.attempt = attempt;
  for (const std::string& folder : {paths.hidden, paths.attempts}) {
    if (int error = EnsureFolder(*impl->files, folder); error != 0)
      return OutputError(error, "cannot make the folder " + QuotedPath(folder));
  }
  if (int error = impl->files->Create(impl->path, &impl->file); error != 0)
    return OutputError(error, "cannot make the file " + QuotedPath(impl->path));
  return std::unique_ptr<PartWriter>(new PartWriter(std::move(impl)));
}

PartWriter::~PartWriter() {
  if (impl_->finished || !impl_->home.here()) return;
  impl_->file.reset();
  // Best effort: what stays behind lies in the hidden folder, which goes as a whole at the end of the job.
  if (impl_->files->RemoveFile(impl_->path) != 0) return;
}

Status PartWriter::Append(std::span<const std::byte> bytes) {
  Impl& w = *impl_;
  WideUpdate(&w.hash, bytes);
  w.facts.bytes += bytes.size();
  std::size_t capacity = w.buffer->capacity();
  if (bytes.size() > capacity - w.filled) RETURN_IF_ERROR(w.Flush());
  if (bytes.size() >= capacity) {
    int error = w.file->Append(bytes);
    return error == 0 ? Status() : OutputError(error, "cannot write " + QuotedPath(w.path));
  }
  if (!bytes.empty()) std::memcpy(w.buffer->data() + w.filled, bytes.data(), bytes.size());
  w.filled += bytes.size();
  return {};
}

Result<std::span<char>> PartWriter::Room(std::size_t bytes) {
  Impl& w = *impl_;
  if (bytes > kRoomBytesMax) return Status(Code::kInternal, "OUT05", "more room was asked for than a part's buffer has");
  if (w.buffer->capacity() - w.filled < bytes) RETURN_IF_ERROR(w.Flush());
  return std::span(w.buffer->data() + w.filled, w.buffer->capacity() - w.filled);
}

Status PartWriter::Commit(std::size_t bytes) {
  Impl& w = *impl_;
  WideUpdate(&w.hash, std::as_bytes(std::span<const char>(w.buffer->data() + w.filled, bytes)));
  w.facts.bytes += bytes;
  w.filled += bytes;
  // Written while it is still in the cache.
  return w.filled >= kWriteBytes ? w.Flush() : Status();
}

Result<std::string> PartWriter::Finish(std::uint64_t records) {
  Impl& w = *impl_;
  RETURN_IF_ERROR(w.Flush());
  if (int error = w.file->Sync(); error != 0) return OutputError(error, "cannot sync " + QuotedPath(w.path));
  if (int error = w.file->Close(); error != 0) return OutputError(error, "cannot close " + QuotedPath(w.path));
  // The master journals that this attempt wins: then its name must not vanish with a power cut either.
  if (int error = w.files->SyncFolder(w.folder); error != 0) return OutputError(error, "cannot sync the folder " + QuotedPath(w.folder));
  w.facts.records = records;
  w.facts.checksum = XXH3_64bits_digest(&w.hash);
  w.finished = true;
  w.buffer.reset();
  return EncodePart(w.facts);
}

std::uint64_t PartWriter::content_hash() const { return impl_->facts.checksum; }

}  // namespace ropewalk::storage
