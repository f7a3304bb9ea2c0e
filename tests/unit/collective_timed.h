// Runs in virtual time of which it is said how long they take.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <ctime>
#include <iostream>
#include <string_view>

#include "mlrunner/collective/simulate.h"

namespace ropewalk::collective::testing {

inline SimulateReport Timed(std::string_view algorithm, const Request& request, const SimulateOptions& options) {
  const std::clock_t start = std::clock();
  auto report = Simulate(algorithm, request, options);
  const double took_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  if (!report.ok()) return {};
  std::cout << algorithm << ", " << request.ranks << " ranks: " << report->network.messages << " messages, " << report->events
            << " events, " << report->programs_kept << " programs of " << report->steps_kept << " steps in all kept, " << took_s << " s\n";
  return *report;
}

}  // namespace ropewalk::collective::testing
