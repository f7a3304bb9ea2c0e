#include "job/client/elf_needs.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "job/client/elf_image.h"

namespace ropewalk::job {
namespace {

// 2036 of "GLIBC_2.36" and of "GLIBC_2.3.4" 2003; 0 of other names.
std::uint32_t ParseGlibc(std::string_view name) {
  if (!name.starts_with("GLIBC_")) return 0;
  name.remove_prefix(6);
  std::uint32_t major = 0, minor = 0;
  auto [dot, error] = std::from_chars(name.data(), name.data() + name.size(), major);
  if (error != std::errc() || dot == name.data() + name.size() || *dot != '.') return 0;  // GLIBC_PRIVATE
  std::from_chars(dot + 1, name.data() + name.size(), minor);
  return major * 1000 + std::min<std::uint32_t>(minor, 999);
}

}  // namespace

Result<std::uint32_t> HighestGlibcOfImage(std::string_view bytes, const std::string& name) {
  ElfImage image(bytes);
  auto damaged = [&](const char* why) {
    return Status(Code::kInvalid, "ELF01", name + " is no binary that a worker could run", why, "build it again, for x86-64 Linux");
  };
  std::optional<Elf64_Ehdr> header = image.At<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return damaged("it is not an ELF file");
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) return damaged("it is not 64-bit little-endian");
  std::uint32_t highest = 0;
  for (std::uint32_t i = 0; i < header->e_shnum; ++i) {
    std::optional<Elf64_Shdr> section = image.At<Elf64_Shdr>(header->e_shoff + std::uint64_t(i) * header->e_shentsize);
    if (!section) return damaged("its section table is cut");
    if (section->sh_type != SHT_GNU_verneed) continue;
    std::optional<Elf64_Shdr> names = image.At<Elf64_Shdr>(header->e_shoff + std::uint64_t(section->sh_link) * header->e_shentsize);
    if (!names) return damaged("its section table is cut");
    // Two linked lists by relative offsets; an offset of 0 ends each. The counts bound them, so that a forged loop ends.
    std::uint64_t at = section->sh_offset;
    for (std::uint32_t file = 0; file < section->sh_info; ++file) {
      std::optional<Elf64_Verneed> need = image.At<Elf64_Verneed>(at);
      if (!need) return damaged("its version table is cut");
      std::uint64_t aux_at = at + need->vn_aux;
      for (std::uint32_t n = 0; n < need->vn_cnt; ++n) {
        std::optional<Elf64_Vernaux> aux = image.At<Elf64_Vernaux>(aux_at);
        if (!aux) return damaged("its version table is cut");
        highest = std::max(highest, ParseGlibc(image.TextAt(names->sh_offset + aux->vna_name)));
        if (aux->vna_next == 0) break;
        aux_at += aux->vna_next;
      }
      if (need->vn_next == 0) break;
      at += need->vn_next;
    }
  }
  return highest;
}

Result<std::uint32_t> HighestGlibc(const std::string& path) {
  Result<std::uint32_t> highest(0u);
  RETURN_IF_ERROR(WithImageOf(path, [&](std::string_view image) { highest = HighestGlibcOfImage(image, path); }));
  return highest;
}

std::string GlibcText(std::uint32_t version) {
  return version == 0 ? std::string() : std::to_string(version / 1000) + "." + std::to_string(version % 1000);
}

}  // namespace ropewalk::job
