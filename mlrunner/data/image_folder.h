// Pictures in folders, one for each class:
//
//   pets/cat/1.png  pets/cat/more/2.jpg  pets/dog/3.jpeg   ▸   3 samples of the classes cat (0) and dog (1)
//
// They are decoded when a batch asks for them, and kept decoded as far as memory is given; what is drawn (crops, mirroring) is drawn anew
// each epoch.
//
// Thread rule: as Samples; what it gives needs Fetch().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/data/augment.h"
#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

struct ImageFolderOptions {
  std::string path;
  std::string held_out_path;  // a folder with the same classes; empty: `held_out` of the pictures in `path`, drawn alike every time
  double held_out = .1;
  std::int64_t height = 32, width = 32;  // Fit() (picture.h) makes each picture so large
  bool grey = false;                     // one channel in the place of red, green, blue
  Augmentation augmentation;             // of what is trained on, not of what is held out
  std::uint64_t seed = 0;                // of the augmentation
  // Values are (pixel / 255 - mean) / deviation: one number for all channels, or one for each.
  std::vector<double> mean = {.5}, deviation = {.25};
  std::uint64_t kept_bytes_max = std::uint64_t{1} << 30;  // of decoded pictures, in memory
};

// Files whose names end in .png, .jpg or .jpeg (in letters of either case); others, and names that begin with '.' or '_', are no samples.
// A class is a folder that holds a picture, numbered in the order of their names. Which pictures there are is found out now, by name and
// size; what is in them when a batch asks: Fetch() then gives kUserError DATA13, DATA14 (picture.h) with sample and path, or what reading
// says.
// kNotFound DATA02: no such folder. kUserError DATA08: no pictures, or all are held out; DATA17: a picture that lies in no class's folder,
// or a held-out one of another class.
Result<DataSet> LoadImageFolder(const ImageFolderOptions& options);

}  // namespace ropewalk::mlrunner
