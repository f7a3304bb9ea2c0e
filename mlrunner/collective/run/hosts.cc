#include "mlrunner/collective/run/hosts.h"

#include <algorithm>
#include <cstddef>

#include "base/escape.h"

namespace ropewalk::collective {
namespace {

constexpr std::size_t kNameBytesMax = 64;
// More would make a status that nobody reads.
constexpr std::size_t kShownMax = 8;

// The numbers that follow "rank " in it, in their order.
std::vector<std::size_t> RanksIn(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  std::vector<std::size_t> ranks;
  for (std::size_t at = text.find(kRank); at != std::string_view::npos; at = text.find(kRank, at)) {
    at += kRank.size();
    std::size_t rank = 0, digits = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && digits < 9; ++at, ++digits)
      rank = 10 * rank + static_cast<std::size_t>(text[at] - '0');
    if (digits > 0 && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::string HostOf(std::string_view machine, std::string_view address) {
  const std::string where = EscapeForLog(address, kNameBytesMax);
  return machine.empty() ? where : "\"" + EscapeForLog(machine, kNameBytesMax) + "\" (" + where + ")";
}

Status WithHosts(const Status& why, const Hosts& hosts) {
  std::string more;
  std::size_t shown = 0;
  for (std::size_t rank : RanksIn(why.what())) {
    if (rank >= hosts.size() || shown++ >= kShownMax) continue;
    const std::string is_on = "rank " + std::to_string(rank) + " is on ";
    if (why.why().find(is_on) != std::string::npos) continue;
    more += (more.empty() ? "" : ", ") + is_on + hosts[rank];
  }
  return more.empty() ? why : WithReason(why, more);
}

Status WithReason(const Status& why, std::string_view more) {
  return Status(why.code(), why.tag(), why.what(), why.why() + (why.why().empty() ? "" : "; ") + std::string(more), why.fix());
}

}  // namespace ropewalk::collective
