#include "job/client/elf_needs.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

namespace ropewalk::job {
namespace {

// Bounds-checked reading at any offset: a file may be cut or forged.
class Image {
 public:
  explicit Image(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  std::optional<T> At(std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  std::string_view TextAt(std::uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    std::string_view rest = bytes_.substr(offset);
    return rest.substr(0, rest.find('\0'));
  }

 private:
  std::string_view bytes_;
};

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
  Image image(bytes);
  auto damaged = [&](const char* why) { return Status(Code::kInvalid, "ELF01", name + " is no binary that a worker could run", why); };
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
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd < 0 || fstat(fd, &info) != 0) {
    Status status(Code::kInvalid, "ELF01", "cannot read " + path, std::strerror(errno));
    if (fd >= 0) close(fd);
    return status;
  }
  if (info.st_size == 0) {
    close(fd);
    return HighestGlibcOfImage({}, path);
  }
  std::size_t size = static_cast<std::size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (memory == MAP_FAILED) return Status(Code::kInvalid, "ELF01", "cannot map " + path, std::strerror(error));
  Result<std::uint32_t> highest = HighestGlibcOfImage({static_cast<const char*>(memory), size}, path);
  munmap(memory, size);
  return highest;
}

std::string GlibcText(std::uint32_t version) {
  return version == 0 ? std::string() : std::to_string(version / 1000) + "." + std::to_string(version % 1000);
}

}  // namespace ropewalk::job
