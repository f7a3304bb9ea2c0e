#include "mlrunner/data/text.h"

#include <utility>

#include "mlrunner/data/masked.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

constexpr const char* kTokens = "5000";

Status Fits(const KeyValues& keys) {
  const std::string& tokenizer = keys.Text("tokenizer");
  if (tokenizer != "characters" && tokenizer != "bpe") return keys.Bad("tokenizer", "it takes one of: characters, bpe");
  const bool pairs = tokenizer == "bpe", is_given = !keys.Text("vocabulary").empty();
  if (is_given && !pairs) return keys.Bad("vocabulary", "characters have none", "take it out, or set data.tokenizer = \"bpe\"");
  if (keys.All().at("vocabulary_size") == kTokens) return {};
  if (!pairs) return keys.Bad("vocabulary_size", "there are as many characters as the text has", "take it out");
  return is_given ? keys.Bad("vocabulary_size", "data.vocabulary says how many tokens there are", "take one of the two out") : Status();
}

Result<DataSet> Load(const DataRequest& r) {
  const std::int64_t length = r.model.Number("length");
  const double held_out = r.keys.Decimal("held_out");
  const bool pairs_of_bytes = r.keys.Text("tokenizer") == "bpe";
  BytePairOptions pairs{.vocabulary = r.keys.Text("vocabulary"), .tokens = r.keys.Number("vocabulary_size"), .kept = {}};
  if (pairs_of_bytes && pairs.vocabulary.empty() && r.kept_vocabulary) pairs.kept = r.kept_vocabulary();
  ASSIGN_OR_RETURN(DataSet tokens, !pairs_of_bytes ? LoadText(r.path, length, held_out) : LoadBytePairs(r.path, length, held_out, pairs));
  if (r.kind == SampleKind::kTokens) return tokens;
  return MaskTokens(std::move(tokens), {.part = r.model.Decimal("masked"), .seed = r.seed});
}

}  // namespace

const DataFamily& TextFamily() {
  using enum ConfigType;
  static const DataFamily family{
      .name = "text",
      .help = "the characters or byte pairs of a file",
      .gives = {SampleKind::kTokens, SampleKind::kMaskedTokens},
      .keys = {{"held_out", kDecimal, "0.1", "the last part of it is not trained on", 0, 1},
               {"tokenizer", kText, "characters", "characters or bpe: byte pairs"},
               {.name = "vocabulary",
                .type = kText,
                .fallback = "",
                .help = "folder with GPT-2's vocabulary files; empty: byte pairs are learnt from the text",
                .is_path = true},
               {"vocabulary_size", kNumber, kTokens, "byte pairs that are learnt", 256, 1 << 22}},
      .path_is = "text",
      .default_path = "",
      .check = Fits,
      .load = Load,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
