// What a training says of its steps to files: a line of JSON for each step, evaluation and skipped step, and scalars for TensorBoard.
//
//   {"step":12,"epoch":0,"loss":0.61,"learning_rate":0.05,"gradient_norm":1.2,"samples_per_s":36115,"seconds":{"all":...,"data":...}}
//   {"step":500,"held_out_loss":0.42,"held_out_accuracy":0.87,"is_best":true}
//   {"step":731,"skipped":"the loss is nan"}
//   {"step":800,"straggler":{"rank":2,"machine":"w2","ratio":2.1}}
//
// "step" counts the steps that were made, this one included. What is no number is null. Files that are there grow: a training that goes on
// from a checkpoint says some steps twice, and the last line of a step is the one that counts.
//
// Owner: rank 0's trainer. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/train/anatomy.h"
#include "mlrunner/train/event_file.h"
#include "mlrunner/train/stragglers.h"

namespace ropewalk::mlrunner {

struct StepFigures {
  std::int64_t step = 0, epoch = 0;
  double loss = 0, learning_rate = 0;
  double gradient_norm = 0;                            // of all gradients, before they are clipped
  double samples_per_s = 0;                            // of this step, of all ranks
  std::vector<std::pair<std::string, double>> more{};  // what the model's family counts, by name
  double batch_seconds = 0;                            // to make this rank's batch, perhaps while an earlier step computed
  StepSeconds seconds;                                 // of this rank
};

struct Evaluation {
  std::int64_t step = 0;
  double loss = 0;  // the mean over all held-out labels
  std::int64_t hits = 0, labels = 0;
  double auc = std::numeric_limits<double>::quiet_NaN();  // of models that judge; others have none, and no line says it
  bool is_best = false;                                   // so far
};

class Metrics {
 public:
  // Either may be empty: there is no such file then. TRAIN07: one cannot be written.
  static Result<std::unique_ptr<Metrics>> Open(const std::string& lines_path, const std::string& events_folder);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // TRAIN07: they could not be written. At most a second of them lies in memory.
  Status Add(const StepFigures& figures);
  Status Add(const Evaluation& evaluation);
  Status AddSkipped(std::int64_t step, const std::string& why);
  Status AddStraggler(std::int64_t step, const Straggler& straggler, const std::string& machine);
  Status Flush();

 private:
  explicit Metrics(std::string path) : path_(std::move(path)) {}
  Status Line(const std::string& line);
  std::string path_;
  std::FILE* lines_ = nullptr;
  std::unique_ptr<EventFile> events_;
  std::int64_t flushed_ms_ = 0;
};

}  // namespace ropewalk::mlrunner
