#include "mlrunner/collective/run/survivors.h"

#include <utility>

namespace ropewalk::collective {

Status Survivors::AgreeOnGone() {
  ASSIGN_OR_RETURN(Ranks gone, Agree(links_->Over()));
  gone_ = std::move(gone);
  if (!gone_[rank_]) return {};
  return Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(rank_) + " is lost",
                "the others are cut off from this rank, and go on without it");
}

Result<Survivors::Ranks> Survivors::Agree(Ranks mine) {
  std::string word(ranks_, '\0');
  for (std::int32_t rank = 0; rank < ranks_; ++rank) word[rank] = mine[rank] ? '\1' : '\0';
  for (std::int32_t round = 0; round < ranks_; ++round) {
    ASSIGN_OR_RETURN(const std::vector<std::optional<std::string>> said, Tell(word));
    for (const std::optional<std::string>& theirs : said) {
      if (!theirs.has_value()) continue;
      if (theirs->size() != word.size())
        return Status(Code::kInternal, "COLL25", "ranks that are left agree on different things", "they do not make the same calls");
      for (std::size_t rank = 0; rank < word.size(); ++rank)
        if ((*theirs)[rank] != '\0') word[rank] = '\1';
    }
  }
  for (std::int32_t rank = 0; rank < ranks_; ++rank) mine[rank] = word[rank] != '\0';
  return mine;
}

Result<std::vector<std::optional<std::string>>> Survivors::Tell(const std::string& word) {
  return links_->Meet((*meetings_)++, word, gone_, ms_max_);
}

}  // namespace ropewalk::collective
