#include "rpc/token.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "rpc/channel.h"

namespace ropewalk::rpc {
namespace {

constexpr std::size_t kTokenBytesMin = 32;  // hex digits: 128 bits at the least
constexpr std::size_t kTokenBytesMax = 512;

Status Unusable(const std::string& path, std::string why, std::string fix) {
  return {Code::kUnauthenticated, "AUTH02", "token file " + path, std::move(why), std::move(fix)};
}

Status CannotWrite(const std::string& path) {
  return {Code::kUserError, "AUTH03", "token file " + path + " cannot be written", std::strerror(errno),
          "name a writable place with --token-file"};
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

Result<std::string> ReadTokenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) {
    return Unusable(path, std::strerror(errno),
                    errno == ENOENT ? "give the master's token file with --token-file or ROPEWALK_TOKEN_FILE" : "read it as its owner");
  }
  struct stat info{};
  char text[kTokenBytesMax + 1];
  ssize_t n = -1;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    do n = read(fd, text, sizeof text);
    while (n < 0 && errno == EINTR);
  }
  close(fd);
  if (!S_ISREG(info.st_mode)) return Unusable(path, "it is no regular file", "name the file that the master wrote");
  if ((info.st_mode & 077) != 0) return Unusable(path, "others than its owner may use it", "chmod 600 " + path);
  // Root's file is as good as ours: only root could have put it there.
  if (info.st_uid != geteuid() && info.st_uid != 0) return Unusable(path, "it belongs to another user", "copy it and chmod 600 the copy");
  std::string token(text, n < 0 ? 0 : static_cast<std::size_t>(n));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax) {
    return Unusable(path, "it holds no token (" + std::to_string(kTokenBytesMin) + " to " + std::to_string(kTokenBytesMax) + " bytes)",
                    "remove it and start the master again: it writes a new one");
  }
  return token;
}

Result<std::string> ReadOrCreateTokenFile(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return ReadTokenFile(path);
  unsigned char random[32];
  if (getrandom(random, sizeof random, 0) != sizeof random) return CannotWrite(path);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : random) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  text += '\n';
  // Written beside and linked: a reader never sees half a token, and of two that start at once one wins and both use its token.
  const std::string beside = path + "." + std::to_string(getpid());
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return CannotWrite(path);
  const bool written = WriteAll(fd, text) && fsync(fd) == 0;
  close(fd);
  const bool linked = written && (link(beside.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const Status failure = linked ? Status() : CannotWrite(path);
  unlink(beside.c_str());
  RETURN_IF_ERROR(failure);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (const int dir = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
    (void)fsync(dir);  // a token lost with the machine is written anew
    close(dir);
  }
  return ReadTokenFile(path);
}

}  // namespace ropewalk::rpc
