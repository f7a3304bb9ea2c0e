#include "mlrunner/models/gpt.h"

#include <utility>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/train/families/attention_keys.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::pair<const char*, const char*> kOfExperts[] = {{"top_k", "2"}, {"capacity_factor", "1.25"}, {"experts_every", "2"}};

Result<Learnt> Build(const Batch& batch) {
  const KeyValues& keys = batch.keys;
  const std::int64_t length = keys.Number("length");
  const GptModel model = Gpt(batch.b,
                             {.vocabulary = batch.FieldOf("tokens").classes,
                              .length = length,
                              .width = keys.Number("width"),
                              .heads = keys.Number("heads"),
                              .layers = keys.Number("layers"),
                              .tied = keys.Switch("tied"),
                              .experts = keys.Number("experts"),
                              .top_k = keys.Number("top_k"),
                              .capacity_factor = keys.Decimal("capacity_factor"),
                              .experts_every = keys.Number("experts_every")},
                             batch.At("tokens"));
  Learnt learnt = Classify(batch, model, batch.At("next"));
  if (batch.training && model.dropped.valid()) {
    // Weights are those of a label, and a sequence has `length`: the mean over the sequences of the global batch.
    learnt.loss = learnt.loss + ReduceSum(model.auxiliary_loss * batch.weights) * static_cast<double>(length);
    learnt.figures.push_back({"dropped_tokens", ReduceSum(model.dropped * Cast(Greater(batch.weights, 0.0), Dtype::kF32))});
  }
  return learnt;
}

Status Fits(const KeyValues& keys) {
  RETURN_IF_ERROR(HeadsDivide(keys));
  const std::int64_t experts = keys.Number("experts"), every = keys.Number("experts_every"), layers = keys.Number("layers");
  if (experts == 0) {
    const auto all = keys.All();
    for (const auto& [name, fallback] : kOfExperts)
      if (all.at(name) != fallback) return keys.Bad(name, "there are no experts", "take it out, or set model.experts");
    return {};
  }
  if (keys.Number("top_k") > experts) return keys.Bad("top_k", fmt::format("there are {} experts", experts));
  if (every > layers) return keys.Bad("experts_every", fmt::format("there are {} blocks: none has experts then", layers));
  return {};
}

}  // namespace

const ModelFamily& GptFamily() {
  using enum ConfigType;
  static const ModelFamily family{
      .name = "gpt",
      .help = "a decoder that says the next token",
      .learns_from = {SampleKind::kTokens},
      .keys = AttentionKeys(
          {{"tied", kSwitch, "false", "the last map is the table of tokens"},
           {"experts", kNumber, "0", "that take the place of a block's perceptron; 0: none", 0, 4096},
           {"top_k", kNumber, kOfExperts[0].second, "experts of a token", 1, 4096},
           {"capacity_factor", kDecimal, kOfExperts[1].second, "room of the experts, 1: for all choices, if they are even", .01, 1024},
           {"experts_every", kNumber, kOfExperts[2].second, "each so many-th block has experts", 1, 1000}}),
      .check = Fits,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
