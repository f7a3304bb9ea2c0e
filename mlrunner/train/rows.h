// Samples that a batch job has computed: rows of features and a label, in the segments of a stage that all ranks may read.
//
//   partitions ─▶ rows 0, 1, 2... in the order of the partitions ─▶ a rank keeps those that it will ask for in this epoch
//
// A small dataset is kept whole and read once. Of a larger one each rank holds its share of an epoch, whatever order that has, and reads
// the blocks again for the next: its memory is a part of the data, its price one pass over the blocks an epoch.
//
// Thread rule: as Samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "dag/task.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/train/row.h"

namespace ropewalk::mlrunner {

struct RowsOptions {
  std::string name = "the dataset";             // in errors
  std::int64_t classes = 0;                     // labels lie in [0, classes); 0: one more than the largest
  std::int64_t width = 0;                       // features of a row; 0: as many as the first row has
  std::uint64_t whole_bytes_max = 64ull << 20;  // a dataset of more is not kept whole
};

// Looks at all rows of `stage` once. `context` must outlive the samples. kUserError DATA05: rows of different widths, or without features;
// DATA06: a label that is no class; DATA07: a feature that is no number; DATA08: there are no rows. kDataLoss, kUnavailable, kCancelled: as
// reading blocks gives them.
Result<std::unique_ptr<Samples>> SurveyRows(dag::TaskContext& context, StageId stage, RowsOptions options);

}  // namespace ropewalk::mlrunner
