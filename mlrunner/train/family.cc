#include "mlrunner/train/family.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/train/spec_members.h"

namespace ropewalk::mlrunner {
namespace {

std::vector<ConfigKey> WithSection(const std::string& section, const std::vector<FamilyKey>& keys) {
  std::vector<ConfigKey> all;
  for (const FamilyKey& key : keys) all.push_back({section + "." + key.name, key.type, key.fallback, key.help});
  return all;
}

}  // namespace

KeyValues::KeyValues(std::string section, const std::vector<FamilyKey>& keys)
    : section_(std::move(section)), config_(WithSection(section_, keys), "docs/training.md lists all keys") {
  for (const FamilyKey& key : keys) fallbacks_[key.name] = key.fallback;
}

Status KeyValues::Set(const std::string& name, const std::string& text, const std::string& origin) {
  return config_.Set(ConfigLayer::kFlag, {Full(name), text, origin});
}

Result<KeyValues> KeyValues::Read(const Config& config, std::string section, const std::vector<FamilyKey>& keys) {
  KeyValues values(std::move(section), keys);
  for (const FamilyKey& key : keys) {
    const std::string name = values.Full(key.name);
    if (config.IsSet(name)) RETURN_IF_ERROR(values.Set(key.name, config.Text(name), config.Origin(name)));
  }
  RETURN_IF_ERROR(values.InBounds(keys));
  return values;
}

Result<KeyValues> KeyValues::Of(const ModelSpec& spec, const std::vector<FamilyKey>& keys) {
  KeyValues values("model", keys);
  for (const auto& [name, text] : TextsOf(spec))
    if (values.Has(name)) RETURN_IF_ERROR(values.Set(name, text, "ModelSpec"));
  for (const auto& [name, text] : spec.more) RETURN_IF_ERROR(values.Set(name, text, "ModelSpec::more"));
  RETURN_IF_ERROR(values.InBounds(keys));
  return values;
}

Result<KeyValues> KeyValues::Of(const DataSpec& spec, const std::vector<FamilyKey>& keys) {
  KeyValues values("data", keys);
  for (const auto& [name, text] : TextsOf(spec))
    if (values.Has(name)) RETURN_IF_ERROR(values.Set(name, text, "DataSpec"));
  for (const auto& [name, text] : spec.more) RETURN_IF_ERROR(values.Set(name, text, "DataSpec::more"));
  RETURN_IF_ERROR(values.InBounds(keys));
  return values;
}

Status KeyValues::InBounds(const std::vector<FamilyKey>& keys) const {
  for (const FamilyKey& key : keys) {
    const auto low = static_cast<std::int64_t>(key.low), high = static_cast<std::int64_t>(key.high);
    switch (key.type) {
      case ConfigType::kNumber:
      case ConfigType::kBytes: {
        const std::uint64_t number = config_.Number(Full(key.name));
        if (number > static_cast<std::uint64_t>(high) || static_cast<std::int64_t>(number) < low)
          return Bad(key.name, fmt::format("it lies in [{}, {}]", low, high));
        break;
      }
      case ConfigType::kNumbers:
        for (std::int64_t number : Numbers(key.name))
          if (number < low || number > high) return Bad(key.name, fmt::format("each number lies in [{}, {}]", low, high));
        break;
      case ConfigType::kDecimal:
        if (const double number = Decimal(key.name); number < key.low || number >= key.high)
          return Bad(key.name, fmt::format("it lies in [{}, {})", key.low, key.high));
        break;
      case ConfigType::kText:
      case ConfigType::kSwitch:
        break;
    }
  }
  return {};
}

std::int64_t KeyValues::Number(std::string_view name) const { return static_cast<std::int64_t>(config_.Number(Full(name))); }

Status KeyValues::Bad(std::string_view name, const std::string& why, const std::string& fix) const {
  const std::string full = Full(name);
  return Status(Code::kInvalid, "SPEC02",
                fmt::format("{}: \"{}\" is no value for {}", config_.Origin(full), EscapeForLog(config_.Text(full), 200), full),
                EscapeForLog(why), EscapeForLog(fix));  // which name what files hold
}

std::map<std::string, std::string> KeyValues::All() const {
  std::map<std::string, std::string> all;
  for (const auto& [name, fallback] : fallbacks_) all[name] = Text(name);
  return all;
}

const Field& Batch::FieldOf(std::string_view name) const {
  for (const Field& field : fields)
    if (field.name == name) return field;
  std::abort();  // a family that asks for what its kinds of samples do not have is our bug
}

const Value& Batch::At(std::string_view name) const { return values[static_cast<std::size_t>(&FieldOf(name) - fields.data())]; }

Value Batch::WeightsFor(const Value& per_label) const {
  if (per_label.rank() <= 1) return weights;
  Shape shape(per_label.rank(), Dim(1));
  shape[0] = rows;
  return Reshape(weights, shape);
}

Learnt Classify(const Batch& batch, const Model& model, const Value& labels) {
  const Value weights = batch.WeightsFor(labels);
  Learnt learnt{
      .parameters = model.parameters, .loss = ReduceSum(CrossEntropy(model.logits, labels) * weights), .hits = {}, .said = model.logits};
  if (!batch.training) learnt.hits = ReduceSum(Cast(Equal(Cast(ArgMax(model.logits), Dtype::kI32), labels), Dtype::kF32) * weights);
  return learnt;
}

Learnt Judge(const Batch& batch, const Model& model, const Value& labels) {
  const Value weights = batch.WeightsFor(labels);
  const Value& x = model.logits;
  Learnt learnt{.parameters = model.parameters, .loss = ReduceSum(BinaryCrossEntropy(x, labels) * weights), .hits = {}, .said = x};
  if (!batch.training) {
    const Value said = Cast(Greater(x, 0.0), Dtype::kF32);
    learnt.hits = ReduceSum(Cast(Equal(said, labels), Dtype::kF32) * weights);
    learnt.scores = x;
  }
  return learnt;
}

bool LearnsFrom(const ModelFamily& model, SampleKind kind) {
  return std::find(model.learns_from.begin(), model.learns_from.end(), kind) != model.learns_from.end();
}
bool Gives(const DataFamily& data, SampleKind kind) { return std::find(data.gives.begin(), data.gives.end(), kind) != data.gives.end(); }

Result<SampleKind> KindFor(const ModelFamily& model, const DataFamily& data) {
  for (SampleKind kind : model.learns_from)
    if (Gives(data, kind)) return kind;
  std::vector<std::string> fitting;
  for (const DataFamily* other : DataFamilies()) {
    if (std::any_of(model.learns_from.begin(), model.learns_from.end(), [&](SampleKind kind) { return Gives(*other, kind); }))
      fitting.push_back(other->name);
  }
  return Status(Code::kInvalid, "SPEC02", fmt::format("\"{}\" is no value for data.kind", data.name),
                fmt::format("a model of kind \"{}\" does not learn from it", model.name),
                fitting.empty() ? model.name + " learns from a dataset of a batch job only"
                                : fmt::format("{} goes with {}", model.name, fmt::join(fitting, ", ")));
}

Result<DataSet> LoadData(const TrainJob& job, const std::function<std::string()>& kept_vocabulary) {
  const ModelFamily* model = FindModelFamily(job.model.kind);
  const DataFamily* data = FindDataFamily(job.data.kind);
  if (model == nullptr || data == nullptr)
    return Status(Code::kInvalid, "SPEC02",
                  fmt::format("model.kind \"{}\" or data.kind \"{}\" is not known", job.model.kind, job.data.kind),
                  "there is no such family", "`ropewalk train --help` lists them");
  ASSIGN_OR_RETURN(const SampleKind kind, KindFor(*model, *data));
  ASSIGN_OR_RETURN(const KeyValues model_keys, KeyValues::Of(job.model, model->keys));
  ASSIGN_OR_RETURN(const KeyValues data_keys, KeyValues::Of(job.data, data->keys));
  return data->load({.keys = data_keys,
                     .model = model_keys,
                     .kind = kind,
                     .path = job.data.path.empty() ? data->default_path : job.data.path,
                     .seed = job.seed,
                     .kept_vocabulary = kept_vocabulary});
}

}  // namespace ropewalk::mlrunner
