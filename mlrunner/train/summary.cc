#include "mlrunner/train/summary.h"

#include "base/bytes.h"

namespace ropewalk::mlrunner {

// Field by field: the bytes of a result are compared, and padding would differ.
std::string Encode(const TrainSummary& summary) {
  std::string bytes;
  ByteWriter writer(&bytes);
  for (std::int64_t number : {summary.steps, summary.resumed_from, summary.held_out_hits, summary.held_out_labels}) writer.Fixed(number);
  writer.Sized(summary.labels_are);
  for (double number : {summary.loss, summary.seconds, summary.samples_per_s, summary.held_out_loss}) writer.Fixed(number);
  return bytes;
}

Result<TrainSummary> DecodeTrainSummary(const std::string& bytes) {
  ByteReader reader(bytes);
  TrainSummary summary;
  for (std::int64_t* number : {&summary.steps, &summary.resumed_from, &summary.held_out_hits, &summary.held_out_labels})
    *number = reader.Fixed<std::int64_t>();
  summary.labels_are = reader.Sized();
  for (double* number : {&summary.loss, &summary.seconds, &summary.samples_per_s, &summary.held_out_loss}) *number = reader.Fixed<double>();
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "the summary of a training cannot be read");
  return summary;
}

}  // namespace ropewalk::mlrunner
