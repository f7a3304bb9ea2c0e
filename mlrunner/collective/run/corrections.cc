#include "mlrunner/collective/run/corrections.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/bytes.h"

namespace ropewalk::collective {
namespace {

double At(const std::vector<Corrections::Point>& points, std::int64_t bytes) {
  const auto above = std::find_if(points.begin(), points.end(), [&](const Corrections::Point& point) { return point.bytes >= bytes; });
  if (above == points.end()) return points.back().factor;
  if (above == points.begin()) return above->factor;
  const Corrections::Point& below = *std::prev(above);
  auto log_of = [](std::int64_t length) { return std::log(static_cast<double>(length)); };
  const double part = (log_of(bytes) - log_of(below.bytes)) / (log_of(above->bytes) - log_of(below.bytes));
  return below.factor * std::pow(above->factor / below.factor, part);
}

bool IsFactor(double number) { return std::isfinite(number) && number > 0; }

}  // namespace

void Corrections::Add(const Choice& choice, std::int64_t bytes, double factor) {
  auto curve = std::find_if(curves_.begin(), curves_.end(), [&](const Curve& one) {
    return one.algorithm == choice.algorithm && one.segment_bytes == choice.segment_bytes && one.channels == choice.channels;
  });
  if (curve == curves_.end())
    curve = curves_.insert(
        curves_.end(),
        {.algorithm = std::string(choice.algorithm), .segment_bytes = choice.segment_bytes, .channels = choice.channels, .points = {}});
  if (!IsFactor(factor) || (!curve->points.empty() && curve->points.back().bytes >= bytes)) std::abort();
  curve->points.push_back({bytes, factor});
}

double Corrections::FactorOf(const Choice& choice, std::int64_t bytes) const {
  const Curve* akin = nullptr;
  std::vector<double> all;
  for (const Curve& curve : curves_) {
    all.push_back(At(curve.points, bytes));
    if (curve.algorithm != choice.algorithm) continue;
    if (curve.segment_bytes == choice.segment_bytes && curve.channels == choice.channels) return all.back();
    if (akin == nullptr || (akin->channels != choice.channels && curve.channels == choice.channels)) akin = &curve;
  }
  if (akin != nullptr) return At(akin->points, bytes);
  if (all.empty()) return 1;
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

double Corrections::FactorOf(const Header& header, std::int64_t count) const {
  const Request& request = header.request;
  if (request.collective != Collective::kAllreduce) return 1;
  return FactorOf({.algorithm = header.algorithm, .segment_bytes = request.segment_bytes, .channels = request.channels},
                  count * static_cast<std::int64_t>(SizeOf(request.dtype)));
}

std::string Encode(const Corrections& corrections) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Varint(corrections.curves().size());
  for (const Corrections::Curve& curve : corrections.curves()) {
    writer.Sized(curve.algorithm);
    writer.Fixed(curve.segment_bytes);
    writer.Fixed(curve.channels);
    writer.Varint(curve.points.size());
    for (const Corrections::Point& point : curve.points) {
      writer.Fixed(point.bytes);
      writer.Fixed(point.factor);
    }
  }
  return bytes;
}

Result<Corrections> DecodeCorrections(std::string_view bytes) {
  ByteReader reader(bytes);
  Corrections corrections;
  bool is_well = true;
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok() && is_well; --left) {
    const std::string_view algorithm = reader.Sized();
    const auto segment_bytes = reader.Fixed<std::int64_t>();
    const auto channels = reader.Fixed<std::int32_t>();
    std::uint64_t points = reader.Varint();
    is_well = !algorithm.empty() && segment_bytes >= 0 && channels > 0 && points > 0;
    for (std::int64_t last_bytes = 0; points > 0 && reader.ok() && is_well; --points) {
      const auto length = reader.Fixed<std::int64_t>();
      const auto factor = reader.Fixed<double>();
      is_well = length > std::exchange(last_bytes, length) && IsFactor(factor);
      if (is_well) corrections.Add({.algorithm = algorithm, .segment_bytes = segment_bytes, .channels = channels}, length, factor);
    }
  }
  if (reader.ok() && reader.empty() && is_well) return corrections;
  return Status(Code::kDataLoss, "COLL35", "the corrections of predicted times cannot be read",
                is_well ? "bytes are missing or too many" : "one of them is none that a measurement could give", "measure them again");
}

}  // namespace ropewalk::collective
