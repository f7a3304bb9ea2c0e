// Ranks of a bench that live in network namespaces, each in its own, which the bench's driver has made (bench/namespaces.py); and what a
// lone stream between two of them moves. Without namespaces all share this machine's loopback.
//
// Thread rule: functions only.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/hub.h"
#include "bench/must.h"

namespace ropewalk::bench {

inline void MustSystem(bool is_well, const std::string& what) {
  if (!is_well) Must(Status(Code::kUnavailable, "BENCH07", what, std::strerror(errno), "run it by the run.py of its folder, as root"));
}

inline double NowMs() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// KEY=VALUE...; of which `ranks`, and `namespaces`: rank r lives in the network namespace NAME-r at 10.77.r.2.
struct Setup {
  std::map<std::string, std::string> keys;

  static Setup Of(int argc, char** argv, int first) {
    Setup setup;
    for (int i = first; i < argc; ++i) {
      const std::string argument = argv[i];
      const std::size_t at = argument.find('=');
      if (at != std::string::npos) setup.keys[argument.substr(0, at)] = argument.substr(at + 1);
    }
    return setup;
  }
  std::int64_t Number(const std::string& key, std::int64_t otherwise) const {
    auto found = keys.find(key);
    return found == keys.end() ? otherwise : std::atoll(found->second.c_str());
  }
  double Real(const std::string& key, double otherwise) const {
    auto found = keys.find(key);
    return found == keys.end() ? otherwise : std::atof(found->second.c_str());
  }
  std::string Text(const std::string& key) const {
    auto found = keys.find(key);
    return found == keys.end() ? "" : found->second;
  }
  int ranks() const { return static_cast<int>(Number("ranks", 4)); }
  bool has_namespaces() const { return keys.contains("namespaces"); }
  std::string Address(int rank) const { return has_namespaces() ? fmt::format("10.77.{}.2", rank) : "127.0.0.1"; }
};

inline int Say(const std::string& line) {
  // In one piece: lines of two ranks must not mix.
  return write(1, line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1;
}

// Each rank in turn sends to the next one, from first byte received to last; nothing else is on its way.
inline int LinkRank(const Setup& setup, int rank, int hub) {
  const int ranks = setup.ranks();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, setup.Address(rank).c_str(), &address.sin_addr);
  socklen_t length = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  MustSystem(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener, 1) == 0 &&
                 getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0,
             "listening on " + setup.Address(rank));
  const std::vector<std::string> ports = Exchange(hub, std::to_string(ntohs(address.sin_port)), ranks);
  constexpr std::size_t kBulkBytes = std::size_t{64} << 20;
  std::vector<char> bytes(1 << 20);
  double gbit_per_s = 0;
  for (int from = 0; from < ranks; ++from) {
    const int to = (from + 1) % ranks;
    Exchange(hub, "", ranks);
    if (rank == from) {
      inet_pton(AF_INET, setup.Address(to).c_str(), &address.sin_addr);
      address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(ports[to].c_str())));
      const int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      MustSystem(connect(out, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "connecting to " + setup.Address(to));
      for (std::size_t sent = 0; sent < kBulkBytes; sent += bytes.size())
        MustSystem(Transfer(true, out, bytes.data(), bytes.size()), "sending");
      close(out);
    } else if (rank == to) {
      const int in = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      double begin_ms = 0;
      std::size_t got = 0, before = 0;
      for (ssize_t n; (n = read(in, bytes.data(), bytes.size())) > 0; got += static_cast<std::size_t>(n))
        // What a bucket of tokens has saved is gone by then.
        if (begin_ms == 0 && got > kBulkBytes / 8) begin_ms = NowMs(), before = got + static_cast<std::size_t>(n);
      MustSystem(got == kBulkBytes, "receiving");
      gbit_per_s = static_cast<double>(got - before) * 8e-6 / (NowMs() - begin_ms);
      close(in);
    }
  }
  close(listener);
  return Say(fmt::format("{{\"rank\": {}, \"received_gbit_per_s\": {:.4f}}}\n", rank, gbit_per_s));
}

// In a network of its own, where the driver has made one.
inline void Enter(const Setup& setup, int rank) {
  if (!setup.has_namespaces()) return;
  const std::string path = fmt::format("/run/netns/{}-{}", setup.keys.at("namespaces"), rank);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  MustSystem(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "entering the network namespace " + path);
  close(fd);
}

}  // namespace ropewalk::bench
