#include "mlrunner/data/text.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::size_t kBytesMax = std::size_t{4} << 30;

// A part of a text whose characters are numbers of a vocabulary.
class Stretches final : public Samples {
 public:
  Stretches(std::string ids, std::int64_t length, const std::string& symbols)
      : ids_(std::move(ids)), length_(length), symbols_hash_(Checksum64(symbols)) {
    const auto vocabulary = static_cast<std::int64_t>(symbols.size());
    fields_ = {{"tokens", Dtype::kI32, {length}, vocabulary}, {"next", Dtype::kI32, {length}, vocabulary}};
  }
  // The last character has no next one.
  std::int64_t count() const override { return (static_cast<std::int64_t>(ids_.size()) - 1) / length_; }
  const std::vector<Field>& fields() const override { return fields_; }
  // The label of a place is the character behind it.
  void Fill(const FillCall& call) const override {
    const auto shift = static_cast<std::int64_t>(call.field);
    auto* row = static_cast<std::int32_t*>(call.rows);
    for (std::int64_t sample : call.ids) {
      for (std::int64_t i = 0; i < length_; ++i)
        *row++ = static_cast<std::uint8_t>(ids_[static_cast<std::size_t>(sample * length_ + i + shift)]);
    }
  }
  std::string_view labels_are() const override { return "characters"; }
  std::uint64_t content_hash() const override { return HashCombine(Checksum64(ids_), symbols_hash_); }
  std::uint64_t vocabulary_hash() const override { return symbols_hash_; }

 private:
  std::string ids_;  // one byte each: there are 256 bytes at most
  std::int64_t length_;
  std::vector<Field> fields_;
  std::uint64_t symbols_hash_;
};

}  // namespace

Result<DataSet> LoadText(const std::string& path, std::int64_t length, double held_out) {
  ASSIGN_OR_RETURN(std::string text, storage::ReadWhole(path, kBytesMax));
  auto kept_back = static_cast<std::size_t>(static_cast<double>(text.size()) * held_out);
  const auto needed = static_cast<std::size_t>(length) + 1;
  if (kept_back < needed || text.size() - kept_back < needed)
    return Status(Code::kUserError, "DATA04", fmt::format("{} is too short: {} bytes", storage::QuotedPath(path), text.size()),
                  fmt::format("{} are held out, and both parts need {} for one sample", kept_back, needed),
                  "take a longer text or a smaller model.length");
  std::array<bool, 256> occurs{};
  for (char c : text) occurs[static_cast<std::uint8_t>(c)] = true;
  std::array<char, 256> id{};
  std::string symbols;  // by id
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (!occurs[byte]) continue;
    id[byte] = static_cast<char>(symbols.size());
    symbols += static_cast<char>(byte);
  }
  for (char& c : text) c = id[static_cast<std::uint8_t>(c)];
  DataSet data;
  data.held_out = std::make_unique<Stretches>(text.substr(text.size() - kept_back), length, symbols);
  text.resize(text.size() - kept_back);
  data.training = std::make_unique<Stretches>(std::move(text), length, symbols);
  return data;
}

}  // namespace ropewalk::mlrunner
