// Families of models and of data: what a training job can name as model.kind and data.kind. A family is a value that says all about itself,
// so that adding one is a file in train/families/ and a line in families.cc; job files, flags, --help, errors and the trainer follow.
//
//   job file ── keys ──▶ KeyValues ──▶ DataFamily::load ──▶ Samples (named fields) ──▶ batch on each rank
//                            │                                                             │
//                            └───────▶ ModelFamily::build ◀── Batch: a value for each field, weights of the rows
//                                          └──▶ Learnt: parameters, the loss, what is hit  ──▶ gradients, sums, update (step_graph.h)
//
// A model of a family learns from kinds of samples (data/samples.h), data gives some: a job takes two that have one in common, the first
// one of the model's. The loss is the family's own, and sums over all labels with the weights of their rows.
//
// Thread rule: values and pure functions, but for `load`, which reads files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/builder.h"
#include "mlrunner/models/layers.h"
#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

// A key that jobs of the family may have. Two families may have one of the same name and type; where it is a member of ModelSpec or
// DataSpec it begins alike in all of them.
struct FamilyKey {
  std::string name;  // without its section: "layers" of model.layers
  ConfigType type = ConfigType::kNumber;
  std::string fallback;
  std::string help;  // without the family's name
  // Numbers, each of several ones, and what is in bytes lie in [low, high]; decimals in [low, high).
  double low = 0, high = 1 << 20;
  bool is_path = false;  // relative to where the command is typed; every process gets it absolute
};

// What a job says of the keys of its family. Names are without the section; one that the family does not have is our bug (abort).
class KeyValues {
 public:
  // Of a job file and its flags. SPEC02: a number beyond its bounds.
  static Result<KeyValues> Read(const Config& config, std::string section, const std::vector<FamilyKey>& keys);
  // Of a job that was made in C++. SPEC01: `more` names what is no key of the family; SPEC02.
  static Result<KeyValues> Of(const ModelSpec& spec, const std::vector<FamilyKey>& keys);
  static Result<KeyValues> Of(const DataSpec& spec, const std::vector<FamilyKey>& keys);

  bool Has(std::string_view name) const { return fallbacks_.contains(name); }
  std::int64_t Number(std::string_view name) const;  // also of bytes
  double Decimal(std::string_view name) const { return config_.Decimal(Full(name)); }
  bool Switch(std::string_view name) const { return config_.Switch(Full(name)); }
  const std::string& Text(std::string_view name) const { return config_.Text(Full(name)); }
  std::vector<std::int64_t> Numbers(std::string_view name) const { return config_.Numbers(Full(name)); }

  // SPEC02: the value of a key does not fit the others.
  Status Bad(std::string_view name, const std::string& why, const std::string& fix = "mend the value") const;
  // By name, as a job file would have them.
  std::map<std::string, std::string> All() const;

 private:
  KeyValues(std::string section, const std::vector<FamilyKey>& keys);
  Status Set(const std::string& name, const std::string& text, const std::string& origin);
  Status InBounds(const std::vector<FamilyKey>& keys) const;
  std::string Full(std::string_view name) const { return section_ + "." + std::string(name); }
  std::string section_;
  std::map<std::string, std::string, std::less<>> fallbacks_;
  Config config_;
};

// A batch as values of a graph.
struct Batch {
  Builder& b;
  const KeyValues& keys;
  const std::vector<Field>& fields;
  std::vector<Value> values;  // of the fields, in their order: (B, ...)
  Dim rows;                   // B
  Value weights;              // (B): 1 / (labels of the global batch), or 0 for a row that only fills the batch up; counting: 1 or 0
  bool training = true;       // false: the graph that counts what the model gets right of samples that it does not learn from
  std::int32_t ranks = 1;     // that train together; a family that needs sums over them in its forward has kDataAxis (step_graph.h)

  // Of the field, which the samples have: they are of a kind that the family learns from.
  const Field& FieldOf(std::string_view name) const;
  const Value& At(std::string_view name) const;
  // The weights in the shape of (B, ...) values of that rank.
  Value WeightsFor(const Value& per_label) const;
};

// First values of states, by name, in the places of those that their initializers give.
using FirstValues = std::map<std::string, Tensor>;

// What a model makes of a batch.
struct Learnt {
  std::vector<Parameter> parameters;
  Value loss;  // (): the sum over all labels, weighted
  Value hits;  // (): the weighted number of labels that it gets right; needed where the batch is not for training
  // As the labels, which are 0 or 1: the larger, the likelier is 1. Where there are some the area under the ROC curve is counted.
  Value scores{};
  // (): numbers for people, each the sum over the rows that count: train.metrics has those of the global batch, by name. Exact up to 2^24.
  struct Figure {
    std::string name;
    Value value;
  };
  std::vector<Figure> figures{};
  Value said{};                // (B, ...): what the model says of the batch, logits as a rule: what an export gives
  FirstValues first_values{};  // of a model that is brought along; what is not named begins as its initializer says
  // The loss is a mean that a model of somebody else's takes itself: rows that only fill a batch up would count. There may be none.
  bool needs_whole_batches = false;
};

// Cross entropy of logits (B, ..., classes) with labels (B, ...), and a hit where the largest logit is the label's.
Learnt Classify(const Batch& batch, const Model& model, const Value& labels);
// Binary cross entropy of one logit a label with labels of 0 and 1, both (B, ...): max(x, 0) - x y + log(1 + e^-|x|). A hit is on the right
// side of 0.
Learnt Judge(const Batch& batch, const Model& model, const Value& labels);

// What a model gives whom it is handed to, in the form that was brought along.
struct Exported {
  std::vector<std::pair<std::string, Value>> outputs;
};

struct ModelFamily {
  std::string name;
  std::string help;  // a few words
  std::vector<SampleKind> learns_from;
  // One that learns from kTokens or kMaskedTokens has `length`: how many a sample has; from kMaskedTokens also `masked`: which part of them
  // is asked for.
  std::vector<FamilyKey> keys;
  Status (*check)(const KeyValues&) = nullptr;  // whether the values fit together (KeyValues::Bad); null: always
  Result<Learnt> (*build)(const Batch&) = nullptr;
  // The model alone, with inputs of its own: what is exported, where that is not Learnt::said of a batch that is not for training. States
  // are called as in `build`.
  Result<Exported> (*forward)(Builder&, const KeyValues&) = nullptr;
};

struct DataRequest {
  const KeyValues& keys;   // of the data
  const KeyValues& model;  // for what the samples have to be like: `length`
  SampleKind kind = SampleKind::kFeatures;
  std::string path;  // data.path, absolute
  std::uint64_t seed = 0;
  // Looks for the folder beside a checkpoint that is gone on from, in which it has kept the vocabulary that it has learnt; empty: there is
  // none. Null: nothing is gone on from. Called where one would be learnt otherwise.
  std::function<std::string()> kept_vocabulary;
};

struct DataFamily {
  std::string name;
  std::string help;
  std::vector<SampleKind> gives;
  std::vector<FamilyKey> keys;
  // What lies at data.path ("text"), and where that is when it is not said; empty: it has to be said.
  std::string path_is, default_path;
  Status (*check)(const KeyValues&) = nullptr;
  Result<DataSet> (*load)(const DataRequest&) = nullptr;
};

const std::vector<const ModelFamily*>& ModelFamilies();
const std::vector<const DataFamily*>& DataFamilies();
// Null: there is none of that name.
const ModelFamily* FindModelFamily(std::string_view name);
const DataFamily* FindDataFamily(std::string_view name);

bool LearnsFrom(const ModelFamily& model, SampleKind kind);
bool Gives(const DataFamily& data, SampleKind kind);
// The kind of samples that the two have in common. SPEC02: there is none.
Result<SampleKind> KindFor(const ModelFamily& model, const DataFamily& data);
// What the job's [data] names. `kept_vocabulary`: DataRequest's.
Result<DataSet> LoadData(const TrainJob& job, const std::function<std::string()>& kept_vocabulary = {});

}  // namespace ropewalk::mlrunner
