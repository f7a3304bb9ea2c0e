#include "mlrunner/train/frozen.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/train/comma_list.h"

namespace ropewalk::mlrunner {
Result<std::vector<Parameter>> WithoutFrozen(const Graph& graph, const std::vector<Parameter>& parameters, const std::string& patterns) {
  std::vector<bool> is_frozen(parameters.size());
  const auto name = [&](std::size_t i) -> const std::string& { return graph.state(parameters[i].state).name; };
  for (const std::string& pattern : CommaList(patterns)) {
    bool fits = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (fnmatch(pattern.c_str(), name(i).c_str(), 0) != 0) continue;
      fits = is_frozen[i] = true;
    }
    if (fits || parameters.empty()) continue;
    return Status(Code::kUserError, "TRAIN11", fmt::format("train.frozen: \"{}\" fits no parameter", EscapeForLog(pattern, 200)),
                  fmt::format("there are {} of them, like {} and {}", parameters.size(), name(0), name(parameters.size() - 1)),
                  "mend the pattern, or take it out: * stands for any characters");
  }
  std::vector<Parameter> trained;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!is_frozen[i]) trained.push_back(parameters[i]);
  if (trained.empty() && !parameters.empty())
    return Status(Code::kUserError, "TRAIN11", "train.frozen leaves no parameter to be trained",
                  fmt::format("all {} are frozen", parameters.size()), "leave some out of it, as those of the last layer");
  return trained;
}

}  // namespace ropewalk::mlrunner
