// What allreduces took beside what the link model predicts for them: for each way to run one, measured over predicted at a few lengths
// (measure_corrections.h takes them). The model says how a plan's time grows with its length and why; what it does not know, such as caches
// or ranks that share processors, is in these factors.
//
// Between two lengths the logarithm of a factor is a line over that of the length; before the first and beyond the last it stays. A way
// that was not measured has the factor of the same algorithm in other segments or on other channels, and an algorithm that was not measured
// the median of all: beside corrected ones an uncorrected one would look better or worse than it is.
//
// Thread rule: a value; const use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/plan.h"
#include "mlrunner/collective/run/choose.h"

namespace ropewalk::collective {

class Corrections {
 public:
  struct Point {
    std::int64_t bytes = 0;
    double factor = 1;  // above 0
    bool operator==(const Point&) const = default;
  };
  struct Curve {
    std::string algorithm;
    std::int64_t segment_bytes = 0;
    std::int32_t channels = 1;
    std::vector<Point> points;  // one at least; longer ones follow
    bool operator==(const Curve&) const = default;
  };

  // Lengths of a choice come in ascending order.
  void Add(const Choice& choice, std::int64_t bytes, double factor);
  const std::vector<Curve>& curves() const { return curves_; }
  bool empty() const { return curves_.empty(); }

  // What the model's time is to be multiplied with for an allreduce of vectors of `bytes`. 1 where nothing was measured.
  double FactorOf(const Choice& choice, std::int64_t bytes) const;
  // Of a plan's call of `count` elements. 1 for any other collective.
  double FactorOf(const Header& header, std::int64_t count) const;

  bool operator==(const Corrections&) const = default;

 private:
  std::vector<Curve> curves_;
};

// As bytes that travel and lie in files. kDataLoss (COLL35) for what is none, or has factors that no measurement gives.
std::string Encode(const Corrections& corrections);
Result<Corrections> DecodeCorrections(std::string_view bytes);

}  // namespace ropewalk::collective
