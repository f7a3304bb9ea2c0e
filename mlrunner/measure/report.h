// What `ropewalk bench collective` found: for people, for programs, and as it travels from rank 0 to main.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/link_model.h"
#include "mlrunner/measure/job.h"

namespace ropewalk::measure {

// One algorithm at one size over one wire. Times are of the slowest rank in each iteration, from a barrier on.
struct Point {
  std::string algorithm, wire;  // "shared", "tcp"
  bool is_chosen = false;       // a call that names no algorithm would run by it
  std::int64_t bytes = 0, count = 0, iterations = 0;
  double median_us = 0, p95_us = 0, least_us = 0, predicted_us = 0;
  std::int64_t wrong = -1;  // elements of all ranks that are not what they should be; -1: not checked
  std::string first_wrong;  // "rank 2: element 7 is 3 and should be 4"
};

struct WireReport {
  std::string wire;
  collective::LinkModel model;
};

// What was chosen by predicted times, and why.
struct ChoiceReport {
  std::string wire;
  std::int64_t bytes = 0;
  std::string text;
};

struct BenchReport {
  std::int32_t machines = 1;
  std::vector<WireReport> wires;
  std::vector<ChoiceReport> choices;  // none: by fixed sizes
  std::vector<Point> points;
};
std::string Encode(const BenchReport& report);
Result<BenchReport> DecodeBenchReport(const std::string& bytes);

// The least of the sorted numbers that at least `fraction` of them do not exceed: .5 gives the median. 0 of none.
double Quantile(const std::vector<double>& sorted, double fraction);

// Lines that begin with '#' say what was measured and the costs of messages; then the table.
std::string AsTable(const BenchJob& job, const BenchReport& report);
// One object in one line.
std::string AsJson(const BenchJob& job, const BenchReport& report);
// One line for each point.
std::string AsJsonLines(const BenchJob& job, const BenchReport& report);
// Bus bandwidth (where there is none, time) by size: measured in full lines, predicted in broken ones.
std::string AsSvg(const BenchJob& job, const BenchReport& report);

// Not OK (BENCH22) when a result was wrong; names size and algorithm of the first and how many points are concerned.
Status CheckRight(const BenchReport& report);

}  // namespace ropewalk::measure
