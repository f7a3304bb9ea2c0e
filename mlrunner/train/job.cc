#include "mlrunner/train/job.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/data/images.h"

namespace ropewalk::mlrunner {
namespace {

// A value that has the right type and still makes no sense.
Status Bad(const Config& config, const std::string& key, const std::string& why, const std::string& fix = "mend the value") {
  return Status(Code::kInvalid, "SPEC02",
                fmt::format("{}: \"{}\" is no value for {}", config.Origin(key), EscapeForLog(config.Text(key), 200), key), why, fix);
}

template <class T>
struct Choice {
  const char* name;
  T value;
};
template <class T, std::size_t n>
Status Choose(const Config& config, const std::string& key, const Choice<T> (&choices)[n], T* chosen) {
  std::string names;
  for (const Choice<T>& choice : choices) {
    if (config.Text(key) == choice.name) return *chosen = choice.value, Status();
    names += (names.empty() ? "" : ", ") + std::string(choice.name);
  }
  return Bad(config, key, "it takes one of: " + names);
}

constexpr Choice<ChooseBy> kChooseBy[] = {
    {"fixed-sizes", ChooseBy::kFixedSizes}, {"kept-costs", ChooseBy::kKeptCosts}, {"measured-costs", ChooseBy::kMeasuredCosts}};

// Keys that mean something only where another one has one of these values.
struct Belongs {
  const char* chooser;
  std::vector<std::string> values;
  std::vector<const char*> keys;
};
const std::vector<Belongs>& KeysOfChoices() {
  static const std::vector<Belongs> all = {
      {"model.kind", {"mlp"}, {"model.hidden"}},
      {"model.kind", {"gpt"}, {"model.layers", "model.width", "model.heads", "model.length", "model.tied"}},
      {"data.kind", {"text"}, {"data.held_out"}},
      {"optimizer.schedule", {"linear", "cosine"}, {"optimizer.decay_steps", "optimizer.final_fraction"}},
      {"optimizer.schedule", {"step"}, {"optimizer.step_every", "optimizer.step_factor"}},
      {"optimizer.kind", {"sgd"}, {"optimizer.momentum"}},
      {"optimizer.kind", {"adamw"}, {"optimizer.beta1", "optimizer.beta2", "optimizer.epsilon"}},
  };
  return all;
}
bool IsMeant(const Config& config, const Belongs& some) {
  return std::find(some.values.begin(), some.values.end(), config.Text(some.chooser)) != some.values.end();
}

// A key that belongs to another choice would be silently ignored.
Status Fits(const Config& config, std::string_view chooser) {
  for (const Belongs& some : KeysOfChoices()) {
    if (some.chooser != chooser || IsMeant(config, some)) continue;
    for (const char* key : some.keys) {
      if (config.IsSet(key))
        return Status(Code::kInvalid, "SPEC02",
                      fmt::format("{}: {} means nothing where {} is \"{}\"", config.Origin(key), key, chooser, config.Text(chooser)),
                      fmt::format("it belongs to \"{}\"", fmt::join(some.values, "\" and \"")), "take it out");
    }
  }
  return {};
}

constexpr const char* kKeysOfCheckpoints[] = {"checkpoint.every_steps", "checkpoint.keep", "checkpoint.resume"};

Status Within(const Config& config, const std::string& key, std::int64_t low, std::int64_t high, std::int64_t* value) {
  std::uint64_t number = config.Number(key);
  if (number > static_cast<std::uint64_t>(high) || static_cast<std::int64_t>(number) < low)
    return Bad(config, key, fmt::format("it lies in [{}, {}]", low, high));
  *value = static_cast<std::int64_t>(number);
  return {};
}
Status Within(const Config& config, const std::string& key, std::int64_t low, std::int64_t high, std::int32_t* value) {
  std::int64_t wide = 0;
  RETURN_IF_ERROR(Within(config, key, low, high, &wide));
  *value = static_cast<std::int32_t>(wide);
  return {};
}
Status Within(const Config& config, const std::string& key, double low, double below, double* value) {
  *value = config.Decimal(key);
  if (*value < low || *value >= below) return Bad(config, key, fmt::format("it lies in [{}, {})", low, below));
  return {};
}

constexpr std::int64_t kWidthMax = 1 << 20, kCountMax = std::int64_t{1} << 40;

Status ReadModel(const Config& config, ModelSpec* model) {
  RETURN_IF_ERROR(Choose(config, "model.kind", {{"mlp", ModelSpec::Kind::kMlp}, {"gpt", ModelSpec::Kind::kGpt}}, &model->kind));
  RETURN_IF_ERROR(Fits(config, "model.kind"));
  model->hidden = config.Numbers("model.hidden");
  for (std::int64_t width : model->hidden) {
    if (width < 1 || width > kWidthMax) return Bad(config, "model.hidden", fmt::format("each width lies in [1, {}]", kWidthMax));
  }
  RETURN_IF_ERROR(Within(config, "model.layers", 1, 1000, &model->layers));
  RETURN_IF_ERROR(Within(config, "model.width", 1, kWidthMax, &model->width));
  RETURN_IF_ERROR(Within(config, "model.heads", 1, 1024, &model->heads));
  RETURN_IF_ERROR(Within(config, "model.length", 1, 1 << 16, &model->length));
  model->tied = config.Switch("model.tied");
  if (model->width % model->heads != 0)
    return Bad(config, "model.heads", fmt::format("{} heads do not divide a width of {}", model->heads, model->width));
  return {};
}

Status ReadData(const Config& config, const ModelSpec& model, DataSpec* data) {
  RETURN_IF_ERROR(
      Choose(config, "data.kind", {{"fashion-mnist", DataSpec::Kind::kFashionMnist}, {"text", DataSpec::Kind::kText}}, &data->kind));
  RETURN_IF_ERROR(Fits(config, "data.kind"));
  const bool text = data->kind == DataSpec::Kind::kText;
  if (text != (model.kind == ModelSpec::Kind::kGpt))
    return Bad(config, "data.kind", fmt::format("a model of kind \"{}\" does not learn from it", config.Text("model.kind")),
               "gpt goes with text, mlp with fashion-mnist");
  data->path = config.Text("data.path");
  if (data->path.empty()) {
    if (text) return Bad(config, "data.path", "which text?", "data.path = \"FILE\"");
    data->path = kFashionMnistFolder;
  }
  RETURN_IF_ERROR(Within(config, "data.held_out", 0, 1, &data->held_out));
  return Within(config, "data.samples_max", 0, kCountMax, &data->samples_max);
}

Status ReadSchedule(const Config& config, OptimizerSpec* optimizer) {
  using Schedule = OptimizerSpec::Schedule;
  RETURN_IF_ERROR(
      Choose(config, "optimizer.schedule",
             {{"constant", Schedule::kConstant}, {"linear", Schedule::kLinear}, {"cosine", Schedule::kCosine}, {"step", Schedule::kStep}},
             &optimizer->schedule));
  RETURN_IF_ERROR(Fits(config, "optimizer.schedule"));
  RETURN_IF_ERROR(Within(config, "optimizer.decay_steps", 0, kCountMax, &optimizer->decay_steps));
  RETURN_IF_ERROR(Within(config, "optimizer.final_fraction", 0, 1, &optimizer->final_fraction));
  RETURN_IF_ERROR(Within(config, "optimizer.step_every", 0, kCountMax, &optimizer->step_every));
  RETURN_IF_ERROR(Within(config, "optimizer.step_factor", 0, 1, &optimizer->step_factor));
  if (optimizer->schedule == Schedule::kStep && optimizer->step_every == 0)
    return Bad(config, "optimizer.schedule", "it needs to know after how many steps the rate falls", "optimizer.step_every = 1000");
  return {};
}

Status ReadOptimizer(const Config& config, OptimizerSpec* optimizer) {
  using Kind = OptimizerSpec::Kind;
  RETURN_IF_ERROR(Choose(config, "optimizer.kind", {{"sgd", Kind::kSgd}, {"adamw", Kind::kAdamW}}, &optimizer->kind));
  RETURN_IF_ERROR(Fits(config, "optimizer.kind"));
  RETURN_IF_ERROR(Within(config, "optimizer.learning_rate", 0, 1e6, &optimizer->learning_rate));
  RETURN_IF_ERROR(Within(config, "optimizer.warmup_steps", 0, kCountMax, &optimizer->warmup_steps));
  RETURN_IF_ERROR(ReadSchedule(config, optimizer));
  RETURN_IF_ERROR(Within(config, "optimizer.clip_norm", 0, 1e30, &optimizer->clip_norm));
  RETURN_IF_ERROR(Within(config, "optimizer.momentum", 0, 1, &optimizer->momentum));
  RETURN_IF_ERROR(Within(config, "optimizer.weight_decay", 0, 1e6, &optimizer->weight_decay));
  RETURN_IF_ERROR(Within(config, "optimizer.beta1", 0, 1, &optimizer->beta1));
  RETURN_IF_ERROR(Within(config, "optimizer.beta2", 0, 1, &optimizer->beta2));
  return Within(config, "optimizer.epsilon", 0, 1e6, &optimizer->epsilon);
}

Status ReadCheckpoint(const Config& config, CheckpointSpec* checkpoint) {
  checkpoint->folder = config.Text("checkpoint.folder");
  checkpoint->resume = config.Switch("checkpoint.resume");
  RETURN_IF_ERROR(Within(config, "checkpoint.every_steps", 0, kCountMax, &checkpoint->every_steps));
  RETURN_IF_ERROR(Within(config, "checkpoint.keep", 1, 1'000'000, &checkpoint->keep));
  if (!checkpoint->folder.empty()) return {};
  for (const char* key : kKeysOfCheckpoints) {
    if (config.IsSet(key)) return Bad(config, key, "no checkpoint.folder is named", "name the folder, or take it out");
  }
  return {};
}

}  // namespace

std::vector<ConfigKey> TrainKeys() {
  using enum ConfigType;
  return {
      {"model.kind", kText, "mlp", "mlp or gpt"},
      {"model.hidden", kNumbers, "512, 512", "mlp: widths of the hidden layers"},
      {"model.layers", kNumber, "4", "gpt: blocks"},
      {"model.width", kNumber, "256", "gpt: numbers that stand for a character"},
      {"model.heads", kNumber, "4", "gpt: of attention; they divide the width"},
      {"model.length", kNumber, "128", "gpt: characters of a sample"},
      {"model.tied", kSwitch, "false", "gpt: the last map is the table of characters"},
      {"data.kind", kText, "fashion-mnist", "fashion-mnist or text"},
      {"data.path", kText, "", "folder of IDX files (else Debian's dataset-fashion-mnist); text: the file"},
      {"data.held_out", kDecimal, "0.1", "text: the last part of it is not trained on"},
      {"data.samples_max", kNumber, "0", "use the first so many training samples; 0: all"},
      {"train.ranks", kNumber, "1", "processes that train together"},
      {"train.batch", kNumber, "128", "samples of a step, of all ranks together"},
      {"train.micro_batches", kNumber, "1", "parts of a rank's share of a batch, one after another"},
      {"train.epochs", kNumber, "0", "times through the data (1 unless train.steps is given)"},
      {"train.steps", kNumber, "0", "instead of epochs; as a flag it wins over a file's epochs"},
      {"train.seed", kNumber, "1", "of first values and the order of samples"},
      {"train.dtype", kText, "f32", "f32; f64 runs on slow kernels, for comparisons"},
      {"train.device", kText, "cpu", "cpu, or gpu: by the plugin's kernels where a GPU is found, else by the CPU's"},
      {"train.deterministic", kSwitch, "true", "add gradients in the order of the ranks"},
      {"train.bucket_bytes", kBytes, "1M", "gradients travel in buckets of about so many bytes"},
      {"train.threads", kNumber, "0", "of each rank; 0: its share of the cores"},
      {"train.evaluate_batch", kNumber, "0", "samples at a time when the held-out ones are counted; 0: as a step has"},
      {"train.timeout", kNumber, "1800", "seconds that a rank waits for the others in one sum; 0: for ever"},
      {"train.choose_by", kText, "fixed-sizes", "how sums are run: fixed-sizes; or by kept-costs or measured-costs of messages"},
      {"optimizer.kind", kText, "sgd", "sgd or adamw"},
      {"optimizer.learning_rate", kDecimal, "0.05", ""},
      {"optimizer.schedule", kText, "constant", "constant, linear, cosine or step: the rate behind the warm-up"},
      {"optimizer.warmup_steps", kNumber, "0", "the rate grows linearly over the first so many steps"},
      {"optimizer.decay_steps", kNumber, "0", "linear, cosine: it falls for so many steps; 0: to the end"},
      {"optimizer.final_fraction", kDecimal, "0", "linear, cosine: what is left of it then, below 1"},
      {"optimizer.step_every", kNumber, "0", "step: it falls each so many steps"},
      {"optimizer.step_factor", kDecimal, "0.1", "step: to this part of it, below 1"},
      {"optimizer.clip_norm", kDecimal, "0", "the largest norm of all gradients together; 0: any"},
      {"optimizer.momentum", kDecimal, "0.9", "sgd"},
      {"optimizer.weight_decay", kDecimal, "0", ""},
      {"optimizer.beta1", kDecimal, "0.9", "adamw"},
      {"optimizer.beta2", kDecimal, "0.999", "adamw"},
      {"optimizer.epsilon", kDecimal, "1e-8", "adamw"},
      {"checkpoint.folder", kText, "", "where checkpoints are written; empty: none"},
      {"checkpoint.every_steps", kNumber, "0", "0: only at the end"},
      {"checkpoint.keep", kNumber, "3", "the newest so many are kept"},
      {"checkpoint.resume", kSwitch, "true", "begin at the newest one that is there"},
  };
}

void DropOverruled(Config* config) {
  const auto drop_below = [&](const char* winner, const char* key) {
    if (config->Layer(key) < config->Layer(winner)) config->Unset(key);
  };
  for (const Belongs& some : KeysOfChoices()) {
    if (IsMeant(*config, some)) continue;
    for (const char* key : some.keys) drop_below(some.chooser, key);
  }
  if (config->Text("checkpoint.folder").empty())
    for (const char* key : kKeysOfCheckpoints) drop_below("checkpoint.folder", key);
  if (config->Number("train.steps") > 0) drop_below("train.steps", "train.epochs");
  if (config->Number("train.epochs") > 0) drop_below("train.epochs", "train.steps");
}

Result<TrainJob> ReadTrainJob(const Config& config) {
  TrainJob job;
  RETURN_IF_ERROR(ReadModel(config, &job.model));
  RETURN_IF_ERROR(ReadData(config, job.model, &job.data));
  RETURN_IF_ERROR(ReadOptimizer(config, &job.optimizer));
  RETURN_IF_ERROR(ReadCheckpoint(config, &job.checkpoint));
  RETURN_IF_ERROR(Within(config, "train.ranks", 1, 256, &job.ranks));
  RETURN_IF_ERROR(Within(config, "train.batch", 1, 1 << 30, &job.batch));
  RETURN_IF_ERROR(Within(config, "train.micro_batches", 1, 1 << 16, &job.micro_batches));
  if (std::int64_t parts = std::int64_t{job.micro_batches} * job.ranks; job.micro_batches > 1 && parts > job.batch)
    return Bad(config, "train.micro_batches",
               fmt::format("a batch of {} cannot be cut into {} parts for {} ranks", job.batch, parts, job.ranks),
               "a larger train.batch, or fewer parts");
  RETURN_IF_ERROR(Within(config, "train.epochs", 0, kCountMax, &job.epochs));
  RETURN_IF_ERROR(Within(config, "train.steps", 0, kCountMax, &job.steps));
  if (job.epochs > 0 && job.steps > 0) return Bad(config, "train.steps", "train.epochs is given too", "take one of them out");
  if (job.epochs == 0 && job.steps == 0) job.epochs = 1;
  job.seed = config.Number("train.seed");
  RETURN_IF_ERROR(Choose(config, "train.dtype", {{"f32", Dtype::kF32}, {"f64", Dtype::kF64}}, &job.dtype));
  RETURN_IF_ERROR(Choose(config, "train.device", {{"cpu", false}, {"gpu", true}}, &job.gpu));
  job.deterministic = config.Switch("train.deterministic");
  std::int64_t bucket_bytes = 0;
  RETURN_IF_ERROR(Within(config, "train.bucket_bytes", 1, std::int64_t{1} << 40, &bucket_bytes));
  job.bucket_bytes = static_cast<std::size_t>(bucket_bytes);
  RETURN_IF_ERROR(Within(config, "train.threads", 0, 1024, &job.threads));
  RETURN_IF_ERROR(Within(config, "train.evaluate_batch", 0, 1 << 30, &job.evaluate_batch));
  RETURN_IF_ERROR(Within(config, "train.timeout", 0, kCountMax / 1000, &job.timeout));
  RETURN_IF_ERROR(Choose(config, "train.choose_by", kChooseBy, &job.choose_by));
  return job;
}

std::vector<std::string> AsSettings(const Config& config) {
  std::vector<std::string> settings;
  for (const ConfigEntry& entry : config.Show()) {
    if (config.IsSet(entry.name)) settings.push_back(entry.name + "=" + entry.value);
  }
  return settings;
}

std::vector<std::string> AsSettings(const TrainJob& job) {
  const ModelSpec& model = job.model;
  const OptimizerSpec& optimizer = job.optimizer;
  const bool gpt = model.kind == ModelSpec::Kind::kGpt, adamw = optimizer.kind == OptimizerSpec::Kind::kAdamW;
  std::vector<std::pair<const char*, std::string>> values = {{"model.kind", gpt ? "gpt" : "mlp"},
                                                             {"optimizer.kind", adamw ? "adamw" : "sgd"}};
  auto add = [&](const char* name, const auto& value) { values.emplace_back(name, fmt::format("{}", value)); };
  if (gpt) {
    add("model.layers", model.layers);
    add("model.width", model.width);
    add("model.heads", model.heads);
    add("model.length", model.length);
    add("model.tied", model.tied);
  } else {
    add("model.hidden", fmt::format("{}", fmt::join(model.hidden, ", ")));
  }
  add("train.ranks", job.ranks);
  add("train.batch", job.batch);
  add("train.micro_batches", job.micro_batches);
  add("train.epochs", job.epochs);
  add("train.steps", job.steps);
  add("train.seed", job.seed);
  add("train.dtype", Name(job.dtype));
  add("train.device", job.gpu ? "gpu" : "cpu");
  add("train.deterministic", job.deterministic);
  add("train.bucket_bytes", job.bucket_bytes);
  add("train.threads", job.threads);
  add("train.evaluate_batch", job.evaluate_batch);
  add("train.timeout", job.timeout);
  for (const auto& way : kChooseBy)
    if (way.value == job.choose_by) add("train.choose_by", way.name);
  add("optimizer.learning_rate", optimizer.learning_rate);
  using Schedule = OptimizerSpec::Schedule;
  const Schedule schedule = optimizer.schedule;
  values.emplace_back("optimizer.schedule", schedule == Schedule::kConstant ? "constant"
                                            : schedule == Schedule::kLinear ? "linear"
                                            : schedule == Schedule::kCosine ? "cosine"
                                                                            : "step");
  add("optimizer.warmup_steps", optimizer.warmup_steps);
  if (schedule == Schedule::kLinear || schedule == Schedule::kCosine) {
    add("optimizer.decay_steps", optimizer.decay_steps);
    add("optimizer.final_fraction", optimizer.final_fraction);
  } else if (schedule == Schedule::kStep) {
    add("optimizer.step_every", optimizer.step_every);
    add("optimizer.step_factor", optimizer.step_factor);
  }
  add("optimizer.clip_norm", optimizer.clip_norm);
  add("optimizer.weight_decay", optimizer.weight_decay);
  if (adamw) {
    add("optimizer.beta1", optimizer.beta1);
    add("optimizer.beta2", optimizer.beta2);
    add("optimizer.epsilon", optimizer.epsilon);
  } else {
    add("optimizer.momentum", optimizer.momentum);
  }
  add("checkpoint.folder", job.checkpoint.folder);
  if (!job.checkpoint.folder.empty()) {
    add("checkpoint.every_steps", job.checkpoint.every_steps);
    add("checkpoint.keep", job.checkpoint.keep);
    add("checkpoint.resume", job.checkpoint.resume);
  }
  std::vector<std::string> settings;
  for (const auto& [name, value] : values) settings.push_back(std::string(name) + "=" + value);
  return settings;
}

Status ApplySetting(Config* config, const std::string& setting, const std::string& origin) {
  std::size_t equals = setting.find('=');
  if (equals == std::string::npos)
    return Status(Code::kInvalid, "SPEC04", fmt::format("--set \"{}\"", EscapeForLog(setting, 200)), "there is no '='",
                  "--set section.key=value, like --set train.batch=64");
  return config->Set(ConfigLayer::kFlag, {setting.substr(0, equals), setting.substr(equals + 1), origin});
}

}  // namespace ropewalk::mlrunner
