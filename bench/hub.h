// What the ranks of one run of a bench say to each other before they are connected: words over a socket to the parent, which hears one of
// each rank and then gives all of them to all. A rank that cannot go on ends its process.
//
// Thread rule: functions only.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace ropewalk::bench {

// Words of a fixed length are enough here.
constexpr std::size_t kWordBytes = 4096;

inline bool Transfer(bool out, int fd, char* bytes, std::size_t length) {
  for (std::size_t at = 0; at < length;) {
    const ssize_t n = out ? write(fd, bytes + at, length - at) : read(fd, bytes + at, length - at);
    if (n <= 0) return false;
    at += static_cast<std::size_t>(n);
  }
  return true;
}

inline std::vector<std::string> Exchange(int hub, const std::string& mine, int ranks) {
  const auto length = static_cast<std::uint32_t>(mine.size());
  std::string word(kWordBytes, '\0');
  if (length + 4 > kWordBytes) std::_Exit(1);
  std::memcpy(word.data(), &length, 4);
  std::memcpy(word.data() + 4, mine.data(), mine.size());
  bool is_well = Transfer(true, hub, word.data(), kWordBytes);
  std::vector<std::string> all;
  for (int r = 0; r < ranks; ++r) {
    is_well = is_well && Transfer(false, hub, word.data(), kWordBytes);
    std::uint32_t theirs = 0;
    std::memcpy(&theirs, word.data(), 4);
    all.push_back(word.substr(4, theirs));
  }
  if (!is_well) std::_Exit(1);
  return all;
}

// Starts the ranks as processes and passes on what they exchange, until all have ended.
template <class F>
int RunRanks(int ranks, F run) {
  std::vector<int> hubs;
  for (int rank = 0; rank < ranks; ++rank) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
    if (fork() == 0) {
      for (int hub : hubs) close(hub);
      close(pair[0]);
      const int code = run(rank, pair[1]);
      std::fflush(stdout);
      _exit(code);
    }
    close(pair[1]);
    hubs.push_back(pair[0]);
  }
  std::string words(kWordBytes * hubs.size(), '\0');
  for (bool goes_on = true; goes_on;) {
    for (int rank = 0; goes_on && rank < ranks; ++rank) goes_on = Transfer(false, hubs[rank], words.data() + rank * kWordBytes, kWordBytes);
    for (int rank = 0; goes_on && rank < ranks; ++rank) goes_on = Transfer(true, hubs[rank], words.data(), words.size());
  }
  for (int hub : hubs) close(hub);
  int worst = 0;
  for (int rank = 0, status = 0; rank < ranks && wait(&status) > 0; ++rank) worst |= status;
  return worst == 0 ? 0 : 1;
}

}  // namespace ropewalk::bench
