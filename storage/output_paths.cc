#include "storage/output_paths.h"

#include <cstdio>

#include "base/bytes.h"
#include "base/escape.h"
#include "base/hash.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kNamePieceMax = 100;  // two pieces and the fixed text stay below the 255 bytes of a file name

// `text` as a piece of a file name: short, without separators, different for different texts.
std::string NamePiece(std::string_view text) {
  bool plain = text.size() <= kNamePieceMax && !text.empty();
  for (char c : text) plain = plain && c != '/' && c != '\0';
  if (plain) return std::string(text);
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(Checksum64(text)));
  return hash;
}

}  // namespace

OutputPaths PathsOf(const OutputSpec& spec) {
  OutputPaths paths;
  paths.final_folder = spec.folder;
  while (paths.final_folder.size() > 1 && paths.final_folder.back() == '/') paths.final_folder.pop_back();
  std::size_t slash = paths.final_folder.rfind('/');
  std::string name = paths.final_folder.substr(slash == std::string::npos ? 0 : slash + 1);
  std::string prefix = slash == std::string::npos ? "" : paths.final_folder.substr(0, slash + 1);
  paths.parent = slash == std::string::npos ? "." : slash == 0 ? "/" : paths.final_folder.substr(0, slash);
  paths.hidden = prefix + "." + NamePiece(name) + ".ropewalk-" + NamePiece(spec.key);
  paths.attempts = paths.hidden + "/a";
  paths.commit = paths.hidden + "/commit";
  return paths;
}

CommitPaths CommitPathsOf(const std::string& commit, const std::string& attempt) {
  const std::string folder = commit + "/" + attempt;
  return {folder, folder + "/p", folder + "/ready", folder + "/old"};
}

std::string PartName(const OutputSpec& spec, std::uint32_t part) {
  char name[32];
  std::snprintf(name, sizeof name, "part-%05u", part);
  return name + spec.suffix;
}

std::string AttemptPath(const OutputPaths& paths, std::uint32_t part, std::uint32_t attempt) {
  return paths.attempts + "/" + std::to_string(part) + "." + std::to_string(attempt);
}

std::string EncodePart(const PartFacts& facts) {
  std::string bytes;
  ByteWriter out(&bytes);
  out.Varint(1);  // version
  out.Varint(facts.part);
  out.Varint(facts.attempt);
  out.Varint(facts.records);
  out.Varint(facts.bytes);
  out.Fixed(facts.checksum);
  return bytes;
}

Result<PartFacts> DecodePart(std::string_view bytes) {
  ByteReader in(bytes);
  std::uint64_t version = in.Varint();
  PartFacts facts;
  facts.part = static_cast<std::uint32_t>(in.Varint());
  facts.attempt = static_cast<std::uint32_t>(in.Varint());
  facts.records = in.Varint();
  facts.bytes = in.Varint();
  facts.checksum = in.Fixed<std::uint64_t>();
  if (version != 1 || !in.ok() || !in.empty())
    return Status(Code::kDataLoss, "OUT07", "what a task said of its output file cannot be read",
                  "its bytes are damaged or of another version");
  return facts;
}

Result<std::vector<PartFacts>> DecodeParts(std::span<const std::string> winners) {
  std::vector<PartFacts> parts;
  for (const std::string& winner : winners) {
    auto facts = DecodePart(winner);
    if (!facts.ok()) return facts.status();
    parts.push_back(*facts);
  }
  return parts;
}

OutputTotals Sum(const std::vector<PartFacts>& parts) {
  OutputTotals totals;
  for (const PartFacts& part : parts) {
    totals.records += part.records;
    totals.bytes += part.bytes;
  }
  return totals;
}

Status OutputError(int error_number, const std::string& what) {
  Status status = IoError(error_number, "OUT05", what);
  return Status(Code::kUserError, "OUT05", status.what(), status.why(), status.fix());
}

}  // namespace ropewalk::storage
