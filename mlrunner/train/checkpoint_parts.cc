#include "mlrunner/train/checkpoint_parts.h"

#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/wide_checksum.h"
#include "mlrunner/collective/run/status_bytes.h"
#include "mlrunner/train/checkpoint_index.h"
#include "mlrunner/train/checkpoint_names.h"
#include "mlrunner/train/tensor_file.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr const char* kPartForm = "ropewalk-part-2";  // no checkpoint, should somebody rename it
constexpr std::int32_t kTriesMax = 1000;

// What a rank tells the others: a text, or why there is none.
std::string EncodeOutcome(const Status& status, const std::string& text) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint8_t>(status.ok()));
  if (status.ok())
    writer.Sized(text);
  else
    collective::Write(status, &writer);
  return bytes;
}

// The ranks' texts, or what the first rank says that has none.
Result<std::vector<std::string>> ExchangeOutcomes(const Status& status, const std::string& text, std::int32_t rank,
                                                  const ExchangeBytes& exchange) {
  auto all = exchange(EncodeOutcome(status, text));
  if (!all.ok()) return status.ok() ? all.status() : status;
  std::vector<std::string> texts;
  for (std::size_t of = 0; of < all->size(); ++of) {
    ByteReader reader((*all)[of]);
    std::optional<Status> failed;
    const bool is_ok = reader.Fixed<std::uint8_t>() == 1;
    if (is_ok)
      texts.emplace_back(reader.Sized());
    else
      failed = collective::ReadStatus(&reader);
    if (!reader.ok() || !reader.empty() || (!is_ok && !failed.has_value()))
      return Status(Code::kInternal, "CKPT01", fmt::format("what rank {} says of its part of a checkpoint cannot be read", of));
    if (!is_ok) return of == static_cast<std::size_t>(rank) ? *failed : failed->WithContext(fmt::format("rank {}", of));
  }
  return texts;
}

// A name that no file in the folder has: a checkpoint of the same step may name one that has been written before.
Result<std::string> UnusedName(storage::FileSystem& files, const std::string& folder, PartName name) {
  for (; name.tries < kTriesMax; ++name.tries) {
    storage::FileFacts facts;
    const std::string path = folder + "/" + ToString(name);
    const int error = files.Look(path, &facts);
    if (error == ENOENT) return ToString(name);
    RETURN_IF_ERROR(TensorFileError(error, path, "look at"));
  }
  return Status(Code::kResourceExhausted, "CKPT01",
                fmt::format("{} parts of step {} lie in {}", kTriesMax, name.step, storage::QuotedPath(folder)),
                "as many saves of this rank have ended before their checkpoint was whole", "remove them");
}

// The slices as tensors of one file, side by side in the order of their names there, and the index of them.
Status Arrange(std::vector<StateSlice> slices, std::map<std::string, Tensor>* tensors, CheckpointIndex* index) {
  std::map<std::string, StateSlice> by_name;
  for (StateSlice& slice : slices) {
    auto wrong = [&](const char* why) {
      return Status(Code::kInternal, "CKPT01", fmt::format("{} of state {} cannot be written", ToString(slice.slice), slice.name), why,
                    "please report this");
    };
    if (!IsWithin(slice.slice, slice.logical)) return wrong("it does not lie in it");
    if (slice.tensor.dims != LengthsOf(slice.slice)) return wrong("its tensor is of another shape");
    if (slice.tensor.bytes.size() != static_cast<std::size_t>(NumElements(slice.slice)) * SizeOf(slice.tensor.dtype))
      return wrong("its tensor has other bytes than its shape");
    std::string name = slice.slice == WholeOf(slice.logical) ? slice.name : slice.name + ToString(slice.slice);
    if (by_name.contains(name)) return wrong("it is there already");
    by_name.emplace(std::move(name), std::move(slice));
  }
  std::uint64_t at = 0;
  for (auto& [name, slice] : by_name) {
    StoredTensor& stored = index->tensors.try_emplace(slice.name, StoredTensor{slice.tensor.dtype, slice.logical, {}}).first->second;
    if (stored.dtype != slice.tensor.dtype || stored.dims != slice.logical)
      return Status(Code::kInternal, "CKPT01", fmt::format("state {} cannot be written", slice.name),
                    "its slices are of several types or logical shapes", "please report this");
    StoredPiece piece;
    piece.slice = slice.slice;
    piece.at = at;
    piece.checksum = WideChecksum64(slice.tensor.bytes);
    stored.pieces.push_back(std::move(piece));
    at += slice.tensor.bytes.size();
    tensors->emplace(name, std::move(slice.tensor));
  }
  return {};
}

}  // namespace

Result<CheckpointPart> WriteCheckpointPart(storage::FileSystem& files, const std::string& folder, std::int64_t step,
                                           const CheckpointWriter& writer, std::vector<StateSlice> slices) {
  if (slices.empty()) return CheckpointPart{};
  std::map<std::string, Tensor> tensors;
  CheckpointIndex index;
  RETURN_IF_ERROR(Arrange(std::move(slices), &tensors, &index));
  RETURN_IF_ERROR(MakeCheckpointFolder(files, folder));
  CheckpointPart part;
  ASSIGN_OR_RETURN(part.file, UnusedName(files, folder, {.step = step, .writer = writer}));
  const std::string path = folder + "/" + part.file;
  auto written = WriteTensorFile(files, path, {{"format", kPartForm}, {"slices", Encode(index)}}, tensors);
  Status status = written.status();
  // Before a checkpoint can name it: its name must not vanish behind that of the checkpoint.
  if (status.ok()) status = TensorFileError(files.SyncFolder(folder), folder, "sync the folder of");
  if (!status.ok()) {
    (void)files.RemoveFile(path);  // what matters is the first failure
    return status;
  }
  part.header_hash = *written;
  return part;
}

Result<SavedCheckpoint> SaveTogether(storage::FileSystem& files, const std::string& folder, const Checkpoint& about,
                                     Result<std::vector<StateSlice>> mine, std::int32_t rank, const SaveOptions& options,
                                     const ExchangeBytes& exchange) {
  const CheckpointWriter writer{.run = about.run, .forming = options.forming, .rank = rank};
  auto part = mine.ok() ? WriteCheckpointPart(files, folder, about.step, writer, *std::move(mine)) : Result<CheckpointPart>(mine.status());
  std::string text;
  if (part.ok()) {
    ByteWriter to(&text);
    to.Fixed(part->header_hash);
    to.Sized(part->file);
  }
  auto texts = ExchangeOutcomes(part.status(), text, rank, exchange);
  if (!texts.ok()) {
    // Nobody will name it. If this is not done, the next save does it.
    if (part.ok() && !part->file.empty()) (void)files.RemoveFile(folder + "/" + part->file);
    return texts.status();
  }
  if (rank != 0) return SavedCheckpoint{};
  SaveOptions all = options;
  for (const std::string& bytes : *texts) {
    ByteReader from(bytes);
    CheckpointPart written;
    written.header_hash = from.Fixed<std::uint64_t>();
    written.file = from.Sized();
    if (!from.ok() || !from.empty() || written.file.find('/') != std::string::npos)
      return Status(Code::kInternal, "CKPT01", "what a rank says of its part of a checkpoint cannot be read");
    if (!written.file.empty()) all.parts.push_back(std::move(written));
  }
  if (all.parts.empty()) return SavedCheckpoint{};  // there are no states
  return SaveCheckpoint(files, folder, about, all);
}

Status TryFolderTogether(storage::FileSystem& files, const std::string& folder, const CheckpointWriter& writer,
                         const ExchangeBytes& exchange) {
  const std::string name = HiddenName(fmt::format("trial-{}", writer.rank), writer), path = folder + "/" + name;
  Status status = MakeCheckpointFolder(files, folder);
  if (status.ok()) status = WriteTrial(files, folder, path);
  auto names = ExchangeOutcomes(status, name, writer.rank, exchange);
  if (names.ok()) {
    for (std::size_t of = 0; of < names->size() && status.ok(); ++of) {
      storage::FileFacts facts;
      if (int error = files.Look(folder + "/" + (*names)[of], &facts); error != 0)
        status = Status(Code::kUserError, "CKPT01", fmt::format("what rank {} has written is not seen by rank {}", of, writer.rank),
                        fmt::format("{} is not the same folder for both", storage::QuotedPath(folder)),
                        "let checkpoint.folder be a folder that all machines share");
    }
    // All have looked before any takes its own away.
    names = ExchangeOutcomes(status, name, writer.rank, exchange);
  }
  const int error = files.RemoveFile(path);
  if (!names.ok()) return names.status();
  return error == 0 ? Status() : storage::IoError(error, "CKPT01", "nothing can be removed from " + storage::QuotedPath(folder));
}

}  // namespace ropewalk::mlrunner
