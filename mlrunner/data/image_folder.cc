#include "mlrunner/data/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/data/hold_out.h"
#include "mlrunner/data/picture.h"
#include "storage/input.h"
#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

using storage::QuotedPath;

constexpr std::size_t kFileBytesMax = std::size_t{256} << 20;

struct Entry {
  std::string path;        // absolute
  std::uint64_t hash = 0;  // of its name below the folder, and how many bytes it has
  std::int32_t label = 0;
};

class FolderImages final : public Samples {
 public:
  FolderImages(std::vector<Entry> entries, std::int64_t classes, const ImageFolderOptions& options, const Augmentation& augmentation)
      : entries_(std::move(entries)),
        height_(options.height),
        width_(options.width),
        channels_(options.grey ? 1 : 3),
        augmentation_(augmentation),
        seed_(options.seed),
        kept_bytes_max_(options.kept_bytes_max),
        kept_(entries_.size()),
        fields_{{"image", Dtype::kF32, {channels_, height_, width_}}, {"label", Dtype::kI32, {}, classes}} {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const double mean = options.mean[std::min(channel, options.mean.size() - 1)];
      const double deviation = options.deviation[std::min(channel, options.deviation.size() - 1)];
      for (std::size_t pixel = 0; pixel < 256; ++pixel) scaled_[channel][pixel] = (static_cast<double>(pixel) / 255 - mean) / deviation;
    }
    hash_ = static_cast<std::uint64_t>(classes);
    for (const Entry& entry : entries_) hash_ = HashCombine(HashCombine(hash_, entry.hash), static_cast<std::uint64_t>(entry.label));
  }
  std::int64_t count() const override { return static_cast<std::int64_t>(entries_.size()); }
  const std::vector<Field>& fields() const override { return fields_; }
  std::uint64_t content_hash() const override { return hash_; }

  Status Fetch(std::span<const std::int64_t> ids) override {
    fetched_.clear();
    for (std::int64_t id : ids) {
      if (!kept_[static_cast<std::size_t>(id)].empty()) continue;
      auto pixels = Decode(entries_[static_cast<std::size_t>(id)].path);
      if (!pixels.ok()) return pixels.status().WithContext(fmt::format("sample {}", id));
      const bool is_kept = kept_bytes_ + pixels->size() <= kept_bytes_max_;
      if (is_kept) kept_bytes_ += pixels->size();
      (is_kept ? kept_[static_cast<std::size_t>(id)] : fetched_[id]) = *std::move(pixels);
    }
    return {};
  }

  void Fill(const FillCall& call) const override {
    if (call.field == 1) {
      auto* label = static_cast<std::int32_t*>(call.rows);
      for (std::int64_t id : call.ids) *label++ = entries_[static_cast<std::size_t>(id)].label;
    } else if (call.dtype == Dtype::kF64) {
      Scale(call, static_cast<double*>(call.rows));
    } else {
      Scale(call, static_cast<float*>(call.rows));
    }
  }

 private:
  Result<std::vector<std::uint8_t>> Decode(const std::string& path) const {
    ASSIGN_OR_RETURN(const std::string bytes, storage::ReadWhole(path, kFileBytesMax));
    ASSIGN_OR_RETURN(const Picture decoded, DecodePicture(bytes, path));
    Picture fitted = Fit(decoded, height_, width_);
    return channels_ == 1 ? Grey(fitted).pixels : std::move(fitted.pixels);
  }

  template <class T>
  void Scale(const FillCall& call, T* row) const {
    for (std::int64_t id : call.ids) {
      const std::vector<std::uint8_t>& kept = kept_[static_cast<std::size_t>(id)];
      const std::uint8_t* pixels = kept.empty() ? fetched_.at(id).data() : kept.data();
      ForEachCutPixel(pixels, channels_, height_, width_, augmentation_, CutOf(augmentation_, seed_, call.epoch, id),
                      [&](std::int64_t i, std::int64_t channel, std::uint8_t pixel) {
                        row[i] = static_cast<T>(scaled_[static_cast<std::size_t>(channel)][pixel]);
                      });
      row += channels_ * height_ * width_;
    }
  }

  std::vector<Entry> entries_;
  std::int64_t height_, width_, channels_;
  Augmentation augmentation_;
  std::uint64_t seed_;
  std::array<std::array<double, 256>, 3> scaled_;
  std::uint64_t hash_ = 0;
  std::uint64_t kept_bytes_max_, kept_bytes_ = 0;
  std::vector<std::vector<std::uint8_t>> kept_;                          // by id; empty: it is not kept
  std::unordered_map<std::int64_t, std::vector<std::uint8_t>> fetched_;  // the others of a batch
  std::vector<Field> fields_;
};

bool IsPicture(std::string_view name) {
  std::string lower;
  for (char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower.ends_with(".png") || lower.ends_with(".jpg") || lower.ends_with(".jpeg");
}

// The pictures below a folder by the name of their class, each class in the order of the names.
Result<std::map<std::string, std::vector<Entry>>> FindPictures(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  struct stat info;
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return Status(Code::kNotFound, "DATA02", QuotedPath(folder) + " is no folder on this machine",
                  "the pictures of each class lie in a folder of their own below it", "name the folder in data.path or data.held_out_path");
  const std::string patterns[] = {folder};
  ASSIGN_OR_RETURN(const storage::InputListing listing, storage::ListInputs(patterns, "/"));
  std::map<std::string, std::vector<Entry>> classes;
  for (const storage::InputFile& file : listing.files) {
    if (!IsPicture(file.path)) continue;
    const std::string name = file.path.substr(std::min(file.path.size(), folder.size() + 1));
    const std::size_t slash = name.find('/');
    if (slash == name.npos)
      return Status(Code::kUserError, "DATA17", QuotedPath(file.path) + " is of no class",
                    "a picture's class is the folder below " + QuotedPath(folder) + " that it lies in",
                    "move it into the folder of its class");
    classes[name.substr(0, slash)].push_back({file.path, HashCombine(Checksum64(name), file.bytes), 0});
  }
  if (classes.empty())
    return Status(Code::kUserError, "DATA08", QuotedPath(folder) + " holds no pictures",
                  fmt::format("of the {} files below it none is called .png, .jpg or .jpeg", listing.files.size()),
                  "name the folder that holds those of the classes");
  return classes;
}

}  // namespace

Result<DataSet> LoadImageFolder(const ImageFolderOptions& options) {
  ASSIGN_OR_RETURN(auto classes, FindPictures(options.path));
  std::map<std::string, std::int32_t> labels;
  std::vector<Entry> all;
  for (auto& [name, entries] : classes) {
    const auto label = static_cast<std::int32_t>(labels.size());
    labels.emplace(name, label);
    for (Entry& entry : entries) {
      entry.label = label;
      all.push_back(std::move(entry));
    }
  }
  const auto count = static_cast<std::int64_t>(labels.size());
  std::vector<Entry> training, held_out;
  if (options.held_out_path.empty()) {
    const HoldOut drawn = DrawHoldOut(static_cast<std::int64_t>(all.size()), options.held_out);
    for (std::int64_t id : drawn.training) training.push_back(std::move(all[static_cast<std::size_t>(id)]));
    for (std::int64_t id : drawn.held_out) held_out.push_back(std::move(all[static_cast<std::size_t>(id)]));
  } else {
    training = std::move(all);
    ASSIGN_OR_RETURN(auto others, FindPictures(options.held_out_path));
    for (auto& [name, entries] : others) {
      const auto label = labels.find(name);
      if (label == labels.end())
        return Status(Code::kUserError, "DATA17", fmt::format("{} is of the class {}", QuotedPath(entries[0].path), QuotedPath(name)),
                      fmt::format("{} has no pictures of that class to learn from", QuotedPath(options.path)),
                      "let both folders have the same classes");
      for (Entry& entry : entries) {
        entry.label = label->second;
        held_out.push_back(std::move(entry));
      }
    }
  }
  DataSet data;
  data.training = std::make_unique<FolderImages>(std::move(training), count, options, options.augmentation);
  if (!held_out.empty()) data.held_out = std::make_unique<FolderImages>(std::move(held_out), count, options, Augmentation());
  return data;
}

}  // namespace ropewalk::mlrunner
