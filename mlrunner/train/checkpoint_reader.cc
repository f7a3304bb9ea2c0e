#include "mlrunner/train/checkpoint_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/wide_checksum.h"
#include "mlrunner/train/tensor_file.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

using Metadata = std::map<std::string, std::string>;

// Large enough for a disk, and nothing beside what is trained.
constexpr std::size_t kVerifyBytes = std::size_t{4} << 20;

template <class T>
Result<T> NumberIn(const Metadata& metadata, const char* key, const std::string& path) {
  if (auto found = metadata.find(key); found != metadata.end()) {
    const std::string& text = found->second;
    T number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
  }
  return DamagedTensorFile(path, fmt::format("its header gives no {}", key));
}

// What older versions did not write is left as it is.
template <class T>
Status NumberIfThere(const Metadata& metadata, const char* key, const std::string& path, T* number) {
  if (!metadata.contains(key)) return {};
  ASSIGN_OR_RETURN(*number, NumberIn<T>(metadata, key, path));
  return {};
}

// As their bytes in hexadecimal digits: the losses of a resumed training are the same bits.
Status LossesIfThere(const Metadata& metadata, const std::string& path, std::int64_t steps, std::vector<double>* losses) {
  const auto found = metadata.find("losses");
  if (found == metadata.end()) return {};
  std::string bytes;
  if (!ParseHex(found->second, &bytes) || bytes.size() % sizeof(double) != 0 ||
      bytes.size() / sizeof(double) > std::min(static_cast<std::uint64_t>(std::max<std::int64_t>(0, steps)), kKeptLossesMax))
    return DamagedTensorFile(path, "its header gives no losses of its steps");
  losses->resize(bytes.size() / sizeof(double));
  if (!bytes.empty()) std::memcpy(losses->data(), bytes.data(), bytes.size());
  return {};
}

Result<Checkpoint> AboutIn(const Metadata& metadata, const std::string& path) {
  Checkpoint about;
  ASSIGN_OR_RETURN(about.step, NumberIn<std::int64_t>(metadata, "step", path));
  ASSIGN_OR_RETURN(about.position.epoch, NumberIn<std::int64_t>(metadata, "epoch", path));
  ASSIGN_OR_RETURN(about.position.offset, NumberIn<std::int64_t>(metadata, "offset", path));
  ASSIGN_OR_RETURN(about.seed, NumberIn<std::uint64_t>(metadata, "seed", path));
  RETURN_IF_ERROR(NumberIfThere(metadata, "vocabulary", path, &about.vocabulary));
  RETURN_IF_ERROR(NumberIfThere(metadata, "data", path, &about.data));
  RETURN_IF_ERROR(NumberIfThere(metadata, "samples", path, &about.samples));
  RETURN_IF_ERROR(NumberIfThere(metadata, "run", path, &about.run));
  RETURN_IF_ERROR(NumberIfThere(metadata, "loss", path, &about.loss));
  RETURN_IF_ERROR(NumberIfThere(metadata, "best_step", path, &about.best_step));
  RETURN_IF_ERROR(NumberIfThere(metadata, "best_loss", path, &about.best_loss));
  RETURN_IF_ERROR(LossesIfThere(metadata, path, about.step, &about.losses));
  if (about.step < 0 || about.position.epoch < 0 || about.position.offset < 0)
    return DamagedTensorFile(path, "its header gives a place before the beginning");
  return about;
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(storage::FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(TensorFile file, ReadTensorFile(files, path));
  const std::string& form = file.metadata["format"];
  if (form != kWholeForm && form != kSlicedForm) {
    if (!form.starts_with(kCheckpointForms)) return DamagedTensorFile(path, "another program wrote it");
    return Status(Code::kVersionSkew, "CKPT05", "another version of Ropewalk wrote the checkpoint " + storage::QuotedPath(path),
                  fmt::format("it is a \"{}\", and this version reads \"{}\" and \"{}\"", EscapeForLog(form, 100), kWholeForm, kSlicedForm),
                  "go on with the version that wrote it, name another checkpoint.folder, or set checkpoint.resume = false");
  }
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(files, path));
  ASSIGN_OR_RETURN(reader->about_, AboutIn(file.metadata, path));
  if (form == kSlicedForm) {
    ASSIGN_OR_RETURN(reader->index_, ParseCheckpointIndex(file.metadata["slices"], path));
    for (const auto& [name, tensor] : reader->index_.tensors) {
      for (const StoredPiece& piece : tensor.pieces) {
        if (piece.file == StoredPiece::kSameFile) return DamagedTensorFile(path, fmt::format("state {} has a piece in no file", name));
      }
    }
  }
  reader->own_ = std::move(file.tensors);
  for (const auto& [name, tensor] : reader->own_) {
    if (!reader->index_.tensors.emplace(name, InOnePiece(tensor.dtype, tensor.dims)).second)
      return DamagedTensorFile(path, fmt::format("state {} is there whole and in slices", name));
  }
  if (const std::string why = WhyNotWhole(reader->index_); !why.empty()) return DamagedTensorFile(path, why);
  return reader;
}

Status CheckpointReader::ReadPiece(const std::string& name, const StoredPiece& piece, std::uint64_t bytes,
                                   std::span<std::byte> into) const {
  const StoredFile& file = index_.files[static_cast<std::size_t>(piece.file)];
  const std::size_t slash = path_.rfind('/');
  const std::string path = (slash == std::string::npos ? "" : path_.substr(0, slash + 1)) + file.name;
  auto bad = [&](const std::string& why) {
    return DamagedTensorFile(path_, fmt::format("{} of state {}, in {}, {}", ToString(piece.slice), name, file.name, why));
  };
  WideHash hash;
  std::uint64_t done = 0;
  do {  // once also where there are none: is there such a file?
    const std::span<std::byte> block = into.first(static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), bytes - done)));
    std::size_t read = 0;
    if (int error = files_.ReadAt(path, file.data_begins + piece.at + done, block, &read); error == ENOENT) {
      return bad("is missing: there is no such file");
    } else if (error != 0) {
      return storage::IoError(error, "CKPT02", "cannot read " + storage::QuotedPath(path) + ", a part of the checkpoint");
    }
    if (read != block.size()) return bad(fmt::format("ends after {} of {} bytes", done + read, bytes));
    hash.Add(block);
    done += read;
  } while (done < bytes);
  return hash.value() == piece.checksum ? Status() : bad("has another checksum");
}

Result<const StoredTensor*> CheckpointReader::Find(const std::string& name, Dtype dtype, const Dims& logical) const {
  auto found = index_.tensors.find(name);
  if (found == index_.tensors.end()) return CheckpointMisfit(path_, "it has no state " + name);
  const StoredTensor& stored = found->second;
  if (stored.dims != logical || stored.dtype != dtype)
    return CheckpointMisfit(path_, fmt::format("state {} is {} {} there and {} {} here", name, ToString(stored.dims), Name(stored.dtype),
                                               ToString(logical), Name(dtype)));
  return &stored;
}

Status CheckpointReader::WasTaken(const std::string& name) const {
  return Status(Code::kInternal, "CKPT03", "state " + name + " of " + storage::QuotedPath(path_) + " was taken before", "it is there once",
                "please report this");
}

Result<Tensor> CheckpointReader::Take(const std::string& name, Dtype dtype, const Dims& logical, const Slice& slice) {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(name, dtype, logical));
  const StoredPiece& piece = stored->pieces.front();
  if (piece.file != StoredPiece::kSameFile || piece.slice != slice) return Read(name, dtype, logical, slice);
  auto taken = own_.extract(name);
  if (taken.empty())
    return Status(Code::kInternal, "CKPT03", "state " + name + " of " + storage::QuotedPath(path_) + " was taken before",
                  "it is there once", "please report this");
  return std::move(taken.mapped());
}

Result<Tensor> CheckpointReader::Read(const std::string& name, Dtype dtype, const Dims& logical, const Slice& slice) const {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(name, dtype, logical));
  if (!IsWithin(slice, logical))
    return Status(Code::kInvalid, "CKPT03", fmt::format("{} is no slice of state {} {}", ToString(slice), name, ToString(logical)),
                  "it does not lie in it", "ask for what SliceOf gives for that shape");
  const std::size_t element_bytes = SizeOf(dtype);
  Tensor tensor{dtype, LengthsOf(slice), {}};
  tensor.bytes.resize(static_cast<std::size_t>(NumElements(slice)) * element_bytes);
  std::vector<std::byte> bytes;
  for (const StoredPiece& piece : stored->pieces) {
    const Slice both = Intersection(piece.slice, slice);
    if (NumElements(both) == 0) continue;
    if (piece.file == StoredPiece::kSameFile) {
      const auto own = own_.find(name);
      if (own == own_.end()) return WasTaken(name);
      CopySlice(both, element_bytes, piece.slice, own->second.bytes.data(), slice, tensor.bytes.data());
    } else if (piece.slice == slice) {
      RETURN_IF_ERROR(ReadPiece(name, piece, tensor.bytes.size(), tensor.bytes));
    } else {
      bytes.resize(static_cast<std::size_t>(NumElements(piece.slice)) * element_bytes);
      RETURN_IF_ERROR(ReadPiece(name, piece, bytes.size(), bytes));
      CopySlice(both, element_bytes, piece.slice, bytes.data(), slice, tensor.bytes.data());
    }
  }
  return tensor;
}

Result<Checkpoint> CheckpointReader::ReadAll() const {
  RETURN_IF_ERROR(Verify());  // before there is memory for what the index says
  Checkpoint all = about_;
  for (const auto& [name, stored] : index_.tensors) {
    ASSIGN_OR_RETURN(all.tensors[name], Read(name, stored.dtype, stored.dims, WholeOf(stored.dims)));
  }
  return all;
}

Status CheckpointReader::Verify() const {
  std::vector<std::byte> block(kVerifyBytes);
  for (const auto& [name, tensor] : index_.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      if (piece.file == StoredPiece::kSameFile) continue;  // the checksum of that file covers it
      RETURN_IF_ERROR(ReadPiece(name, piece, static_cast<std::uint64_t>(NumElements(piece.slice)) * SizeOf(tensor.dtype), block));
    }
  }
  return {};
}

Status CheckpointMisfit(const std::string& path, const std::string& why) {
  return Status(Code::kUserError, "CKPT03", "the checkpoint " + storage::QuotedPath(path) + " does not fit the job", why,
                "train with the job that wrote it, name another checkpoint.folder, or set checkpoint.resume = false");
}

Result<std::unique_ptr<CheckpointReader>> OpenNewestCheckpoint(storage::FileSystem& files, const std::string& folder,
                                                               std::vector<Status>* passed_over, std::uint64_t run) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListCheckpoints(files, folder));
  for (const std::string& path : paths) {
    auto opened = CheckpointReader::Open(files, path);
    if (run != 0 && (opened.ok() ? (*opened)->about().run != run : opened.status().code() == Code::kVersionSkew)) continue;
    const Status status = opened.ok() ? (*opened)->Verify() : opened.status();
    if (status.ok()) return opened;
    // A disk that fails is no reason to go back, nor is a version that went on from there.
    if (status.code() != Code::kDataLoss) return status;
    passed_over->push_back(status);
  }
  return std::unique_ptr<CheckpointReader>();
}

}  // namespace ropewalk::mlrunner
