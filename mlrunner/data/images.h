// Images of one size with a label each, read from IDX files: Fashion-MNIST (Xiao et al. 2017), and every set that comes in its form.
//
// Thread rule: functions on files.
#pragma once

#include <memory>
#include <string>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner {

inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";  // Debian's package dataset-fashion-mnist

// train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-... in `folder`, plain or .gz; labels lie in [0, 10). Pixels are moved and
// scaled to mean 0 and deviation 1 of the training set's. kNotFound DATA02: a file is missing. kUserError DATA01, DATA03: what is wrong
// with which sample.
Result<DataSet> LoadFashionMnist(const std::string& folder);

// One pair of files; `mean` and `deviation` are those of pixel / 255.
Result<std::unique_ptr<Samples>> LoadImages(const std::string& images, const std::string& labels, std::int64_t classes, double mean,
                                            double deviation);

}  // namespace ropewalk::mlrunner
