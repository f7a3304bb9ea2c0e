#include "mlrunner/train/train.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "dag/gang_on_data.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/rows.h"
#include "mlrunner/train/trainer.h"
#include "storage/file_system.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner::train_internal {
namespace {

// What main and the ranks agree on. The keys of a job file have the rules; a job that is made in C++ goes through them.
Result<TrainJob> Checked(TrainJob job) {
  job.data = {};  // the dataset says what is trained on
  Config config(TrainKeys(), "docs/training.md lists all keys");
  for (const std::string& setting : AsSettings(job)) RETURN_IF_ERROR(ApplySetting(&config, setting, "TrainJob"));
  if (const ModelFamily* family = FindModelFamily(job.model.kind); family != nullptr && !LearnsFrom(*family, SampleKind::kFeatures))
    return Status(Code::kInvalid, "TRAIN05", "Train on a dataset with a model of kind " + job.model.kind,
                  "the samples of a dataset are features and a label", "take \"mlp\", or `ropewalk train` for other data");
  RETURN_IF_ERROR(ReadTrainJobOnDataset(config).status());
  if (job.epochs == 0 && job.steps == 0) job.epochs = 1;
  return job;
}

std::string Encode(const Trained& trained) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Sized(mlrunner::Encode(trained.summary));
  auto numbers = [&](const auto& list) {
    writer.Fixed(static_cast<std::uint64_t>(list.size()));
    for (auto number : list) writer.Fixed(number);
  };
  writer.Fixed(trained.losses_from);
  numbers(trained.losses);
  writer.Fixed(static_cast<std::uint64_t>(trained.parameters.size()));
  for (const auto& [name, parameter] : trained.parameters) {
    writer.Sized(name);
    numbers(parameter.dims);
    numbers(parameter.values);
  }
  return bytes;
}

Result<Trained> Decode(const std::string& bytes) {
  ByteReader reader(bytes);
  Trained trained;
  ASSIGN_OR_RETURN(trained.summary, DecodeTrainSummary(std::string(reader.Sized())));
  auto numbers = [&]<class T>(std::vector<T>* list) {
    for (auto left = reader.Fixed<std::uint64_t>(); left > 0 && reader.ok(); --left) list->push_back(reader.Fixed<T>());
  };
  trained.losses_from = reader.Fixed<std::int64_t>();
  numbers(&trained.losses);
  for (auto left = reader.Fixed<std::uint64_t>(); left > 0 && reader.ok(); --left) {
    TrainedParameter& parameter = trained.parameters[std::string(reader.Sized())];
    numbers(&parameter.dims);
    numbers(&parameter.values);
  }
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "the result of a training cannot be read");
  return trained;
}

struct Inputs {
  StageId training;
  std::optional<StageId> held_out;
};

Result<DataSet> Survey(dag::TaskContext& task, const Inputs& inputs, const TrainOptions& options) {
  DataSet data;
  RowsOptions rows{.name = "the training samples", .classes = options.classes, .whole_bytes_max = options.whole_bytes_max};
  ASSIGN_OR_RETURN(data.training, SurveyRows(task, inputs.training, rows));
  if (!inputs.held_out) return data;
  rows.name = "the held-out samples";
  rows.classes = data.training->fields()[1].classes;
  rows.width = data.training->fields()[0].dims[0];
  ASSIGN_OR_RETURN(data.held_out, SurveyRows(task, *inputs.held_out, rows));
  return data;
}

// A relative folder is that of the submit folder, as with every other path of the job. An executor has a scratch folder of its own where
// the submit folder is missing, which would go with what was written there.
Status MakeAbsolute(std::string* folder, const dag::Settings& settings, const std::string& machine) {
  if (folder->empty() || folder->starts_with('/')) return {};
  storage::LocalFileSystem files;
  storage::FileFacts facts;
  if (const int error = files.Look(settings.work_dir, &facts); error != 0) {
    const Status io = storage::IoError(error, "CKPT01", "");
    return Status(io.code(), "CKPT01",
                  "no checkpoints can be written to " + storage::QuotedPath(*folder) + ": the submit folder " +
                      storage::QuotedPath(settings.work_dir) + " cannot be reached on " + machine,
                  io.why(), "let checkpoint.folder be the absolute path of a folder that all machines share");
  }
  *folder = settings.work_dir + "/" + *folder;
  return {};
}

Result<std::string> RunRank(dag::GangContext& gang, dag::TaskContext& task, const Inputs& inputs, TrainJob job,
                            const TrainOptions& options) {
  RETURN_IF_ERROR(MakeAbsolute(&job.checkpoint.folder, *task.settings, gang.machine()));
  std::vector<std::string*> paths = {&job.metrics, &job.tensorboard, &job.trace, &job.export_to, &job.model.first_values};
  if (const ModelFamily* family = FindModelFamily(job.model.kind)) {
    for (const FamilyKey& key : family->keys)
      if (const auto value = job.model.more.find(key.name); key.is_path && value != job.model.more.end()) paths.push_back(&value->second);
  }
  for (std::string* path : paths)
    if (!path->empty() && !path->starts_with('/')) *path = task.settings->work_dir + "/" + *path;
  Trained trained;
  TrainHooks hooks;
  hooks.run = RunOf(*task.settings, inputs.training.value);  // a program may train again and again
  hooks.load = [&] { return Survey(task, inputs, options); };
  hooks.result_words_max = static_cast<std::int64_t>(task.settings->collect_bytes_max / sizeof(double));  // as Encode writes them
  if (gang.rank() == 0) {
    hooks.losses = &trained.losses;
    hooks.on_parameter = [&](const std::string& name, const Tensor& tensor) {
      trained.parameters[name] = {tensor.dims, ToRef(tensor).data};
    };
  }
  ASSIGN_OR_RETURN(std::string summary, TrainRank(gang, job, hooks));
  if (gang.rank() != 0) return std::string();
  ASSIGN_OR_RETURN(trained.summary, DecodeTrainSummary(summary));
  trained.losses_from = trained.summary.steps - static_cast<std::int64_t>(trained.losses.size());
  return Encode(trained);
}

}  // namespace

Trained TrainOnRows(const dag::Dataset<std::string>& rows, const dag::Dataset<std::string>* held_out, const TrainJob& wanted,
                    const TrainOptions& options, dag::Site site) {
  const std::shared_ptr<dag::PlanContext> plan = rows.node()->context();
  Result<TrainJob> checked = Checked(wanted);
  if (!checked.ok()) plan->Fail(checked.status().WithContext("Train (" + site.ToString() + ")"));
  const TrainJob& job = *checked;
  std::uint64_t fingerprint = HashCombine(static_cast<std::uint64_t>(options.classes), options.whole_bytes_max);
  for (const std::string& setting : AsSettings(job)) fingerprint = HashCombine(fingerprint, Checksum64(setting));
  dag::GangData data(plan, "Train", static_cast<std::uint32_t>(job.ranks), site, fingerprint);
  Inputs inputs;
  inputs.training = data.Add(rows);
  if (held_out != nullptr) inputs.held_out = data.Add(*held_out);
  // What the program finds wrong with the samples or the loss is wrong the next time, too.
  dag::GangOptions gang{.placement_timeout_ms = options.placement_timeout_ms,
                        .spread = options.spread,
                        .attempts_max = 1,
                        .restarts_max = options.restarts_max,
                        .ranks_min = static_cast<std::uint32_t>(job.ranks_min),
                        .shrink_after_ms = static_cast<std::uint64_t>(job.shrink_after) * 1000};
  Result<Trained> trained = Decode(data.Run(
      [inputs, job, options](dag::GangContext& context, dag::TaskContext& task) { return RunRank(context, task, inputs, job, options); },
      gang));
  if (!trained.ok()) plan->Fail(trained.status());
  return *std::move(trained);
}

}  // namespace ropewalk::mlrunner::train_internal
