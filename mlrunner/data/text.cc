#include "mlrunner/data/text.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "mlrunner/data/bpe.h"
#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::size_t kBytesMax = std::size_t{4} << 30;

// A part of a text as numbers of a vocabulary. T: what holds one of them.
template <class T>
class Stretches final : public Samples {
 public:
  // `learnt`: the vocabulary, where it was learnt from the text.
  Stretches(std::vector<T> ids, std::int64_t length, std::int64_t vocabulary, std::uint64_t symbols_hash, const char* labels_are,
            std::shared_ptr<const Bpe> learnt = nullptr)
      : ids_(std::move(ids)), length_(length), symbols_hash_(symbols_hash), labels_are_(labels_are), learnt_(std::move(learnt)) {
    fields_ = {{"tokens", Dtype::kI32, {length}, vocabulary}, {"next", Dtype::kI32, {length}, vocabulary}};
  }
  // The last one has no next one.
  std::int64_t count() const override { return (static_cast<std::int64_t>(ids_.size()) - 1) / length_; }
  const std::vector<Field>& fields() const override { return fields_; }
  // The label of a place is what comes behind it.
  void Fill(const FillCall& call) const override {
    const auto shift = static_cast<std::int64_t>(call.field);
    auto* row = static_cast<std::int32_t*>(call.rows);
    for (std::int64_t sample : call.ids) {
      const T* id = ids_.data() + sample * length_ + shift;
      row = std::copy(id, id + length_, row);
    }
  }
  std::string_view labels_are() const override { return labels_are_; }
  std::uint64_t content_hash() const override { return HashCombine(Checksum64(std::as_bytes(std::span(ids_))), symbols_hash_); }
  std::uint64_t vocabulary_hash() const override { return symbols_hash_; }
  Status SaveVocabulary(storage::FileSystem& files, const std::string& folder) const override {
    return learnt_ == nullptr ? Status() : learnt_->Save(files, folder);
  }

 private:
  std::vector<T> ids_;
  std::int64_t length_;
  std::vector<Field> fields_;
  std::uint64_t symbols_hash_;
  const char* labels_are_;
  std::shared_ptr<const Bpe> learnt_;
};

Status TooShort(const std::string& path, std::size_t all, std::size_t kept_back, std::size_t needed, const char* of) {
  return Status(Code::kUserError, "DATA04", fmt::format("{} is too short: {} {}", storage::QuotedPath(path), all, of),
                fmt::format("{} are held out, and both parts need {} for one sample", kept_back, needed),
                "take a longer text or a smaller model.length");
}

template <class T>
DataSet PairsAs(const std::vector<std::int32_t> (&parts)[2], std::int64_t length, const Bpe& bpe, std::shared_ptr<const Bpe> learnt) {
  auto samples = [&](const std::vector<std::int32_t>& ids) {
    return std::make_unique<Stretches<T>>(std::vector<T>(ids.begin(), ids.end()), length, bpe.size(), bpe.hash(), "tokens", learnt);
  };
  return {samples(parts[0]), samples(parts[1])};
}

// What an earlier part of a training has kept; null: nothing that can be taken. Whether it is the one of a checkpoint its hash says.
std::shared_ptr<const Bpe> Kept(const BytePairOptions& options) {
  if (options.kept.empty()) return nullptr;
  auto bpe = Bpe::LoadFolder(options.kept);
  return bpe.ok() && bpe->size() <= options.tokens ? std::make_shared<const Bpe>(*std::move(bpe)) : nullptr;
}

}  // namespace

Result<DataSet> LoadText(const std::string& path, std::int64_t length, double held_out) {
  ASSIGN_OR_RETURN(std::string text, storage::ReadWhole(path, kBytesMax));
  auto kept_back = static_cast<std::size_t>(static_cast<double>(text.size()) * held_out);
  const auto needed = static_cast<std::size_t>(length) + 1;
  if (kept_back < needed || text.size() - kept_back < needed) return TooShort(path, text.size(), kept_back, needed, "bytes");
  std::array<bool, 256> occurs{};
  for (char c : text) occurs[static_cast<std::uint8_t>(c)] = true;
  std::array<std::uint8_t, 256> id{};
  std::string symbols;  // by id
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (!occurs[byte]) continue;
    id[byte] = static_cast<std::uint8_t>(symbols.size());
    symbols += static_cast<char>(byte);
  }
  auto samples = [&](std::string_view part) {
    std::vector<std::uint8_t> ids;
    ids.reserve(part.size());
    for (char c : part) ids.push_back(id[static_cast<std::uint8_t>(c)]);
    return std::make_unique<Stretches<std::uint8_t>>(std::move(ids), length, static_cast<std::int64_t>(symbols.size()), Checksum64(symbols),
                                                     "characters");
  };
  const std::string_view all = text;
  return DataSet{samples(all.substr(0, all.size() - kept_back)), samples(all.substr(all.size() - kept_back))};
}

Result<DataSet> LoadBytePairs(const std::string& path, std::int64_t length, double held_out, const BytePairOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, storage::ReadWhole(path, kBytesMax));
  auto cut = text.size() - static_cast<std::size_t>(static_cast<double>(text.size()) * held_out);
  while (cut > 0 && cut < text.size() && (static_cast<std::uint8_t>(text[cut]) & 0xc0) == 0x80) --cut;
  const std::string_view training = std::string_view(text).substr(0, cut), kept_back = std::string_view(text).substr(cut);
  const bool learns = options.vocabulary.empty();
  std::shared_ptr<const Bpe> vocabulary = learns ? Kept(options) : nullptr, learnt;
  if (vocabulary == nullptr) {
    ASSIGN_OR_RETURN(Bpe bpe, learns ? Bpe::Train(training, options.tokens) : Bpe::LoadFolder(options.vocabulary));
    vocabulary = std::make_shared<const Bpe>(std::move(bpe));
    if (learns) learnt = vocabulary;
  }
  const Bpe& bpe = *vocabulary;
  BpeEncoder encoder(bpe);
  std::vector<std::int32_t> parts[2];
  encoder.EncodeWithSpecials(training, &parts[0]);
  encoder.EncodeWithSpecials(kept_back, &parts[1]);
  const auto needed = static_cast<std::size_t>(length) + 1;
  if (parts[0].size() < needed || parts[1].size() < needed)
    return TooShort(path, parts[0].size() + parts[1].size(), parts[1].size(), needed, "tokens");
  constexpr std::int64_t kTwoBytes = 1 << 16;
  return bpe.size() <= kTwoBytes ? PairsAs<std::uint16_t>(parts, length, bpe, learnt) : PairsAs<std::int32_t>(parts, length, bpe, learnt);
}

}  // namespace ropewalk::mlrunner
