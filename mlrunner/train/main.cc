// ropewalk-train: what `ropewalk train` starts. A job like a user's own: it could be written with the public API.
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "job/init_with.h"
#include "job/options.h"
#include "job/report.h"
#include "mlrunner/launch/torch.h"
#include "mlrunner/train/arguments.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/trainer.h"
#include "storage/file_system.h"
#include "storage/io_error.h"

namespace {

using namespace ropewalk;

// Told before anything is started or sent.
Result<mlrunner::TrainArguments> Parse(int argc, char** argv) {
  const std::vector<std::string> args(argv, argv + argc);
  RETURN_IF_ERROR(job::CheckOptions(args));
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) == nullptr)
    return Status(Code::kUserError, "TRAIN03", "train: the working folder cannot be read", "it is gone, or its path is too long",
                  "start it elsewhere");
  return mlrunner::ParseTrainArguments(args, folder);
}

bool WantsJson() { return job::FormOfErrors() != job::OutputForm::kTable; }

// Between what else stands on stderr; a bar makes way.
void Tell(const std::string& line) {
  const job::JobOptions options = job::EnvironmentOptions([](const char* name) { return std::getenv(name); });
  if (options.output != job::OutputForm::kTable || options.quiet) return;
  fmt::print(stderr, "{}{}\n", isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "", line);
}

// Of a training that did not come to its end: from where another one could go on. Empty where that is no question.
std::string WhatIsKept(const mlrunner::CheckpointSpec& spec, bool interrupted) {
  if (spec.folder.empty()) return interrupted ? "nothing of the training is kept: no checkpoint.folder is named" : "";
  storage::LocalFileSystem files;
  std::vector<Status> damaged;  // the next training says it
  auto newest = mlrunner::OpenNewestCheckpoint(files, spec.folder, &damaged);
  if (!newest.ok() || *newest == nullptr)
    return interrupted ? "nothing of the training is kept: there is no checkpoint in " + storage::QuotedPath(spec.folder) : "";
  return fmt::format("the newest checkpoint is of step {}, {}: the same command{} goes on from it", (*newest)->about().step,
                     storage::QuotedPath((*newest)->path()), spec.resume ? "" : " with --set checkpoint.resume=true");
}

// JSON has no word for what is no number.
std::string Number(double number, int digits) { return std::isfinite(number) ? fmt::format("{:.{}f}", number, digits) : "null"; }

void Print(const mlrunner::TrainSummary& s) {
  const double hits = s.held_out_labels == 0 ? 0 : static_cast<double>(s.held_out_hits) / static_cast<double>(s.held_out_labels);
  if (WantsJson()) {
    fmt::print(
        "{{\"job\":\"train\",\"steps\":{},\"resumed_from\":{},\"loss\":{},\"seconds\":{},\"samples_per_s\":{},"
        "\"held_out_loss\":{},\"held_out_hits\":{},\"held_out_labels\":{},\"held_out_auc\":{},\"skipped\":{},\"best_step\":{},\"best_"
        "loss\":{},"
        "\"stopped_early\":{}}}\n",
        s.steps, s.resumed_from, Number(s.loss, 6), Number(s.seconds, 3), s.samples_per_s > 0 ? Number(s.samples_per_s, 1) : "null",
        Number(s.held_out_loss, 6), s.held_out_hits, s.held_out_labels, Number(s.held_out_auc, 6), s.skipped,
        s.best_step < 0 ? "null" : std::to_string(s.best_step), s.best_step < 0 ? "null" : Number(s.best_loss, 6), s.stopped_early);
    return;
  }
  if (s.resumed_from >= 0) fmt::print("resumed from the checkpoint of step {}\n", s.resumed_from);
  if (s.samples_per_s > 0) {
    fmt::print("trained to step {} in {:.2f} s ({:.0f} samples/s), loss {:.4f}\n", s.steps, s.seconds, s.samples_per_s, s.loss);
  } else if (std::isfinite(s.loss)) {
    fmt::print("no step was left to make; the loss of the last one was {:.4f}\n", s.loss);
  }
  if (s.skipped > 0) fmt::print("{} steps were skipped: what came out were no numbers\n", s.skipped);
  if (s.best_step >= 0)
    fmt::print("best held-out loss {:.4f} after step {}{}\n", s.best_loss, s.best_step,
               s.stopped_early ? ", then no smaller one: train.patience has ended it" : "");
  for (std::size_t rank = 0; rank < s.anatomy.size(); ++rank) fmt::print("rank {}: {}\n", rank, ToString(s.anatomy[rank]));
  fmt::print("held out: {:.2f}% of {} {} right, loss {:.4f}{}\n", 100 * hits, s.held_out_labels, s.labels_are, s.held_out_loss,
             std::isnan(s.held_out_auc) ? "" : fmt::format(", AUC {:.4f}", s.held_out_auc));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "torch") return launch::TorchMain({argv, argv + argc});
  Result<mlrunner::TrainArguments> arguments = Parse(argc, argv);
  if (!arguments.ok()) {
    job::PrintError(arguments.status(), job::FormOfErrors());
    return ExitCode(arguments.status().code());
  }
  if (arguments->help) {
    std::fputs(mlrunner::TrainUsage().c_str(), stdout);
    return 0;
  }
  const mlrunner::TrainJob& train = arguments->job;
  setenv("ROPEWALK_NAME", "train", 0);

  Job job = job::InitWith(arguments->argv);
  mlrunner::TrainHooks hooks;
  hooks.run = mlrunner::RunOf(job.settings());
  hooks.on_resumed = [](std::int64_t step, const std::string& path) {
    Tell(fmt::format("resumed from the checkpoint of step {}, {}", step, storage::QuotedPath(path)));
  };
  // What the program finds wrong with the data or the loss is wrong the next time, too; a rank that crashed gets another try.
  Result<std::string> result = RunGang(job, "train", static_cast<std::uint32_t>(train.ranks),
                                       [train, hooks](GangContext& gang) { return mlrunner::TrainRank(gang, train, hooks); },
                                       {.attempts_max = 1,
                                        .ranks_min = static_cast<std::uint32_t>(train.ranks_min),
                                        .shrink_after_ms = static_cast<std::uint64_t>(train.shrink_after) * 1000});
  if (!result.ok()) {
    if (const std::string kept = WhatIsKept(train.checkpoint, result.status().code() == Code::kCancelled); !kept.empty()) Tell(kept);
    job.context().Fail(result.status());
  }
  Result<mlrunner::TrainSummary> summary = mlrunner::DecodeTrainSummary(*result);
  if (!summary.ok()) {
    job::PrintError(summary.status(), job::FormOfErrors());
    return ExitCode(summary.status().code());
  }
  Print(*summary);
  return 0;
}
