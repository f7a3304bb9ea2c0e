// What the ranks of a job have measured, as people and programs see it.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "job/options.h"
#include "storage/metrics.h"

namespace ropewalk::cli {

// `of` is how the job or file is called. `rank`: of that one only. As a table, a series of one rank has a row for each point, one of
// several ranks a row for each rank with the means over all of its steps. As JSON one object; as lines of JSON one for each point and
// notice.
std::string ShowMetrics(const std::string& of, const storage::Metrics& metrics, std::optional<std::uint32_t> rank, job::OutputForm form);

}  // namespace ropewalk::cli
