// Trains a model on a dataset of a batch job: an action of main, like Collect. #include <ropewalk/train.h>, target Ropewalk::train.
//
//   struct Sample {
//     std::vector<float> features;
//     std::int32_t label = 0;
//   };
//   auto samples = job.ReadLines("mail").Map(ToSample);
//   mlrunner::Trained trained = mlrunner::Train(samples, {.model = {.hidden = {64}}, .ranks = 4, .epochs = 5});
//   std::printf("loss %.4f\n", trained.summary.loss);
//
// The samples become blocks on the workers that made them, and the ranks of a gang (dag/gang.h) read them there, through memory. In which
// order they are learned from is a function of the seed and the epoch: any number of ranks trains the same thing. What is lost on the way
// is made again: blocks by their lineage, the gang from its newest checkpoint or from the start. A failure ends the program, as that of
// every action does; DATA05 to DATA08 say what is wrong with the samples, TRAIN* with the training.
//
// Thread rule: main's thread.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "dag/dataset.h"
#include "dag/run_gang.h"
#include "mlrunner/train/job.h"
#include "mlrunner/train/row.h"
#include "mlrunner/train/summary.h"

namespace ropewalk::mlrunner {

struct TrainOptions {
  std::int64_t classes = 0;                      // labels lie in [0, classes); 0: one more than the largest label of the samples
  std::uint64_t whole_bytes_max = 64ull << 20;   // each rank keeps a dataset of so many bytes whole; of a larger one its share of an epoch
  std::uint64_t placement_timeout_ms = 300'000;  // how long the ranks may wait for their slots; 0: as long as it takes
  bool spread = false;                           // over as many machines as there are, else on as few as have room
  std::uint32_t restarts_max = 20;               // times in a row, without a checkpoint between, that ranks may be lost
};

// All numbers of one parameter, row-major.
struct TrainedParameter {
  std::vector<std::int64_t> dims;
  std::vector<double> values;
  friend bool operator==(const TrainedParameter&, const TrainedParameter&) = default;
};

struct Trained {
  TrainSummary summary;  // held_out_* are 0 where nothing was held out
  // Of each step from `losses_from` on: 0 unless it went on from a checkpoint, which holds the losses of the 65,536 steps before it; where
  // `ropewalk train` or an older version wrote that, it holds none.
  std::vector<double> losses;
  std::int64_t losses_from = 0;
  std::map<std::string, TrainedParameter> parameters;  // of an MLP: "layer0/linear/w" (in, out), "layer0/linear/b", ... "out/w", "out/b"
};

namespace train_internal {

template <class T>
concept IsSample = requires(const T& sample) {
  requires std::is_arithmetic_v<std::remove_cvref_t<decltype(*std::begin(sample.features))>>;
  requires std::is_integral_v<std::remove_cvref_t<decltype(sample.label)>> || std::is_enum_v<std::remove_cvref_t<decltype(sample.label)>>;
};

// Its record, as the ranks read it.
template <class T>
std::string RowOf(const T& sample) {
  std::vector<float> features;
  for (auto feature : sample.features) features.push_back(static_cast<float>(feature));
  return EncodeRow(static_cast<std::int64_t>(sample.label), features);
}

template <class T, class Pipe>
dag::Dataset<std::string> RowsOf(const dag::Dataset<T, Pipe>& samples, dag::Site site) {
  static_assert(IsSample<T>,
                "Train: a sample has two members: `features`, a range of numbers (std::vector<float>, std::array<float, 16>...), and "
                "`label`, a whole number from 0 on; Map to such a struct first");
  return dag::Dataset<std::string>(samples.Map([](const T& sample) { return RowOf(sample); }, site), site);
}

Trained TrainOnRows(const dag::Dataset<std::string>& rows, const dag::Dataset<std::string>* held_out, const TrainJob& job,
                    const TrainOptions& options, dag::Site site);

}  // namespace train_internal

// Trains `job.model` on `job.ranks` ranks; what `job.data` says plays no part. kInvalid SPEC02: values that make no sense; TRAIN05: a model
// that does not learn from features and a label.
template <class T, class Pipe>
Trained Train(const dag::Dataset<T, Pipe>& samples, const TrainJob& job, const TrainOptions& options = {},
              dag::Site site = dag::Site::Here()) {
  return train_internal::TrainOnRows(train_internal::RowsOf(samples, site), nullptr, job, options, site);
}

// The same, and counts at the end what the model gets right of samples that it was not trained on.
template <class T, class Pipe, class U, class OtherPipe>
Trained Train(const dag::Dataset<T, Pipe>& samples, const dag::Dataset<U, OtherPipe>& held_out, const TrainJob& job,
              const TrainOptions& options = {}, dag::Site site = dag::Site::Here()) {
  const dag::Dataset<std::string> counted = train_internal::RowsOf(held_out, site);
  return train_internal::TrainOnRows(train_internal::RowsOf(samples, site), &counted, job, options, site);
}

}  // namespace ropewalk::mlrunner
