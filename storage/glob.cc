#include "storage/glob.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "storage/folder.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::string_view kAnyDepth = "**";

// Matches the set that begins at pattern[at] == '['. Returns the index after its ']' and whether `byte` is in it; 0: it is no set.
std::size_t MatchSet(std::string_view pattern, std::size_t at, unsigned char byte, bool* in) {
  std::size_t i = at + 1;
  bool inverted = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (inverted) ++i;
  bool hit = false;
  for (bool first = true; i < pattern.size() && (pattern[i] != ']' || first); first = false) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
    auto low = static_cast<unsigned char>(pattern[i++]);
    unsigned char high = low;
    if (i + 1 < pattern.size() && pattern[i] == '-' && pattern[i + 1] != ']') {
      ++i;
      if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
      high = static_cast<unsigned char>(pattern[i++]);
    }
    hit = hit || (low <= byte && byte <= high);
  }
  if (i >= pattern.size()) return 0;
  *in = hit != inverted;
  return i + 1;
}

// Matches the one element at pattern[p], which is no '*', against the start of `rest`. Returns the bytes of `rest` it takes, 0: no match.
std::size_t MatchOne(std::string_view pattern, std::size_t p, std::string_view rest, std::size_t* next) {
  char c = pattern[p];
  if (c == '?') {
    *next = p + 1;
    return std::max<std::size_t>(Utf8Length(rest), 1);
  }
  if (c == '[') {
    bool in = false;
    if (std::size_t after = MatchSet(pattern, p, static_cast<unsigned char>(rest[0]), &in); after != 0) {
      *next = after;
      return in ? 1 : 0;
    }
  }
  if (c == '\\' && p + 1 < pattern.size()) c = pattern[++p];
  *next = p + 1;
  return rest[0] == c ? 1 : 0;
}

std::string Unescape(std::string_view component) {
  std::string out;
  for (std::size_t i = 0; i < component.size(); ++i) {
    if (component[i] == '\\' && i + 1 < component.size()) ++i;
    out += component[i];
  }
  return out;
}

// What cannot be looked at may match: to leave it out would be to leave out input in silence.
Status CannotTell(int error_number, const std::string& path) {
  return IoError(error_number, "IO02", "cannot read input " + QuotedPath(path));
}

bool IsAbsent(int error_number) { return error_number == ENOENT || error_number == ENOTDIR || error_number == ENAMETOOLONG; }

// A link is there wherever it leads.
Result<bool> Exists(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) return true;
  if (IsAbsent(errno)) return false;
  return CannotTell(errno, path);
}

// A link to one is none.
Result<bool> IsFolder(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
  if (IsAbsent(errno)) return false;
  return CannotTell(errno, path);
}

// Below a link that leads nowhere may be whatever the pattern asks for: the disk that it leads to is not mounted, say.
Status CheckLeadsSomewhere(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 || errno != ENOENT) return {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return {};
  return Status(Code::kUserError, "IO02", "cannot read input " + QuotedPath(path), "it is a link that leads nowhere", "mend or remove it");
}

class Expander {
 public:
  Expander(std::vector<std::string> components, std::uint64_t* skipped_hidden, const std::function<Status(const std::string&)>& found)
      : components_(std::move(components)), skipped_hidden_(skipped_hidden), found_(found) {}

  Status Expand(const std::string& folder, std::size_t index) {
    if (index == components_.size()) return found_(folder);
    const std::string& component = components_[index];
    std::string prefix = folder == "/" ? folder : folder + "/";
    for (const std::string& literal : {component, Unescape(component)}) {
      ASSIGN_OR_RETURN(bool exists, Exists(prefix + literal));
      if (exists) return Expand(prefix + literal, index + 1);
    }
    RETURN_IF_ERROR(CheckLeadsSomewhere(folder));
    if (!HasGlobCharacters(component)) return {};
    const bool any_depth = component == kAnyDepth;
    auto names = FolderNames(folder);
    if (!names.ok()) {
      // A pattern asks what is there: something that is no folder simply does not match.
      if (names.status().code() == Code::kNotFound) return {};
      return names.status();
    }
    if (any_depth) {
      // Two ways down lead to the same place: without this, patterns of many "**" would take time without end.
      if (!walked_.emplace(folder, index).second) return {};
      RETURN_IF_ERROR(Expand(folder, index + 1));
      if (index + 1 == components_.size()) return {};  // a folder means all below it
    }
    for (const std::string& name : *names) {
      if (!GlobMatch(component, name)) continue;
      if (IsHiddenName(name) && component[0] != name[0]) {
        ++*skipped_hidden_;
        continue;
      }
      if (any_depth) {
        ASSIGN_OR_RETURN(bool is_folder, IsFolder(prefix + name));
        if (!is_folder) continue;
      }
      RETURN_IF_ERROR(Expand(prefix + name, any_depth ? index : index + 1));
    }
    return {};
  }

 private:
  std::set<std::pair<std::string, std::size_t>> walked_;  // folders and the "**" they were walked for
  std::vector<std::string> components_;
  std::uint64_t* skipped_hidden_;
  const std::function<Status(const std::string&)>& found_;
};

}  // namespace

bool GlobMatch(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0;
  std::size_t star = std::string_view::npos, star_n = 0;  // the last '*' and where its match ends so far
  while (n < name.size()) {
    std::size_t next = 0, taken = 0;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_n = n;
      continue;
    }
    if (p < pattern.size()) taken = MatchOne(pattern, p, name.substr(n), &next);
    if (taken != 0) {
      p = next;
      n += taken;
    } else if (star != std::string_view::npos) {  // let the '*' take one byte more
      p = star + 1;
      n = ++star_n;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool HasGlobCharacters(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

Status GlobExpand(const std::string& pattern, std::uint64_t* skipped_hidden, const std::function<Status(const std::string& path)>& found) {
  std::vector<std::string> components;
  for (std::size_t at = 0; at < pattern.size();) {
    std::size_t slash = std::min(pattern.find('/', at), pattern.size());
    if (slash > at) components.push_back(pattern.substr(at, slash - at));
    at = slash + 1;
  }
  return Expander(std::move(components), skipped_hidden, found).Expand("/", 0);
}

}  // namespace ropewalk::storage
