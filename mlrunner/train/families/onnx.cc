// Models that are brought along as ONNX files: inputs are fields of the samples, one output is what the model says of a batch, and the loss
// is one of ours of it, or an output of the file. What the file holds of parameters and statistics are their first values.
#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/file.h"
#include "mlrunner/onnx/import.h"
#include "mlrunner/train/comma_list.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/step_graph.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {
namespace {

constexpr const char *kCrossEntropy = "cross-entropy", *kBinary = "binary-cross-entropy", *kSquares = "squared-error";

Status Fits(const KeyValues& keys) {
  if (keys.Text("path").empty()) return keys.Bad("path", "which ONNX file?", "model.path = \"model.onnx\"");
  if (const std::string& by = keys.Text("batch_norm"); by != "batch" && by != "running")
    return keys.Bad("batch_norm", "it takes one of: batch, running");
  return {};
}

Result<onnx::ModelDef> ReadFile(const KeyValues& keys) {
  storage::LocalFileSystem files;
  return onnx::ReadModel(files, keys.Text("path"));
}

// --- inputs ---

std::string NamesOf(const std::vector<Field>& fields) {
  std::string names;
  for (const Field& field : fields) names += (names.empty() ? "" : ", ") + field.name;
  return names;
}

// Which field each input is: as model.inputs says; else the one of its name; else, where there is one input or as many as fields, the first
// that no other input is.
Result<std::vector<std::size_t>> FieldsOf(const Batch& batch, const std::vector<onnx::ValueDef>& inputs) {
  const std::size_t none = batch.fields.size();
  const auto place = [&](const std::string& name) {
    const auto is_it = [&](const Field& field) { return field.name == name; };
    return static_cast<std::size_t>(std::find_if(batch.fields.begin(), batch.fields.end(), is_it) - batch.fields.begin());
  };
  const std::vector<std::string> named = CommaList(batch.keys.Text("inputs"));
  const std::string fix = fmt::format("name a field for each, in the file's order: model.inputs = \"{}\"", batch.fields[0].name);
  if (!named.empty() && named.size() != inputs.size())
    return batch.keys.Bad("inputs", fmt::format("the file has {} inputs, and it names {}", inputs.size(), named.size()), fix);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) places.push_back(place(named.empty() ? inputs[i].name : named[i]));
  const bool in_order = named.empty() && (inputs.size() == 1 || inputs.size() == batch.fields.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t field = 0; in_order && places[i] == none && field < none; ++field)
      if (std::find(places.begin(), places.end(), field) == places.end()) places[i] = field;
    if (places[i] == none)
      return batch.keys.Bad("inputs",
                            fmt::format("what is input {} of the file? Samples have {}, and not {}", inputs[i].name, NamesOf(batch.fields),
                                        named.empty() ? inputs[i].name : named[i]),
                            fix);
  }
  return places;
}

// The field as the input wants it: of its type, and, where it has as many numbers, of its shape.
Result<Value> Shaped(const Batch& batch, const onnx::ValueDef& input, std::size_t place) {
  const Field& field = batch.fields[place];
  Value value = batch.values[place];
  const auto bad = [&](const std::string& why, const std::string& fix) {
    return batch.keys.Bad("path", fmt::format("its input {} is to be the field {} of the samples: {}", input.name, field.name, why), fix);
  };
  if (IsFloat(value.dtype()) && !IsFloat(input.dtype))
    return bad("these are real numbers, and it takes whole ones", "name the right field in model.inputs");
  if (input.has_shape && !input.dims.empty() && input.dims[0].value >= 0)
    return bad(fmt::format("it takes batches of {} only", input.dims[0].value),
               "export it with a batch of any size: dynamic_axes={\"" + input.name + "\": {0: \"batch\"}}, or dynamic_shapes");
  std::int64_t here = 1, there = 1;
  bool is_known = input.has_shape && !input.dims.empty();
  Shape shape{batch.rows};
  for (std::int64_t length : field.dims) here *= length;
  for (std::size_t i = 1; i < input.dims.size(); ++i) {
    is_known = is_known && input.dims[i].value >= 0 && !__builtin_mul_overflow(there, input.dims[i].value, &there);
    shape.emplace_back(std::max<std::int64_t>(0, input.dims[i].value));
  }
  if (is_known && here != there)
    return bad(fmt::format("it has {} numbers a sample, and {} are wanted", here, there), "take other data, or a model for such samples");
  if (is_known && shape != value.shape()) value = Reshape(value, shape);
  return value.dtype() == input.dtype ? value : Cast(value, input.dtype);
}

// --- loss ---

struct Named {
  std::string loss;  // an output; empty: one of ours
  std::string said;
};
// Which outputs are meant.
Result<Named> OutputsOf(const KeyValues& keys, const std::vector<onnx::ValueDef>& outputs) {
  std::vector<std::string> names;
  for (const onnx::ValueDef& output : outputs) names.push_back(output.name);
  const auto has = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  const std::string there = fmt::format("its outputs are {}", fmt::join(names, ", "));
  Named named;
  const std::string& loss = keys.Text("loss");
  if (const bool is_ours = loss == kCrossEntropy || loss == kBinary || loss == kSquares; !is_ours) {
    named.loss = loss.empty() && has("loss") ? "loss" : loss;
    if (!named.loss.empty() && !has(named.loss))
      return keys.Bad("loss", "the file has no output of that name; " + there,
                      fmt::format("name one of them, or {}, {} or {}", kCrossEntropy, kBinary, kSquares));
  }
  named.said = keys.Text("output");
  if (named.said.empty()) {
    for (const std::string& name : names) {
      if (name == named.loss) continue;
      if (named.said.empty() || named.said == "loss") named.said = name;  // what is called loss is one, though ours is taken
    }
  }
  if (named.said.empty())
    return keys.Bad("output", "the file gives its loss only, and by that nobody can count what it gets right",
                    "export the model with its logits as a second output");
  if (!has(named.said)) return keys.Bad("output", "the file has no output of that name; " + there, "name one of them");
  return named;
}

Value InF32(const Value& value) { return value.dtype() == Dtype::kF32 ? value : Cast(value, Dtype::kF32); }
std::string Show(const Batch& batch, const Value& value) { return ToString(value.shape(), batch.b.graph().symbols); }

// One logit or number for each label: (B, ..., 1) is as good as (B, ...).
std::optional<Value> ForEachLabel(const Value& said, const Value& labels) {
  if (said.shape() == labels.shape()) return said;
  Shape longer = labels.shape();
  longer.emplace_back(1);
  return said.shape() == longer ? std::optional(Reshape(said, labels.shape())) : std::nullopt;
}

// Logits of classes for each label.
bool AreLogits(const Value& said, const Value& labels) {
  return said.rank() == labels.rank() + 1 && std::equal(labels.shape().begin(), labels.shape().end(), said.shape().begin());
}

// By one of our losses.
Result<Learnt> Judged(const Batch& batch, const onnx::ImportedModel& model, const Value& said, const std::string& loss) {
  const Field& label = batch.fields.back();
  const Value& labels = batch.values.back();
  if (loss == kBinary || loss == kSquares) {
    const std::optional<Value> each = ForEachLabel(said, labels);
    if (!each)
      return batch.keys.Bad("output", fmt::format("it gives {}, and labels are {}", Show(batch, said), Show(batch, labels)),
                            "there must be one number for each label");
    if (loss == kBinary && label.classes > 2)
      return batch.keys.Bad("loss", fmt::format("labels are 0 or 1 there, and the samples have {} classes", label.classes),
                            "take cross-entropy");
    if (loss == kBinary) return Judge(batch, {.logits = InF32(*each), .parameters = model.parameters}, InF32(labels));
    const Value off = InF32(*each) - InF32(labels), weights = batch.WeightsFor(labels);
    Learnt learnt{.parameters = model.parameters, .loss = ReduceSum(off * off * weights), .hits = {}};
    if (!batch.training) learnt.hits = ReduceSum(Cast(Less(Abs(off), .5), Dtype::kF32) * weights);  // it rounds to the label
    return learnt;
  }
  if (label.dtype != Dtype::kI32)
    return batch.keys.Bad("loss", "labels are no classes, but real numbers", fmt::format("take {} or {}", kSquares, kBinary));
  if (!AreLogits(said, labels))
    return batch.keys.Bad("output",
                          fmt::format("it gives {}, and logits for labels {} are ({}, classes)", Show(batch, said), Show(batch, labels),
                                      label.dims.empty() ? "B" : "B, ..."),
                          "name the output with the logits, or another model.loss");
  if (const auto classes = said.dim(-1).Constant(); classes && *classes < label.classes)
    return batch.keys.Bad("output", fmt::format("it knows {} classes, and labels are of {}", *classes, label.classes),
                          "take a model for as many, or data of fewer");
  return Classify(batch, {.logits = InF32(said), .parameters = model.parameters}, labels);
}

// A loss that the file takes itself: of each sample or label, or a mean over the batch.
Result<Value> Weighted(const Batch& batch, const Value& loss) {
  const Value& labels = batch.values.back();
  double per_sample = 1;
  for (std::int64_t length : batch.fields.back().dims) per_sample *= static_cast<double>(length);
  if (loss.rank() == 0) return InF32(loss) * ReduceSum(batch.weights) * per_sample;
  if (loss.shape() == labels.shape()) return ReduceSum(InF32(loss) * batch.WeightsFor(labels));
  if (loss.rank() == 1 && loss.dim(0) == batch.rows) return ReduceSum(InF32(loss) * batch.weights) * per_sample;
  return batch.keys.Bad("loss", fmt::format("that output is {}", Show(batch, loss)),
                        "let it be one number for the batch, for each sample, or for each label");
}

Result<Learnt> Build(const Batch& batch) {
  const KeyValues& keys = batch.keys;
  ASSIGN_OR_RETURN(onnx::ModelDef file, ReadFile(keys));
  ASSIGN_OR_RETURN(const Named named, OutputsOf(keys, file.graph.outputs));
  ASSIGN_OR_RETURN(const std::vector<std::size_t> places, FieldsOf(batch, file.graph.inputs));
  onnx::ImportOptions options{.mode = batch.training ? onnx::ImportMode::kTraining : onnx::ImportMode::kEvaluation,
                              .running_batch_norm = keys.Text("batch_norm") == "running",
                              .ranks = kDataAxis,
                              .weights = batch.weights};
  for (std::size_t i = 0; i < places.size(); ++i) {
    ASSIGN_OR_RETURN(options.inputs[file.graph.inputs[i].name], Shaped(batch, file.graph.inputs[i], places[i]));
  }
  ASSIGN_OR_RETURN(onnx::ImportedModel model, onnx::ImportModel(batch.b, file, keys.Text("path"), options));
  const auto output = [&](const std::string& name) {
    return std::find_if(model.outputs.begin(), model.outputs.end(), [&](const auto& each) { return each.name == name; })->value;
  };
  // What only other outputs need is not trained: no gradient moves it, and no weight decay shall.
  const std::set<std::string> needed = onnx::NamesNeeded(file.graph, {named.loss.empty() ? named.said : named.loss});
  std::erase_if(model.parameters,
                [&](const Parameter& parameter) { return !needed.contains(batch.b.graph().state(parameter.state).name); });
  const Value said = output(named.said);
  Learnt learnt;
  if (named.loss.empty()) {
    ASSIGN_OR_RETURN(learnt, Judged(batch, model, said, keys.Text("loss")));
  } else {
    learnt.parameters = model.parameters;
    const Value loss = output(named.loss);
    ASSIGN_OR_RETURN(learnt.loss, Weighted(batch, loss));
    learnt.needs_whole_batches = loss.rank() == 0;
    if (!batch.training) {
      ASSIGN_OR_RETURN(const Learnt counted, Judged(batch, model, said, AreLogits(said, batch.values.back()) ? kCrossEntropy : kSquares));
      learnt.hits = counted.hits;
    }
  }
  learnt.said = said;
  learnt.first_values = std::move(model.weights);
  return learnt;
}

// With the inputs and outputs of the file, but for its loss and what only that needs.
Result<Exported> Forward(Builder& b, const KeyValues& keys) {
  ASSIGN_OR_RETURN(onnx::ModelDef file, ReadFile(keys));
  ASSIGN_OR_RETURN(const Named named, OutputsOf(keys, file.graph.outputs));
  std::erase_if(file.graph.outputs, [&](const onnx::ValueDef& output) { return output.name == named.loss; });
  ASSIGN_OR_RETURN(onnx::ImportedModel model, onnx::ImportModel(b, file, keys.Text("path"), {.mode = onnx::ImportMode::kEvaluation}));
  Exported exported;
  for (const onnx::NamedResult& output : model.outputs) exported.outputs.emplace_back(output.name, output.value);
  return exported;
}

}  // namespace

const ModelFamily& OnnxFamily() {
  using enum ConfigType;
  using enum SampleKind;
  static const ModelFamily family{
      .name = "onnx",
      .help = "a model of your own, from an ONNX file",
      .learns_from = {kFeatures, kImages, kTokens, kClicks},
      .keys =
          {{.name = "path", .type = kText, .fallback = "", .help = "the ONNX file", .is_path = true},
           {"output", kText, "", "its output with the logits; empty: the first one that is no loss"},
           {"loss", kText, "",
            "cross-entropy, binary-cross-entropy, squared-error, or an output of the file; empty: its output \"loss\", or cross-entropy"},
           {"inputs", kText, "", "the fields of samples that its inputs are, in the file's order; empty: those of their names"},
           {"batch_norm", kText, "batch", "batch norms go by the batch, or by the file's running statistics: batch or running"},
           {"length", kNumber, "128", "tokens of a sample", 1, 1 << 16}},
      .check = Fits,
      .build = Build,
      .forward = Forward,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
