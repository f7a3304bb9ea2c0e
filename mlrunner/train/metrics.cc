#include "mlrunner/train/metrics.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kFlushMs = 1000;

std::string Number(double number) { return std::isfinite(number) ? fmt::format("{}", number) : "null"; }

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Status NotWritten(const std::string& path, int error) {
  const Status io = storage::IoError(error, "TRAIN07", "");
  return Status(io.code(), "TRAIN07", "metrics cannot be written to " + storage::QuotedPath(path), io.why(),
                "name a file in a folder that is there and can be written to, or leave train.metrics out");
}

}  // namespace

Result<std::unique_ptr<Metrics>> Metrics::Open(const std::string& lines_path, const std::string& events_folder) {
  std::unique_ptr<Metrics> metrics(new Metrics(lines_path));
  if (!lines_path.empty()) {
    metrics->lines_ = std::fopen(lines_path.c_str(), "ae");
    if (metrics->lines_ == nullptr) return NotWritten(lines_path, errno);
  }
  if (!events_folder.empty()) {
    ASSIGN_OR_RETURN(metrics->events_, EventFile::Open(events_folder));
  }
  return metrics;
}

Metrics::~Metrics() {
  if (lines_ != nullptr) (void)std::fclose(lines_);  // a failure was said by Flush
}

Status Metrics::Line(const std::string& line) {
  if (lines_ != nullptr && std::fwrite(line.data(), 1, line.size(), lines_) != line.size()) return NotWritten(path_, errno);
  return NowMs() - flushed_ms_ < kFlushMs ? Status() : Flush();
}

Status Metrics::Flush() {
  flushed_ms_ = NowMs();
  if (lines_ != nullptr && std::fflush(lines_) != 0) return NotWritten(path_, errno);
  return events_ == nullptr ? Status() : events_->Flush();
}

Status Metrics::Add(const StepFigures& f) {
  if (events_ != nullptr) {
    RETURN_IF_ERROR(events_->Add(f.step, {{"train/loss", f.loss},
                                          {"train/learning_rate", f.learning_rate},
                                          {"train/gradient_norm", f.gradient_norm},
                                          {"train/samples_per_s", f.samples_per_s},
                                          {"seconds/step", f.seconds.all},
                                          {"seconds/data", f.seconds.data},
                                          {"seconds/compute", f.seconds.compute},
                                          {"seconds/communication", f.seconds.communication},
                                          {"seconds/optimizer", f.seconds.optimizer}}));
  }
  std::string more;
  for (const auto& [name, value] : f.more) {
    more += fmt::format("{}:{},", JsonString(name), Number(value));
    if (events_ != nullptr) RETURN_IF_ERROR(events_->Add(f.step, {{"train/" + name, value}}));
  }
  return Line(fmt::format(
      "{{\"step\":{},\"epoch\":{},\"loss\":{},\"learning_rate\":{},\"gradient_norm\":{},\"samples_per_s\":{},{}\"seconds\":{{\"all\":{},"
      "\"data\":{},\"compute\":{},\"communication\":{},\"optimizer\":{}}}}}\n",
      f.step, f.epoch, Number(f.loss), Number(f.learning_rate), Number(f.gradient_norm), Number(f.samples_per_s), more,
      Number(f.seconds.all), Number(f.seconds.data), Number(f.seconds.compute), Number(f.seconds.communication),
      Number(f.seconds.optimizer)));
}

Status Metrics::Add(const Evaluation& e) {
  const double accuracy = e.labels == 0 ? std::nan("") : static_cast<double>(e.hits) / static_cast<double>(e.labels);
  const bool judges = !std::isnan(e.auc);
  if (events_ != nullptr) RETURN_IF_ERROR(events_->Add(e.step, {{"held_out/loss", e.loss}, {"held_out/accuracy", accuracy}}));
  if (events_ != nullptr && judges) RETURN_IF_ERROR(events_->Add(e.step, {{"held_out/auc", e.auc}}));
  RETURN_IF_ERROR(Line(fmt::format("{{\"step\":{},\"held_out_loss\":{},\"held_out_accuracy\":{}{},\"is_best\":{}}}\n", e.step,
                                   Number(e.loss), Number(accuracy), judges ? ",\"held_out_auc\":" + Number(e.auc) : "", e.is_best)));
  return Flush();
}

Status Metrics::AddSkipped(std::int64_t step, const std::string& why) {
  return Line(fmt::format("{{\"step\":{},\"skipped\":{}}}\n", step, JsonString(why)));
}

Status Metrics::AddStraggler(std::int64_t step, const Straggler& straggler, const std::string& machine) {
  return Line(fmt::format("{{\"step\":{},\"straggler\":{{\"rank\":{},\"machine\":{},\"ratio\":{}}}}}\n", step, straggler.rank,
                          JsonString(machine), Number(straggler.ratio)));
}

}  // namespace ropewalk::mlrunner
