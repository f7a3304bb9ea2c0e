#include "storage/output_owner.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "storage/output_paths.h"

namespace ropewalk::storage {
namespace {

constexpr char kBorder = '-';                            // keys are made of hexadecimal digits and this
constexpr std::string_view kHiddenInfix = ".ropewalk-";  // of the names that PathsOf makes
constexpr std::size_t kOwnerParts = 5, kKeyParts = 2;

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Short(const std::string& text) {
  char hash[9];
  std::snprintf(hash, sizeof hash, "%08llx", static_cast<unsigned long long>(Checksum64(text) >> 32));
  return hash;
}

std::string Machine() {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) return {};
  return Short(FileText("/etc/machine-id") + "@" + host);
}

std::string Boot() {
  std::string id = FileText("/proc/sys/kernel/random/boot_id");
  return id.empty() ? std::string() : Short(id);
}

std::string Namespace() {
  char target[64];
  ssize_t length = readlink("/proc/self/ns/pid", target, sizeof target);
  return length <= 0 ? std::string() : Short(std::string(target, static_cast<std::size_t>(length)));
}

// When a process started, in the kernel's ticks since the start of the machine; "": there is no such process, or it is only waited for.
std::string StartOf(const std::string& pid) {
  std::string stat = FileText("/proc/" + pid + "/stat");
  std::size_t close = stat.rfind(')');  // the command's name may hold anything
  if (close == std::string::npos || close + 2 >= stat.size() || stat[close + 2] == 'Z' || stat[close + 2] == 'X') return {};
  std::size_t at = close + 1;
  for (int field = 3; field < 22; ++field) {  // the start time is the 22nd field
    at = stat.find(' ', at + 1);
    if (at == std::string::npos) return {};
  }
  std::size_t end = stat.find(' ', at + 1);
  return stat.substr(at + 1, end - at - 1);
}

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t end = std::min(text.find(kBorder, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool IsNumber(const std::string& text) {
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string ProcessOwner() {
  const std::string pid = std::to_string(getpid());
  std::string owner;
  for (const std::string& part : {Machine(), Boot(), Namespace(), pid, StartOf(pid)}) {
    if (part.empty()) return {};
    if (!owner.empty()) owner += kBorder;
    owner += part;
  }
  return owner;
}

std::string OwnedKey(const std::string& key, const std::string& owner) { return owner.empty() ? key : key + kBorder + owner; }

bool OwnerIsDead(std::string_view owner) {
  std::vector<std::string> parts = Split(owner);
  if (parts.size() != kOwnerParts || !IsNumber(parts[3]) || !IsNumber(parts[4])) return false;
  const std::string machine = Machine(), boot = Boot(), space = Namespace();
  if (machine.empty() || boot.empty() || space.empty() || parts[0] != machine || parts[2] != space) return false;
  if (parts[1] != boot) return true;
  return StartOf(parts[3]) != parts[4];
}

void RemoveStaleOutputs(const OutputSpec& spec) {
  OutputFiles files(spec);
  const OutputPaths own = PathsOf(spec);
  std::vector<std::string> names;
  if (files->List(own.parent, &names) != 0) return;  // CheckOutput says what is wrong with it
  for (const std::string& name : names) {
    const std::size_t border = name.rfind(kHiddenInfix);
    if (!name.starts_with('.') || border == std::string::npos || border < 2) continue;
    std::string key = name.substr(border + kHiddenInfix.size());
    std::string_view owner = key;
    if (owner.ends_with(kGoneSuffix)) owner.remove_suffix(std::string_view(kGoneSuffix).size());
    if (Split(owner).size() != kKeyParts + kOwnerParts || key == spec.key) continue;
    for (std::size_t part = 0; part < kKeyParts; ++part) owner.remove_prefix(owner.find(kBorder) + 1);
    if (!OwnerIsDead(owner)) continue;
    // Of this output or of another one beside it. A long name is cut in its hidden form: then only its own output knows it.
    for (const std::string& folder : {own.final_folder, own.parent + "/" + name.substr(1, border - 1)}) {
      OutputSpec stale = spec;
      stale.folder = folder;
      stale.key = key;
      if (PathsOf(stale).hidden != (own.parent == "/" ? "/" : own.parent + "/") + name) continue;
      DiscardOutput(stale);
      break;
    }
  }
}

}  // namespace ropewalk::storage
