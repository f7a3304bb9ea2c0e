#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/escape.h"
#include "mlrunner/data/bpe.h"
#include "mlrunner/data/byte_alphabet.h"
#include "storage/io_error.h"
#include "storage/read_whole.h"

namespace ropewalk::mlrunner {
namespace {

using storage::QuotedPath;

constexpr std::size_t kFileBytesMax = std::size_t{1} << 30;
constexpr std::size_t kSpecialBytesMax = std::size_t{1} << 20;  // of all special tokens together
constexpr std::size_t kShownMax = 40;                           // bytes of a token in an error

Status Bad(const std::string& path, const std::string& what, std::string why, std::string fix = "name the two files of one vocabulary") {
  return Status(Code::kUserError, "DATA10", fmt::format("{}: {}", QuotedPath(path), what), std::move(why), std::move(fix));
}

std::string Shown(std::string_view text) { return "\"" + EscapeForLog(text, kShownMax) + "\""; }

// The tokens of a vocabulary file, as they are spelt. An object of numbers is read piece by piece: no deeper nesting than that, no second
// copy of a large file as a tree.
class Entries final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Entries(const std::string& path) : path_(path) {}

  bool null() override { return NoNumber("null"); }
  bool boolean(bool) override { return NoNumber("true or false"); }
  bool number_integer(std::int64_t value) override { return NoNumber(fmt::format("{}", value)); }  // below 0
  bool number_float(double, const std::string& text) override { return NoNumber(text); }
  bool string(std::string&) override { return NoNumber("a string"); }
  bool binary(binary_t&) override { return NoNumber("bytes"); }
  bool start_array(std::size_t) override { return NoNumber("a list"); }
  bool end_array() override { return true; }
  bool start_object(std::size_t) override {
    if (inside_) return NoNumber("an object");
    return inside_ = true;
  }
  bool end_object() override { return true; }
  bool key(std::string& name) override {
    name_ = name;
    return true;
  }
  bool number_unsigned(std::uint64_t id) override {
    if (!inside_) return NoNumber(fmt::format("{}", id));
    if (id >= static_cast<std::uint64_t>(Bpe::kTokensMax))
      return Fail(
          Bad(path_, fmt::format("the token {} has the id {}", Shown(name_), id), fmt::format("ids lie below {}", Bpe::kTokensMax)));
    names_.resize(std::max<std::size_t>(names_.size(), id + 1));
    std::optional<std::string>& name = names_[id];
    if (name.has_value())
      return Fail(
          Bad(path_, fmt::format("the tokens {} and {} have the id {}", Shown(*name), Shown(name_), id), "an id is that of one token"));
    name = name_;
    ++count_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string text = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 3: ..."
    const std::size_t after = text.find("] ");
    return Fail(Bad(path_, fmt::format("it is no JSON at byte {}", position),
                    EscapeForLog(after == text.npos ? text : text.substr(after + 2)), "fetch the file again"));
  }

  Result<std::vector<std::string>> Tokens() && {
    if (!status_.ok()) return std::move(status_);
    std::vector<std::string> tokens;
    for (std::size_t id = 0; id < names_.size(); ++id) {
      if (!names_[id].has_value())
        return Bad(path_, fmt::format("no token has the id {}", id), fmt::format("its {} tokens have the ids 0 to {}", count_, count_ - 1));
      tokens.push_back(*std::move(names_[id]));
    }
    return tokens;
  }

 private:
  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }
  bool NoNumber(const std::string& what) {
    const std::string where = inside_ ? "the token " + Shown(name_) + " has " : "it holds ";
    return Fail(Bad(path_, where + what,
                    inside_ ? "each token has an id, a number from 0 on" : "a vocabulary is an object of tokens and their ids"));
  }

  const std::string& path_;
  Status status_;
  bool inside_ = false;
  std::string name_;
  std::vector<std::optional<std::string>> names_;  // by id
  std::size_t count_ = 0;
};

// The one of `names` that lies in `folder`.
Result<std::string> Find(const std::string& folder, const std::array<const char*, 2>& names) {
  for (const char* name : names) {
    for (const char* ending : {"", ".gz"}) {
      struct stat info;
      if (std::string path = folder + "/" + name + ending; stat(path.c_str(), &info) == 0) return path;
    }
  }
  struct stat info;
  const bool is_folder = stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return Status(Code::kNotFound, "DATA02", fmt::format("there is no {} or {} in {}", names[0], names[1], QuotedPath(folder)),
                is_folder ? "it is one of the two files of a vocabulary" : "there is no such folder on this machine",
                "name the folder of a vocabulary as GPT-2 has it");
}

}  // namespace

Result<Bpe> Bpe::Load(const std::string& vocabulary, const std::string& merges_path) {
  std::vector<std::string> tokens;
  {
    ASSIGN_OR_RETURN(const std::string text, storage::ReadWhole(vocabulary, kFileBytesMax));
    Entries entries(vocabulary);
    (void)nlohmann::json::sax_parse(text, &entries);  // what is wrong is kept
    ASSIGN_OR_RETURN(tokens, std::move(entries).Tokens());
  }
  // Characters that stand for no byte are in special tokens only, and stand for themselves.
  ByText<std::int32_t> ids;
  std::vector<bool> is_made(tokens.size(), false);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (std::string bytes; BytesOfSpelling(tokens[id], &bytes)) tokens[id] = std::move(bytes);
    if (tokens[id].empty())
      return Bad(vocabulary, fmt::format("the token with the id {} is empty", id), "a token stands for a byte or more");
    const auto [other, is_new] = ids.emplace(tokens[id], static_cast<std::int32_t>(id));
    if (!is_new)
      return Bad(vocabulary, fmt::format("the tokens with the ids {} and {} stand for the same bytes", other->second, id),
                 "each is there once");
  }
  auto id_of = [&](std::string_view bytes) -> std::int32_t {
    const auto found = ids.find(bytes);
    return found == ids.end() ? -1 : found->second;
  };
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const std::int32_t id = id_of(std::string(1, static_cast<char>(byte)));
    if (id < 0)
      return Bad(vocabulary, fmt::format("the byte {:02x} is no token", byte),
                 "in a vocabulary of bytes all 256 are: what it lacks could not be encoded", "take a byte-level vocabulary, as GPT-2's");
    is_made[static_cast<std::size_t>(id)] = true;
  }

  ASSIGN_OR_RETURN(const std::string text, storage::ReadWhole(merges_path, kFileBytesMax));
  std::vector<Merge> merges;
  std::unordered_map<std::uint64_t, std::size_t, MixHash> line_of;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    auto bad = [&](const std::string& why) { return Bad(merges_path, fmt::format("line {} is {}", number, Shown(line)), why); };
    if (space == line.npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos)
      return bad("a line holds two tokens with a space between them");
    Merge merge;
    std::string bytes, whole;
    for (auto [part, id] : {std::pair(line.substr(0, space), &merge.left), std::pair(line.substr(space + 1), &merge.right)}) {
      if (!BytesOfSpelling(part, &bytes)) return bad(fmt::format("{} has a character that stands for no byte", Shown(part)));
      if (*id = id_of(bytes); *id < 0) return bad(fmt::format("{} is no token of {}", Shown(part), QuotedPath(vocabulary)));
      whole += bytes;
    }
    if (merge.result = id_of(whole); merge.result < 0) return bad(fmt::format("what it makes is no token of {}", QuotedPath(vocabulary)));
    if (const auto [first, is_new] = line_of.emplace(PairOf(merge.left, merge.right), number); !is_new)
      return bad(fmt::format("it stands in line {} already, and a pair has one rank", first->second));
    is_made[static_cast<std::size_t>(merge.result)] = true;
    merges.push_back(merge);
  }
  std::vector<std::int32_t> specials;
  std::size_t special_bytes = 0;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (is_made[id]) continue;
    specials.push_back(static_cast<std::int32_t>(id));
    special_bytes += tokens[id].size();
  }
  if (special_bytes > kSpecialBytesMax)
    return Bad(merges_path, fmt::format("it makes {} of the {} tokens", tokens.size() - specials.size(), tokens.size()),
               fmt::format("the others would be special tokens, of more than {} bytes", kSpecialBytesMax));
  return Bpe(std::move(tokens), std::move(merges), std::move(specials));
}

Result<Bpe> Bpe::LoadFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string vocabulary, Find(folder, {"vocab.json", "encoder.json"}));
  ASSIGN_OR_RETURN(const std::string merges, Find(folder, {"merges.txt", "vocab.bpe"}));
  return Load(vocabulary, merges);
}

Status Bpe::Save(storage::FileSystem& files, const std::string& folder) const {
  std::string vocabulary = "{", merges = "#version: 0.2\n";
  for (std::int32_t id = 0; id < size(); ++id)
    vocabulary += fmt::format("{}{}: {}", id == 0 ? "" : ", ", JsonString(SpellBytes(BytesOf(id))), id);
  vocabulary += "}";
  for (const Merge& merge : merges_) merges += SpellBytes(BytesOf(merge.left)) + " " + SpellBytes(BytesOf(merge.right)) + "\n";
  auto failed = [&](int error, const std::string& path) {
    return error == 0 ? Status() : storage::IoError(error, "DATA11", "cannot write the vocabulary " + QuotedPath(path));
  };
  if (const int error = files.MakeFolder(folder); error != EEXIST) RETURN_IF_ERROR(failed(error, folder));
  for (const auto& [name, text] : {std::pair("/vocab.json", &vocabulary), std::pair("/merges.txt", &merges)}) {
    const std::string path = folder + name;
    std::unique_ptr<storage::WritableFile> file;
    RETURN_IF_ERROR(failed(files.Create(path, &file), path));
    RETURN_IF_ERROR(failed(file->Append(AsBytes(*text)), path));
    RETURN_IF_ERROR(failed(file->Sync(), path));
    RETURN_IF_ERROR(failed(file->Close(), path));
  }
  return {};
}

}  // namespace ropewalk::mlrunner
