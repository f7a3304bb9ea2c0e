#include "job/client/elf_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace ropewalk::job {

Status WithImageOf(const std::string& path, const std::function<void(std::string_view)>& read) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd < 0 || fstat(fd, &info) != 0) {
    Status status(Code::kInvalid, "ELF01", "cannot read " + path, std::strerror(errno), "make it readable for you");
    if (fd >= 0) close(fd);
    return status;
  }
  if (info.st_size == 0) {
    close(fd);
    read({});
    return {};
  }
  std::size_t size = static_cast<std::size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (memory == MAP_FAILED)
    return Status(Code::kInvalid, "ELF01", "cannot map " + path, std::strerror(error), "is it whole, and is there memory for it?");
  read({static_cast<const char*>(memory), size});
  munmap(memory, size);
  return {};
}

}  // namespace ropewalk::job
