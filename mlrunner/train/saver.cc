#include "mlrunner/train/saver.h"

#include <chrono>
#include <utility>

namespace ropewalk::mlrunner {
namespace {

Result<Saver::Outcome> Write(const Saver::Options& to, Checkpoint about, Result<std::vector<StateSlice>> mine) {
  const SaveOptions options{.keep = to.keep, .stands_on = to.stands_on, .forming = to.forming};
  Saver::Outcome outcome{.step = about.step};
  if (to.exchange) {
    ASSIGN_OR_RETURN(outcome.saved, SaveTogether(*to.files, to.folder, about, std::move(mine), to.rank, options, to.exchange));
    return outcome;
  }
  RETURN_IF_ERROR(mine.status());
  for (StateSlice& slice : *mine) about.tensors[slice.name] = std::move(slice.tensor);
  ASSIGN_OR_RETURN(outcome.saved, SaveCheckpoint(*to.files, to.folder, about, options));
  return outcome;
}

}  // namespace

void Saver::Begin(Checkpoint about, Result<std::vector<StateSlice>> mine) {
  under_way_ = std::async(std::launch::async, [to = options_, about = std::move(about), mine = std::move(mine)]() mutable {
    return Write(to, std::move(about), std::move(mine));
  });
}

bool Saver::HasEnded() const { return under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

Result<Saver::Outcome> Saver::Take() {
  Result<Outcome> outcome = under_way_.get();
  if (outcome.ok()) options_.stands_on = outcome->step;
  return outcome;
}

}  // namespace ropewalk::mlrunner
