#include "mlrunner/train/step_recorder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <utility>

#include "mlrunner/train/anatomy.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kTracedStep = 10;  // by then memory and threads are warm
// A training of a few seconds is not made longer by measuring what its machine could do.
constexpr double kPeakAfterSeconds = 10;

}  // namespace

StepRecorder::StepRecorder(Options options)
    : options_(std::move(options)), stragglers_({options_.job->straggler_ratio, options_.job->straggler_steps}) {}

Result<std::unique_ptr<StepRecorder>> StepRecorder::Open(Options options) {
  std::unique_ptr<StepRecorder> recorder(new StepRecorder(std::move(options)));
  const TrainJob& job = *recorder->options_.job;
  if (!job.trace.empty()) RETURN_IF_ERROR(recorder->WriteTrace(""));
  recorder->anatomy_.step_flops = recorder->options_.step_flops;
  if (job.anatomy) RETURN_IF_ERROR(recorder->FindPeak());
  if (recorder->options_.gang->rank() == 0 && !(job.metrics.empty() && job.tensorboard.empty())) {
    ASSIGN_OR_RETURN(recorder->files_, Metrics::Open(job.metrics, job.tensorboard));
  }
  return recorder;
}

// It is of products of f32.
Status StepRecorder::FindPeak() {
  if (options_.job->dtype != Dtype::kF32) return {};
  ASSIGN_OR_RETURN(anatomy_.peak_flops, options_.peak_flops());
  return {};
}

Status StepRecorder::Step(const std::vector<OpTime>& times, StepFigures figures) {
  AddTimes(times, &figures.seconds);
  for (auto part : {&StepSeconds::all, &StepSeconds::data, &StepSeconds::compute, &StepSeconds::communication, &StepSeconds::optimizer})
    anatomy_.seconds.*part += figures.seconds.*part;
  if (!options_.job->trace.empty() && anatomy_.steps <= kTracedStep) trace_ = ChromeTrace(times, options_.gang->rank(), figures.step);
  ++anatomy_.steps;
  if (anatomy_.peak_flops == 0 && anatomy_.seconds.all > kPeakAfterSeconds && !std::exchange(looked_for_peak_, true)) {
    // No reason to end a training by it.
    if (const Status status = FindPeak(); !status.ok()) options_.warn("MFU will not be known: " + status.what());
  }
  Measure(figures);
  RETURN_IF_ERROR(LookForStragglers(figures));
  return files_ == nullptr ? Status() : files_->Add(figures);
}

void StepRecorder::Measure(const StepFigures& figures) {
  dag::GangContext& gang = *options_.gang;
  const auto step = static_cast<std::uint64_t>(figures.step);
  const StepSeconds& seconds = figures.seconds;
  const dag::GangFigure anatomy[] = {{"s/step", seconds.all},
                                     {"s/compute", seconds.compute},
                                     {"s/communication", seconds.communication},
                                     {"s/data", seconds.data},
                                     {"s/optimizer", seconds.optimizer}};
  gang.Measure("anatomy", step, anatomy);
  if (gang.rank() != 0) return;
  const double none = std::numeric_limits<double>::quiet_NaN(), could = anatomy_.peak_flops * seconds.all;
  std::vector<dag::GangFigure> of_step = {{"loss", figures.loss},
                                          {"epoch", static_cast<double>(figures.epoch)},
                                          {"learning_rate", figures.learning_rate},
                                          {"gradient_norm", figures.gradient_norm},
                                          {"samples_per_s", figures.samples_per_s},
                                          {"mfu", could > 0 ? anatomy_.step_flops / could : none}};
  for (const auto& [name, value] : figures.more) of_step.push_back({name, value});
  gang.Measure("step", step, of_step);
}

Status StepRecorder::LookForStragglers(const StepFigures& figures) {
  if (options_.ranks == nullptr) return {};
  const double computes = figures.seconds.compute + figures.seconds.optimizer, makes = figures.batch_seconds;
  if (!stragglers_.Add({options_.job->prefetch > 0 ? std::max(computes, makes) : computes + makes, makes})) return {};
  // Each rank's numbers in places of their own, so that their sum is all of them.
  const auto ranks = static_cast<std::size_t>(options_.ranks->ranks()), mine = static_cast<std::size_t>(options_.ranks->rank());
  std::vector<double> numbers(2 * ranks);
  const OwnSeconds medians = stragglers_.TakeMedians();
  numbers[2 * mine] = medians.all;
  numbers[2 * mine + 1] = medians.data;
  RETURN_IF_ERROR(options_.ranks->AllReduce({.in = numbers.data(),
                                             .out = numbers.data(),
                                             .count = static_cast<std::int64_t>(numbers.size()),
                                             .dtype = Dtype::kF64,
                                             .name = "stragglers"}));
  if (mine != 0) return {};
  std::vector<OwnSeconds> of_all;
  for (std::size_t rank = 0; rank < ranks; ++rank) of_all.push_back({numbers[2 * rank], numbers[2 * rank + 1]});
  const StragglerWatch::News news = stragglers_.Judge(of_all);
  const auto step = static_cast<std::uint64_t>(figures.step);
  for (const Straggler& slow : news.slow) {
    const std::string& machine = options_.machines[static_cast<std::size_t>(slow.rank)];
    const std::string text = ToString(slow, machine);
    options_.warn(text);
    options_.gang->Notice({"straggler", slow.rank, machine, step, slow.ratio, text});
    if (files_ != nullptr) RETURN_IF_ERROR(files_->AddStraggler(figures.step, slow, machine));
  }
  for (const std::int32_t rank : news.over) {
    const std::string& machine = options_.machines[static_cast<std::size_t>(rank)];
    options_.gang->Notice(
        {"straggler_over", rank, machine, step, 1, "rank " + std::to_string(rank) + " on " + machine + " keeps up again"});
  }
  return {};
}

Status StepRecorder::Skipped(std::int64_t step, const std::string& why) {
  return files_ == nullptr ? Status() : files_->AddSkipped(step, why);
}

Status StepRecorder::Evaluated(const Evaluation& evaluation) {
  if (options_.gang->rank() == 0) {
    const double accuracy = evaluation.labels == 0 ? std::numeric_limits<double>::quiet_NaN()
                                                   : static_cast<double>(evaluation.hits) / static_cast<double>(evaluation.labels);
    const dag::GangFigure figures[] = {
        {"held_out_loss", evaluation.loss}, {"held_out_accuracy", accuracy}, {"held_out_auc", evaluation.auc}};
    options_.gang->Measure("evaluation", static_cast<std::uint64_t>(evaluation.step), figures);
  }
  return files_ == nullptr ? Status() : files_->Add(evaluation);
}

Status StepRecorder::Finish() { return trace_.empty() ? Status() : WriteTrace(trace_); }

Status StepRecorder::Flush() { return files_ == nullptr ? Status() : files_->Flush(); }

Status StepRecorder::WriteTrace(const std::string& text) const {
  const std::int32_t rank = options_.gang->rank();
  const std::string path = options_.job->trace + (rank == 0 ? "" : ".rank" + std::to_string(rank));
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return Status(Code::kUserError, "TRAIN07", "the trace of a step cannot be written to " + storage::QuotedPath(path),
                "its folder is missing, full or not ours", "name another file in train.trace");
}

}  // namespace ropewalk::mlrunner
