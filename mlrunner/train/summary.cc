#include "mlrunner/train/summary.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace ropewalk::mlrunner {

std::string Encode(const RankAnatomy& a) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(a.steps);
  for (double number :
       {a.seconds.all, a.seconds.data, a.seconds.compute, a.seconds.communication, a.seconds.optimizer, a.step_flops, a.peak_flops})
    writer.Fixed(number);
  return bytes;
}

Result<RankAnatomy> DecodeRankAnatomy(const std::string& bytes) {
  ByteReader reader(bytes);
  RankAnatomy a;
  a.steps = reader.Fixed<std::int64_t>();
  for (double* number :
       {&a.seconds.all, &a.seconds.data, &a.seconds.compute, &a.seconds.communication, &a.seconds.optimizer, &a.step_flops, &a.peak_flops})
    *number = reader.Fixed<double>();
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "where a rank's time went cannot be read");
  return a;
}

std::string ToString(const RankAnatomy& a) {
  if (a.steps == 0) return "no steps";
  const double each = 1e3 / static_cast<double>(a.steps), step_ms = a.seconds.all * each;
  std::string text =
      fmt::format("{:.2f} ms a step: compute {:.2f}, exposed communication {:.2f}, data {:.2f}, optimiser {:.2f}", step_ms,
                  a.seconds.compute * each, a.seconds.communication * each, a.seconds.data * each, a.seconds.optimizer * each);
  if (a.peak_flops > 0 && step_ms > 0)
    text += fmt::format("; MFU {:.1f}% = {:.3g} GFLOP / ({:.2f} ms x {:.0f} GFLOP/s)", 100 * a.step_flops / (step_ms * 1e-3 * a.peak_flops),
                        a.step_flops * 1e-9, step_ms, a.peak_flops * 1e-9);
  return text;
}

// Field by field: the bytes of a result are compared, and padding would differ.
std::string Encode(const TrainSummary& summary) {
  std::string bytes;
  ByteWriter writer(&bytes);
  for (std::int64_t number : {summary.steps, summary.resumed_from, summary.held_out_hits, summary.held_out_labels, summary.skipped,
                              summary.best_step, std::int64_t{summary.stopped_early}})
    writer.Fixed(number);
  writer.Sized(summary.labels_are);
  for (double number :
       {summary.loss, summary.seconds, summary.samples_per_s, summary.held_out_loss, summary.held_out_auc, summary.best_loss})
    writer.Fixed(number);
  writer.Fixed(static_cast<std::uint64_t>(summary.anatomy.size()));
  for (const RankAnatomy& rank : summary.anatomy) writer.Sized(Encode(rank));
  return bytes;
}

Result<TrainSummary> DecodeTrainSummary(const std::string& bytes) {
  ByteReader reader(bytes);
  TrainSummary summary;
  for (std::int64_t* number :
       {&summary.steps, &summary.resumed_from, &summary.held_out_hits, &summary.held_out_labels, &summary.skipped, &summary.best_step})
    *number = reader.Fixed<std::int64_t>();
  summary.stopped_early = reader.Fixed<std::int64_t>() != 0;
  summary.labels_are = reader.Sized();
  for (double* number :
       {&summary.loss, &summary.seconds, &summary.samples_per_s, &summary.held_out_loss, &summary.held_out_auc, &summary.best_loss})
    *number = reader.Fixed<double>();
  for (auto left = reader.Fixed<std::uint64_t>(); left > 0 && reader.ok(); --left) {
    ASSIGN_OR_RETURN(RankAnatomy rank, DecodeRankAnatomy(std::string(reader.Sized())));
    summary.anatomy.push_back(rank);
  }
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "the summary of a training cannot be read");
  return summary;
}

}  // namespace ropewalk::mlrunner
