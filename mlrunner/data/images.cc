#include "mlrunner/data/images.h"

#include <sys/stat.h>

#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/data/idx.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

using storage::QuotedPath;

// Of the 47 million pixels of the training set, divided by 255.
constexpr double kMean = .2860, kDeviation = .3530;

class Images final : public Samples {
 public:
  Images(IdxBytes images, IdxBytes labels, std::int64_t classes, double mean, double deviation)
      : pixels_(images.dims[1] * images.dims[2]),
        fields_{{"image", Dtype::kF32, {1, images.dims[1], images.dims[2]}}, {"label", Dtype::kI32, {}, classes}},
        images_(std::move(images)),
        labels_(std::move(labels)) {
    for (std::size_t value = 0; value < 256; ++value) scaled_[value] = (static_cast<double>(value) / 255 - mean) / deviation;
  }
  std::int64_t count() const override { return images_.dims[0]; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    if (call.field == 1) {
      auto* label = static_cast<std::int32_t*>(call.rows);
      for (std::int64_t id : call.ids) *label++ = static_cast<std::uint8_t>(labels_.bytes[static_cast<std::size_t>(id)]);
    } else if (call.dtype == Dtype::kF64) {
      Scale(call.ids, static_cast<double*>(call.rows));
    } else {
      Scale(call.ids, static_cast<float*>(call.rows));
    }
  }
  std::uint64_t content_hash() const override { return HashCombine(Checksum64(images_.bytes), Checksum64(labels_.bytes)); }

 private:
  template <class T>
  void Scale(std::span<const std::int64_t> ids, T* row) const {
    for (std::int64_t id : ids) {
      const char* pixel = images_.bytes.data() + id * pixels_;
      for (std::int64_t i = 0; i < pixels_; ++i) *row++ = static_cast<T>(scaled_[static_cast<std::uint8_t>(pixel[i])]);
    }
  }

  std::int64_t pixels_;
  std::vector<Field> fields_;
  IdxBytes images_, labels_;
  std::array<double, 256> scaled_;
};

// The file itself or its .gz.
Result<std::string> Find(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    struct stat info;
    if (std::string path = folder + "/" + name + ending; stat(path.c_str(), &info) == 0) return path;
  }
  struct stat info;
  const bool is_folder = stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return Status(Code::kNotFound, "DATA02", "there is no " + name + "[.gz] in " + QuotedPath(folder),
                is_folder ? "it is one of the four files of the data set" : "there is no such folder on this machine",
                folder == kFashionMnistFolder ? "apt install dataset-fashion-mnist, or name the folder in data.path"
                                              : "name the folder of the data set's four files in data.path");
}

Result<std::unique_ptr<Samples>> LoadPair(const std::string& folder, const std::string& prefix) {
  ASSIGN_OR_RETURN(std::string images, Find(folder, prefix + "-images-idx3-ubyte"));
  ASSIGN_OR_RETURN(std::string labels, Find(folder, prefix + "-labels-idx1-ubyte"));
  return LoadImages(images, labels, 10, kMean, kDeviation);
}

}  // namespace

Result<std::unique_ptr<Samples>> LoadImages(const std::string& images_path, const std::string& labels_path, std::int64_t classes,
                                            double mean, double deviation) {
  ASSIGN_OR_RETURN(IdxBytes images, ReadIdx(images_path));
  ASSIGN_OR_RETURN(IdxBytes labels, ReadIdx(labels_path));
  if (images.dims.size() != 3 || images.dims[0] == 0 || images.dims[1] * images.dims[2] == 0)
    return Status(Code::kUserError, "DATA01", QuotedPath(images_path) + " holds no images",
                  fmt::format("its dimensions are ({}), and samples, rows and columns are expected", fmt::join(images.dims, ", ")),
                  "name files of images");
  if (labels.dims.size() != 1 || labels.dims[0] != images.dims[0])
    return Status(Code::kUserError, "DATA01",
                  fmt::format("{} holds labels of dimensions ({})", QuotedPath(labels_path), fmt::join(labels.dims, ", ")),
                  fmt::format("there are {} images, and each has one", images.dims[0]), "name files that belong together");
  for (std::size_t i = 0; i < labels.bytes.size(); ++i) {
    int label = static_cast<std::uint8_t>(labels.bytes[i]);
    if (label >= classes)
      return Status(Code::kUserError, "DATA03", fmt::format("sample {} of {} has the label {}", i, QuotedPath(labels_path), label),
                    fmt::format("there are {} classes: labels lie in [0, {})", classes, classes), "mend the file");
  }
  return std::unique_ptr<Samples>(std::make_unique<Images>(std::move(images), std::move(labels), classes, mean, deviation));
}

Result<DataSet> LoadFashionMnist(const std::string& folder) {
  DataSet data;
  ASSIGN_OR_RETURN(data.training, LoadPair(folder, "train"));
  ASSIGN_OR_RETURN(data.held_out, LoadPair(folder, "t10k"));
  if (data.training->fields() != data.held_out->fields())
    return Status(Code::kUserError, "DATA01", "the images in " + QuotedPath(folder) + " differ in size",
                  "a model takes training and test images of one size", "name one data set's folder");
  return data;
}

}  // namespace ropewalk::mlrunner
