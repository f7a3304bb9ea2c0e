#include "job/client/job_marker.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <set>

#include "base/escape.h"
#include "job/client/elf_image.h"

namespace ropewalk::job {
namespace {

constexpr std::string_view kNoteName = "Ropewalk";                      // as in init.cc
constexpr std::string_view kSymbol = "_ZN8ropewalk3job11InitProcessE";  // any signature
constexpr std::size_t kLibrariesMax = 256;

// The note may lie anywhere in its segment: linkers put notes of different alignments into one, so it is looked for as a whole.
bool HasNote(std::string_view image, const Elf64_Phdr& segment) {
  if (segment.p_offset > image.size()) return false;
  std::string_view notes = image.substr(segment.p_offset, segment.p_filesz);
  const Elf64_Nhdr header{static_cast<Elf64_Word>(kNoteName.size() + 1), sizeof(std::uint32_t), 1};
  std::string note(reinterpret_cast<const char*>(&header), sizeof header);
  note += kNoteName;
  note += '\0';
  return notes.find(note) != std::string_view::npos;
}

// $ORIGIN and ${ORIGIN} in a run path.
std::string Resolved(std::string path, const std::string& folder) {
  for (const char* name : {"${ORIGIN}", "$ORIGIN"})
    for (std::size_t at; (at = path.find(name)) != std::string::npos;) path.replace(at, std::string_view(name).size(), folder);
  return path;
}

std::vector<std::string> SplitPath(const std::string& list) {
  std::vector<std::string> paths;
  for (std::size_t at = 0; at <= list.size();) {
    std::size_t end = std::min(list.find(':', at), list.size());
    if (end > at) paths.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return paths;
}

std::string FolderOf(const std::string& path) {
  std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Where the loader would look, without its cache: libraries of the user's own lie in run paths or in LD_LIBRARY_PATH.
std::string FindLibrary(const std::string& name, const JobMarks& of, const std::string& folder) {
  if (name.find('/') != std::string::npos) return name;
  std::vector<std::string> places;
  if (const char* list = std::getenv("LD_LIBRARY_PATH"); list != nullptr) places = SplitPath(list);
  for (const std::string& path : of.run_paths) places.push_back(Resolved(path, folder));
  for (const char* place : {"/usr/local/lib", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"})
    places.emplace_back(place);
  for (const std::string& place : places)
    if (std::string path = place + "/" + name; access(path.c_str(), R_OK) == 0) return path;
  return {};
}

}  // namespace

Result<JobMarks> ReadJobMarks(std::string_view bytes, const std::string& name) {
  ElfImage image(bytes);
  auto damaged = [&](const char* why) {
    return Status(Code::kInvalid, "ELF01", name + " cannot be read as an executable", why,
                  "name the executable of a job, or build it again");
  };
  std::optional<Elf64_Ehdr> header = image.At<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return damaged("it is not an ELF file");
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) return damaged("it is not 64-bit little-endian");
  JobMarks marks;
  for (std::uint32_t i = 0; i < header->e_phnum; ++i) {
    std::optional<Elf64_Phdr> segment = image.At<Elf64_Phdr>(header->e_phoff + std::uint64_t(i) * header->e_phentsize);
    if (!segment) return damaged("its table of segments is cut");
    if (segment->p_type == PT_NOTE && HasNote(bytes, *segment)) marks.marked = true;
  }
  for (std::uint32_t i = 0; i < header->e_shnum && !marks.marked; ++i) {
    std::optional<Elf64_Shdr> section = image.At<Elf64_Shdr>(header->e_shoff + std::uint64_t(i) * header->e_shentsize);
    if (!section) return damaged("its section table is cut");
    if (section->sh_type != SHT_DYNSYM && section->sh_type != SHT_DYNAMIC) continue;
    std::optional<Elf64_Shdr> names = image.At<Elf64_Shdr>(header->e_shoff + std::uint64_t(section->sh_link) * header->e_shentsize);
    if (!names) return damaged("its section table is cut");
    const std::uint64_t end = section->sh_offset + std::min<std::uint64_t>(section->sh_size, bytes.size());
    if (section->sh_type == SHT_DYNSYM) {
      for (std::uint64_t at = section->sh_offset; at < end; at += sizeof(Elf64_Sym)) {
        std::optional<Elf64_Sym> symbol = image.At<Elf64_Sym>(at);
        if (!symbol) return damaged("its table of symbols is cut");
        if (image.TextAt(names->sh_offset + symbol->st_name).starts_with(kSymbol)) marks.marked = true;
      }
    } else {
      for (std::uint64_t at = section->sh_offset; at < end; at += sizeof(Elf64_Dyn)) {
        std::optional<Elf64_Dyn> entry = image.At<Elf64_Dyn>(at);
        if (!entry) return damaged("its dynamic section is cut");
        if (entry->d_tag == DT_NULL) break;
        std::string text(image.TextAt(names->sh_offset + entry->d_un.d_val));
        if (entry->d_tag == DT_NEEDED) marks.needed.push_back(text);
        if (entry->d_tag == DT_RUNPATH || entry->d_tag == DT_RPATH)
          for (std::string& path : SplitPath(text)) marks.run_paths.push_back(std::move(path));
      }
    }
  }
  return marks;
}

Status CheckIsJob(const std::string& path, const std::string& command) {
  auto refuse = [&](std::string why, std::string fix) {
    return Status(Code::kInvalid, "CLI10", "\"" + EscapeForLog(path, 200) + "\" is no Ropewalk job", std::move(why), std::move(fix));
  };
  std::deque<std::string> files{path};
  std::set<std::string> seen;
  bool marked = false;
  while (!files.empty() && !marked && seen.size() < kLibrariesMax) {
    std::string file = std::move(files.front());
    files.pop_front();
    if (!seen.insert(file).second) continue;
    Status status;
    bool script = false;
    Status mapped = WithImageOf(file, [&](std::string_view image) {
      script = image.starts_with("#!");
      Result<JobMarks> marks = ReadJobMarks(image, file);
      if (!marks.ok()) {
        status = marks.status();
        return;
      }
      marked = marks->marked;
      for (const std::string& name : marks->needed)
        if (std::string library = FindLibrary(name, *marks, FolderOf(file)); !library.empty()) files.push_back(std::move(library));
    });
    if (file != path) continue;  // a library that cannot be read is the loader's affair
    RETURN_IF_ERROR(mapped);
    if (script)
      return refuse("it is a script, and a job is an executable that workers can run by themselves",
                    "name the executable that the script starts; or give the script's call of it --master HOST:PORT");
    if (!status.ok())
      return refuse(status.why(), "give an executable that is linked with Ropewalk (docs/api.md), or wordcount, sort or grep");
  }
  if (marked) return {};
  return refuse(
      "it is not linked with Ropewalk: " + command + " would only start it here",
      "link it with Ropewalk::ropewalk and let main begin with ropewalk::Init; other programs are started without `" + command + "`");
}

}  // namespace ropewalk::job
