#include "mlrunner/data/image_folder.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

// "0.485, 0.456, 0.406": one number, or one for each channel.
std::optional<std::vector<double>> Decimals(const std::string& text) {
  std::vector<double> numbers;
  const char *at = text.data(), *end = at + text.size();
  for (;;) {
    while (at < end && *at == ' ') ++at;
    double number = 0;
    const auto [behind, error] = std::from_chars(at, end, number);
    if (error != std::errc() || !std::isfinite(number)) return {};
    numbers.push_back(number);
    at = behind;
    while (at < end && *at == ' ') ++at;
    if (at == end) return numbers;
    if (*at++ != ',') return {};
  }
}

Status Fits(const KeyValues& keys) {
  if (keys.Numbers("size").size() != 2) return keys.Bad("size", "it is a height and a width", "say \"32, 32\", or sizes of your own");
  const std::size_t channels = keys.Switch("grey") ? 1 : 3;
  for (const char* key : {"mean", "deviation"}) {
    const auto numbers = Decimals(keys.Text(key));
    if (!numbers || (numbers->size() != 1 && numbers->size() != channels))
      return keys.Bad(key, "it is one number, or one for each channel: \"0.485, 0.456, 0.406\"");
    for (double number : *numbers)
      if (key == std::string_view("deviation") && number <= 0) return keys.Bad(key, "what is divided by is above 0");
  }
  return {};
}

Result<DataSet> Load(const DataRequest& r) {
  const std::vector<std::int64_t> size = r.keys.Numbers("size");
  return LoadImageFolder({.path = r.path,
                          .held_out_path = r.keys.Text("held_out_path"),
                          .held_out = r.keys.Decimal("held_out"),
                          .height = size[0],
                          .width = size[1],
                          .grey = r.keys.Switch("grey"),
                          .augmentation = {.padding = r.keys.Number("crop_padding"), .mirror = r.keys.Switch("mirror")},
                          .seed = r.seed,
                          .mean = *Decimals(r.keys.Text("mean")),
                          .deviation = *Decimals(r.keys.Text("deviation")),
                          .kept_bytes_max = static_cast<std::uint64_t>(r.keys.Number("memory"))});
}

}  // namespace

const DataFamily& ImageFolderFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "image-folder",
      .help = "PNG and JPEG files, a folder for each class",
      .gives = {SampleKind::kImages},
      .keys = {{"size", kNumbers, "32, 32", "height and width that each picture is fitted into", 1, 4096},
               {"grey", kSwitch, "false", "one channel in the place of red, green, blue"},
               {"mean", kText, "0.5", "taken from pixel / 255: one number, or one for each channel"},
               {"deviation", kText, "0.25", "what that is divided by"},
               {"crop_padding", kNumber, "0", "pixels of black around a picture, from which a part of its size is cut out", 0, 1024},
               {"mirror", kSwitch, "false", "one picture of two is mirrored, left and right"},
               {"held_out", kDecimal, "0.1", "part of the pictures that is not trained on", 0, 1},
               {.name = "held_out_path",
                .type = kText,
                .fallback = "",
                .help = "folder of those that are not trained on; empty: data.held_out of data.path",
                .is_path = true},
               {"memory", kBytes, "1G", "for decoded pictures on each rank; others are decoded each time", 0, 1e15}},
      .path_is = "folder of the classes' folders",
      .default_path = "",
      .check = Fits,
      .load = Load,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
