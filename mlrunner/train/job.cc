#include "mlrunner/train/job.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/train/export_model.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/spec_members.h"

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

constexpr Choice<Dtype> kPrecisions[] = {{"f32", Dtype::kF32}, {"bf16", Dtype::kBF16}, {"f16", Dtype::kF16}};

constexpr Choice<RecomputeMarks> kRecomputeMarks[] = {{"none", RecomputeMarks::kNone},
                                                      {"selective", RecomputeMarks::kSelective},
                                                      {"blocks", RecomputeMarks::kBlocks},
                                                      {"sqrt", RecomputeMarks::kRoots}};

constexpr Choice<NanPolicy> kNanPolicies[] = {{"stop", NanPolicy::kStop}, {"skip", NanPolicy::kSkip}};

// Keys that mean something only where another one has one of these values.
struct Belongs {
  std::string chooser;
  std::vector<std::string> values;
  std::vector<std::string> keys;
};

// Each key of the families of a section, with all that have it.
template <class Family>
void AddFamilies(const std::string& section, const std::vector<const Family*>& families, std::vector<Belongs>* all) {
  std::map<std::string, std::vector<std::string>> by_key;
  for (const Family* family : families)
    for (const FamilyKey& key : family->keys) by_key[section + "." + key.name].push_back(family->name);
  for (auto& [key, names] : by_key) all->push_back({section + ".kind", std::move(names), {key}});
}

const std::vector<Belongs>& KeysOfChoices() {
  static const std::vector<Belongs> all = [] {
    std::vector<Belongs> choices;
    AddFamilies("model", ModelFamilies(), &choices);
    AddFamilies("data", DataFamilies(), &choices);
    const std::vector<Belongs> others = {
        {"optimizer.schedule", {"linear", "cosine"}, {"optimizer.decay_steps", "optimizer.final_fraction"}},
        {"optimizer.schedule", {"step"}, {"optimizer.step_every", "optimizer.step_factor"}},
        {"optimizer.kind", {"sgd"}, {"optimizer.momentum", "optimizer.nesterov"}},
        {"optimizer.kind", {"adamw", "adam", "lamb"}, {"optimizer.beta1", "optimizer.beta2"}},
        {"optimizer.kind", {"adamw", "adam", "lamb", "adagrad"}, {"optimizer.epsilon"}},
    };
    choices.insert(choices.end(), others.begin(), others.end());
    return choices;
  }();
  return all;
}
bool IsMeant(const Config& config, const Belongs& some) {
  return std::find(some.values.begin(), some.values.end(), config.Text(some.chooser)) != some.values.end();
}

// A key that belongs to another choice would be silently ignored.
Status Fits(const Config& config, std::string_view chooser) {
  for (const Belongs& some : KeysOfChoices()) {
    if (some.chooser != chooser || IsMeant(config, some)) continue;
    for (const std::string& key : some.keys) {
      if (config.IsSet(key))
        return Status(Code::kInvalid, "SPEC02",
                      fmt::format("{}: {} means nothing where {} is \"{}\"", config.Origin(key), key, chooser, config.Text(chooser)),
                      fmt::format("it belongs to \"{}\"", fmt::join(some.values, "\" and \"")), "take it out");
    }
  }
  return {};
}

constexpr const char* kKeysOfCheckpoints[] = {"checkpoint.every_steps", "checkpoint.keep", "checkpoint.resume", "checkpoint.best"};

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

constexpr std::int64_t kCountMax = std::int64_t{1} << 40;

// The one that config names.
template <class Family>
Result<const Family*> ChooseFamily(const Config& config, const std::string& chooser, const std::vector<const Family*>& families) {
  std::vector<std::string> names;
  for (const Family* family : families) {
    if (config.Text(chooser) == family->name) return family;
    names.push_back(family->name);
  }
  return Bad(config, chooser, fmt::format("it takes one of: {}", fmt::join(names, ", ")));
}

// Kind, values of the family's keys, and whether they fit together.
template <class Family, class Spec>
Result<const Family*> ReadFamily(const Config& config, const std::string& section, const std::vector<const Family*>& families, Spec* spec) {
  const std::string chooser = section + ".kind";
  ASSIGN_OR_RETURN(const Family* family, ChooseFamily(config, chooser, families));
  RETURN_IF_ERROR(Fits(config, chooser));
  ASSIGN_OR_RETURN(const KeyValues values, KeyValues::Read(config, section, family->keys));
  if (family->check != nullptr) RETURN_IF_ERROR(family->check(values));
  spec->kind = family->name;
  SetTexts(values.All(), spec);
  return family;
}

Status ReadData(const Config& config, const ModelFamily& model, DataSpec* data) {
  ASSIGN_OR_RETURN(const DataFamily* family, ReadFamily(config, "data", DataFamilies(), data));
  if (const Status fits = KindFor(model, *family).status(); !fits.ok()) return Bad(config, "data.kind", fits.why(), fits.fix());
  data->path = config.Text("data.path");
  if (data->path.empty()) data->path = family->default_path;
  if (data->path.empty()) return Bad(config, "data.path", "which " + family->path_is + "?", "data.path = \"...\"");
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

constexpr Choice<OptimizerSpec::Kind> kOptimizers[] = {{"sgd", OptimizerSpec::Kind::kSgd},
                                                       {"adamw", OptimizerSpec::Kind::kAdamW},
                                                       {"adam", OptimizerSpec::Kind::kAdam},
                                                       {"lamb", OptimizerSpec::Kind::kLamb},
                                                       {"adagrad", OptimizerSpec::Kind::kAdagrad}};
constexpr Choice<bool> kDecayOf[] = {{"all", false}, {"matrices", true}};

Status ReadOptimizer(const Config& config, OptimizerSpec* optimizer) {
  RETURN_IF_ERROR(Choose(config, "optimizer.kind", kOptimizers, &optimizer->kind));
  RETURN_IF_ERROR(Fits(config, "optimizer.kind"));
  RETURN_IF_ERROR(Within(config, "optimizer.learning_rate", 0, 1e6, &optimizer->learning_rate));
  RETURN_IF_ERROR(Within(config, "optimizer.warmup_steps", 0, kCountMax, &optimizer->warmup_steps));
  RETURN_IF_ERROR(ReadSchedule(config, optimizer));
  RETURN_IF_ERROR(Within(config, "optimizer.clip_norm", 0, 1e30, &optimizer->clip_norm));
  RETURN_IF_ERROR(Within(config, "optimizer.momentum", 0, 1, &optimizer->momentum));
  RETURN_IF_ERROR(Within(config, "optimizer.weight_decay", 0, 1e6, &optimizer->weight_decay));
  RETURN_IF_ERROR(Within(config, "optimizer.beta1", 0, 1, &optimizer->beta1));
  RETURN_IF_ERROR(Within(config, "optimizer.beta2", 0, 1, &optimizer->beta2));
  RETURN_IF_ERROR(Within(config, "optimizer.epsilon", 0, 1e6, &optimizer->epsilon));
  optimizer->nesterov = config.Switch("optimizer.nesterov");
  if (optimizer->nesterov && optimizer->momentum == 0)
    return Bad(config, "optimizer.nesterov", "without a momentum it is plain SGD", "optimizer.momentum = 0.9");
  RETURN_IF_ERROR(Choose(config, "optimizer.decay_of", kDecayOf, &optimizer->decay_matrices));
  return Within(config, "optimizer.average", 0, 1, &optimizer->average);
}

Status ReadCheckpoint(const Config& config, CheckpointSpec* checkpoint) {
  checkpoint->folder = config.Text("checkpoint.folder");
  checkpoint->resume = config.Switch("checkpoint.resume");
  checkpoint->best = config.Switch("checkpoint.best");
  if (checkpoint->best && config.Number("train.evaluate_every") == 0)
    return Bad(config, "checkpoint.best", "nothing is evaluated on the way", "train.evaluate_every = 500");
  RETURN_IF_ERROR(Within(config, "checkpoint.every_steps", 0, kCountMax, &checkpoint->every_steps));
  RETURN_IF_ERROR(Within(config, "checkpoint.keep", 1, 1'000'000, &checkpoint->keep));
  if (!checkpoint->folder.empty()) return {};
  for (const char* key : kKeysOfCheckpoints) {
    if (config.IsSet(key)) return Bad(config, key, "no checkpoint.folder is named", "name the folder, or take it out");
  }
  return {};
}

// "mlp or gpt"
template <class Family>
std::string NamesOf(const std::vector<const Family*>& families) {
  std::string names;
  for (std::size_t i = 0; i < families.size(); ++i) names += (i == 0 ? "" : i + 1 == families.size() ? " or " : ", ") + families[i]->name;
  return names;
}

// Keys of all families, each once: what several have is explained by all of them, and begins as the first one's.
template <class Family>
void AddKeys(const std::string& section, const std::vector<const Family*>& families, std::vector<ConfigKey>* keys) {
  for (const Family* family : families) {
    for (const FamilyKey& key : family->keys) {
      const std::string name = section + "." + key.name;
      const auto known = std::find_if(keys->begin(), keys->end(), [&](const ConfigKey& other) { return other.name == name; });
      if (known == keys->end()) {
        keys->push_back({name, key.type, key.fallback, family->name + ": " + key.help});
      } else {
        const bool begins_alike = known->fallback == key.fallback;
        known->help += fmt::format("; {}: {}{}", family->name, key.help, begins_alike ? "" : " (" + key.fallback + ")");
      }
    }
  }
}

Result<TrainJob> ReadJob(const Config& config, bool on_dataset) {
  TrainJob job;
  ASSIGN_OR_RETURN(const ModelFamily* model, ReadFamily(config, "model", ModelFamilies(), &job.model));
  job.model.first_values = config.Text("model.first_values");
  if (!on_dataset) RETURN_IF_ERROR(ReadData(config, *model, &job.data));
  RETURN_IF_ERROR(ReadOptimizer(config, &job.optimizer));
  RETURN_IF_ERROR(ReadCheckpoint(config, &job.checkpoint));
  RETURN_IF_ERROR(Within(config, "train.ranks", 1, 256, &job.ranks));
  RETURN_IF_ERROR(Within(config, "train.ranks_min", 0, 256, &job.ranks_min));
  if (job.ranks_min > job.ranks)
    return Bad(config, "train.ranks_min", fmt::format("there are {} ranks when there is room for all (train.ranks)", job.ranks));
  RETURN_IF_ERROR(Within(config, "train.shrink_after", 0, 24 * 3600, &job.shrink_after));
  if (job.ranks_min == 0 && config.IsSet("train.shrink_after"))
    return Bad(config, "train.shrink_after", "it means nothing where all ranks are needed", "set train.ranks_min, or take it out");
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
  RETURN_IF_ERROR(Choose(config, "train.precision", kPrecisions, &job.precision));
  if (job.precision != Dtype::kF32 && job.dtype != Dtype::kF32)
    return Bad(config, "train.precision", "mixed precision is of f32 and another type, and train.dtype is f64",
               "take out one of the two keys");
  RETURN_IF_ERROR(Choose(config, "train.recompute", kRecomputeMarks, &job.recompute));
  RETURN_IF_ERROR(Choose(config, "train.device", {{"cpu", false}, {"gpu", true}}, &job.gpu));
  job.deterministic = config.Switch("train.deterministic");
  std::int64_t bucket_bytes = 0;
  RETURN_IF_ERROR(Within(config, "train.bucket_bytes", 1, std::int64_t{1} << 40, &bucket_bytes));
  job.bucket_bytes = static_cast<std::size_t>(bucket_bytes);
  RETURN_IF_ERROR(Within(config, "train.threads", 0, 1024, &job.threads));
  RETURN_IF_ERROR(Within(config, "train.evaluate_batch", 0, 1 << 30, &job.evaluate_batch));
  RETURN_IF_ERROR(Within(config, "train.prefetch", 0, 64, &job.prefetch));
  RETURN_IF_ERROR(Within(config, "train.timeout", 0, kCountMax / 1000, &job.timeout));
  RETURN_IF_ERROR(Choose(config, "train.choose_by", kChooseBy, &job.choose_by));
  RETURN_IF_ERROR(Within(config, "train.evaluate_every", 0, kCountMax, &job.evaluate_every));
  RETURN_IF_ERROR(Within(config, "train.patience", 0, kCountMax, &job.patience));
  if (job.patience > 0 && job.evaluate_every == 0)
    return Bad(config, "train.patience", "nothing is evaluated on the way", "train.evaluate_every = 500");
  RETURN_IF_ERROR(Choose(config, "train.nan", kNanPolicies, &job.nan));
  RETURN_IF_ERROR(Within(config, "train.straggler_ratio", 0, 1e6, &job.straggler_ratio));
  if (job.straggler_ratio > 0 && job.straggler_ratio <= 1)
    return Bad(config, "train.straggler_ratio", "a rank that is as fast as its peers is no straggler: more than 1; or 0 for none");
  RETURN_IF_ERROR(Within(config, "train.straggler_steps", 2, 1'000'000, &job.straggler_steps));
  job.anatomy = config.Switch("train.anatomy");
  job.metrics = config.Text("train.metrics");
  job.tensorboard = config.Text("train.tensorboard");
  job.trace = config.Text("train.trace");
  job.frozen = config.Text("train.frozen");
  job.export_to = config.Text("train.export");
  if (!job.export_to.empty() && !ExportsTo(job.export_to))
    return Bad(config, "train.export", "it is neither an ONNX nor a safetensors file", "let its name end in .onnx or .safetensors");
  return job;
}

}  // namespace

std::vector<ConfigKey> TrainKeys() {
  using enum ConfigType;
  std::vector<ConfigKey> keys = {{"model.kind", kText, "mlp", NamesOf(ModelFamilies())}};
  AddKeys("model", ModelFamilies(), &keys);
  keys.push_back({"model.first_values", kText, "", "a safetensors file or a checkpoint that the parameters begin with"});
  keys.push_back({"data.kind", kText, "fashion-mnist", NamesOf(DataFamilies())});
  std::string paths;
  for (const DataFamily* family : DataFamilies())
    paths += (paths.empty() ? "" : "; ") + family->name + ": " + family->path_is +
             (family->default_path.empty() ? "" : " (else " + family->default_path + ")");
  keys.push_back({"data.path", kText, "", paths});
  AddKeys("data", DataFamilies(), &keys);
  keys.push_back({"data.samples_max", kNumber, "0", "use the first so many training samples; 0: all"});
  const std::vector<ConfigKey> others = {
      {"train.ranks", kNumber, "1", "processes that train together"},
      {"train.ranks_min", kNumber, "0", "go on with fewer ranks, so many at least, where there is no room for all; 0: all or none"},
      {"train.shrink_after", kNumber, "5", "seconds to wait for room for all ranks before that"},
      {"train.batch", kNumber, "128", "samples of a step, of all ranks together"},
      {"train.micro_batches", kNumber, "1", "parts of a rank's share of a batch, one after another"},
      {"train.epochs", kNumber, "0", "times through the data (1 unless train.steps is given)"},
      {"train.steps", kNumber, "0", "instead of epochs; as a flag it wins over a file's epochs"},
      {"train.seed", kNumber, "1", "of first values and the order of samples"},
      {"train.dtype", kText, "f32", "f32; f64 runs on slow kernels, for comparisons"},
      {"train.precision", kText, "f32", "of products: f32; bf16 or f16: mixed, with parameters, sums and updates in f32"},
      {"train.recompute", kText, "none", "backward computes again what it needs of forward: none; selective; blocks; sqrt"},
      {"train.device", kText, "cpu", "cpu, or gpu: by the plugin's kernels where a GPU is found, else by the CPU's"},
      {"train.deterministic", kSwitch, "true", "add gradients in the order of the ranks"},
      {"train.bucket_bytes", kBytes, "1M", "gradients travel in buckets of about so many bytes"},
      {"train.threads", kNumber, "0", "of each rank; 0: its share of the cores"},
      {"train.prefetch", kNumber, "2", "batches that are made while a step computes; 0: each is made before its step"},
      {"train.evaluate_batch", kNumber, "0", "samples at a time when the held-out ones are counted; 0: as a step has"},
      {"train.timeout", kNumber, "1800", "seconds that a rank waits for the others in one sum; 0: for ever"},
      {"train.choose_by", kText, "fixed-sizes", "how sums are run: fixed-sizes; or by kept-costs or measured-costs of messages"},
      {"train.evaluate_every", kNumber, "0", "steps between evaluations on the held-out samples; 0: at the end only"},
      {"train.patience", kNumber, "0", "evaluations without a smaller loss, after which it ends; 0: any"},
      {"train.nan", kText, "stop", "a step whose loss or gradients are no numbers: stop; or skip it and count"},
      {"train.straggler_ratio", kDecimal, "1.5",
       "to its peers' time of a step, waiting in sums not counted: such a rank is named; 0: none"},
      {"train.straggler_steps", kNumber, "50", "steps that are looked at together for that"},
      {"train.anatomy", kSwitch, "false", "say where the steps' time went, and MFU, of each rank"},
      {"train.metrics", kText, "", "a file that gets a line of JSON for each step and evaluation"},
      {"train.tensorboard", kText, "", "a folder that gets event files for TensorBoard"},
      {"train.trace", kText, "", "a file that gets the trace of one step, for the trace viewers of browsers"},
      {"train.frozen", kText, "", "parameters that are not trained, by patterns of their names: \"encoder.*, *.bias\""},
      {"train.export", kText, "", "FILE.onnx or FILE.safetensors that gets what was trained"},
      {"optimizer.kind", kText, "sgd", "sgd, adamw, adam, lamb or adagrad"},
      {"optimizer.learning_rate", kDecimal, "0.05", ""},
      {"optimizer.schedule", kText, "constant", "constant, linear, cosine or step: the rate behind the warm-up"},
      {"optimizer.warmup_steps", kNumber, "0", "the rate grows linearly over the first so many steps"},
      {"optimizer.decay_steps", kNumber, "0", "linear, cosine: it falls for so many steps; 0: to the end"},
      {"optimizer.final_fraction", kDecimal, "0", "linear, cosine: what is left of it then, below 1"},
      {"optimizer.step_every", kNumber, "0", "step: it falls each so many steps"},
      {"optimizer.step_factor", kDecimal, "0.1", "step: to this part of it, below 1"},
      {"optimizer.clip_norm", kDecimal, "0", "the largest norm of all gradients together; 0: any"},
      {"optimizer.momentum", kDecimal, "0.9", "sgd"},
      {"optimizer.nesterov", kSwitch, "false", "sgd: the step looks ahead along the momentum"},
      {"optimizer.weight_decay", kDecimal, "0", ""},
      {"optimizer.decay_of", kText, "all", "which parameters decay: all; matrices: neither biases nor gains of norms"},
      {"optimizer.beta1", kDecimal, "0.9", "adamw, adam, lamb"},
      {"optimizer.beta2", kDecimal, "0.999", "adamw, adam, lamb"},
      {"optimizer.epsilon", kDecimal, "1e-8", "adamw, adam, lamb, adagrad"},
      {"optimizer.average", kDecimal, "0", "how much of a moving average of the parameters stays each step, like 0.999; 0: none"},
      {"checkpoint.folder", kText, "", "where checkpoints are written; empty: none"},
      {"checkpoint.every_steps", kNumber, "0", "0: only at the end"},
      {"checkpoint.keep", kNumber, "3", "the newest so many are kept"},
      {"checkpoint.resume", kSwitch, "true", "begin at the newest one that is there"},
      {"checkpoint.best", kSwitch, "false", "keep the one with the smallest held-out loss in FOLDER/best"},
  };
  keys.insert(keys.end(), others.begin(), others.end());
  return keys;
}

std::vector<std::string> PathKeys() {
  std::vector<std::string> keys = {"data.path",         "model.first_values", "checkpoint.folder", "train.metrics",
                                   "train.tensorboard", "train.trace",        "train.export"};
  const auto add = [&](const std::string& section, const auto& families) {
    for (const auto* family : families)
      for (const FamilyKey& key : family->keys)
        if (key.is_path && std::find(keys.begin(), keys.end(), section + "." + key.name) == keys.end())
          keys.push_back(section + "." + key.name);
  };
  add("model", ModelFamilies());
  add("data", DataFamilies());
  return keys;
}

void DropOverruled(Config* config) {
  const auto drop_below = [&](const std::string& winner, const std::string& key) {
    if (config->Layer(key) < config->Layer(winner)) config->Unset(key);
  };
  for (const Belongs& some : KeysOfChoices()) {
    if (IsMeant(*config, some)) continue;
    for (const std::string& key : some.keys) drop_below(some.chooser, key);
  }
  if (config->Text("checkpoint.folder").empty())
    for (const char* key : kKeysOfCheckpoints) drop_below("checkpoint.folder", key);
  if (config->Number("train.steps") > 0) drop_below("train.steps", "train.epochs");
  if (config->Number("train.epochs") > 0) drop_below("train.epochs", "train.steps");
}

Result<TrainJob> ReadTrainJob(const Config& config) { return ReadJob(config, false); }
Result<TrainJob> ReadTrainJobOnDataset(const Config& config) { return ReadJob(config, true); }

std::vector<std::string> AsSettings(const Config& config) {
  std::vector<std::string> settings;
  for (const ConfigEntry& entry : config.Show()) {
    if (config.IsSet(entry.name)) settings.push_back(entry.name + "=" + entry.value);
  }
  return settings;
}

std::vector<std::string> AsSettings(const TrainJob& job) {
  const OptimizerSpec& optimizer = job.optimizer;
  using Kind = OptimizerSpec::Kind;
  std::vector<std::pair<std::string, std::string>> values = {{"model.kind", job.model.kind}};
  for (const auto& kind : kOptimizers)
    if (kind.value == optimizer.kind) values.emplace_back("optimizer.kind", kind.name);
  auto add = [&](const std::string& name, const auto& value) { values.emplace_back(name, fmt::format("{}", value)); };
  // What no key can have is found by who reads the settings.
  std::map<std::string, std::string> model = job.model.more;
  if (const ModelFamily* family = FindModelFamily(job.model.kind)) {
    if (const Result<KeyValues> keys = KeyValues::Of(job.model, family->keys); keys.ok()) {
      model = keys->All();
    } else {
      const std::map<std::string, std::string> members = TextsOf(job.model);
      for (const FamilyKey& key : family->keys)
        if (const auto member = members.find(key.name); member != members.end()) model[key.name] = member->second;
    }
  }
  for (const auto& [name, text] : model) add("model." + name, text);
  add("model.first_values", job.model.first_values);
  add("train.ranks", job.ranks);
  add("train.ranks_min", job.ranks_min);
  if (job.ranks_min > 0) add("train.shrink_after", job.shrink_after);
  add("train.batch", job.batch);
  add("train.micro_batches", job.micro_batches);
  add("train.epochs", job.epochs);
  add("train.steps", job.steps);
  add("train.seed", job.seed);
  add("train.dtype", Name(job.dtype));
  add("train.precision", Name(job.precision));
  for (const auto& marks : kRecomputeMarks)
    if (marks.value == job.recompute) add("train.recompute", marks.name);
  add("train.device", job.gpu ? "gpu" : "cpu");
  add("train.deterministic", job.deterministic);
  add("train.bucket_bytes", job.bucket_bytes);
  add("train.threads", job.threads);
  add("train.evaluate_batch", job.evaluate_batch);
  add("train.prefetch", job.prefetch);
  add("train.timeout", job.timeout);
  for (const auto& way : kChooseBy)
    if (way.value == job.choose_by) add("train.choose_by", way.name);
  add("train.evaluate_every", job.evaluate_every);
  add("train.patience", job.patience);
  add("train.nan", kNanPolicies[job.nan == NanPolicy::kSkip ? 1 : 0].name);
  add("train.straggler_ratio", job.straggler_ratio);
  add("train.straggler_steps", job.straggler_steps);
  add("train.anatomy", job.anatomy);
  add("train.metrics", job.metrics);
  add("train.tensorboard", job.tensorboard);
  add("train.trace", job.trace);
  add("train.frozen", job.frozen);
  add("train.export", job.export_to);
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
  add("optimizer.decay_of", kDecayOf[optimizer.decay_matrices ? 1 : 0].name);
  add("optimizer.average", optimizer.average);
  if (optimizer.kind == Kind::kSgd) {
    add("optimizer.momentum", optimizer.momentum);
    add("optimizer.nesterov", optimizer.nesterov);
  } else {
    if (optimizer.kind != Kind::kAdagrad) {
      add("optimizer.beta1", optimizer.beta1);
      add("optimizer.beta2", optimizer.beta2);
    }
    add("optimizer.epsilon", optimizer.epsilon);
  }
  add("checkpoint.folder", job.checkpoint.folder);
  if (!job.checkpoint.folder.empty()) {
    add("checkpoint.every_steps", job.checkpoint.every_steps);
    add("checkpoint.keep", job.checkpoint.keep);
    add("checkpoint.resume", job.checkpoint.resume);
    add("checkpoint.best", job.checkpoint.best);
  }
  std::vector<std::string> settings;
  for (const auto& [name, value] : values) settings.push_back(name + "=" + value);
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
