// Who does not know the secret gets nowhere, and keeps nobody out.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

struct Listener {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(sockaddr_storage);
};

// The sockets of this process that listen, in this family.
std::vector<Listener> Listening(sa_family_t family) {
  std::vector<Listener> found;
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    Listener one;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&one.address), &one.bytes) == 0 && one.address.ss_family == family)
      found.push_back(one);
  }
  return found;
}

int ConnectTo(const Listener& to) {
  const int fd = socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to.address), to.bytes), 0) << std::strerror(errno);
  return fd;
}

// The hello of rank 1 to rank 0 as mesh.cc has it.
std::string Hello() {
  std::string hello(40, '\0');
  const std::uint32_t magic = 0x4c4c4548, from = 1;
  const std::uint16_t version = 3;
  std::memcpy(hello.data(), &magic, 4);
  std::memcpy(hello.data() + 4, &version, 2);
  std::memcpy(hello.data() + 12, &from, 4);
  return hello;
}

TEST(Strangers, WhoSaysNothingOrCannotProveIsNotOneOfTheRanks) {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    Meeting meeting(2);
    std::vector<int> strangers;
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        Rendezvous rendezvous = meeting.Of(rank);
        auto exchange = rendezvous.exchange;
        rendezvous.exchange = [&, rank](std::string mine) {
          auto all = exchange(std::move(mine));
          if (rank == 0)
            // Both ranks listen now, and the strangers come first: some are silent, some talk nonsense, some prove wrongly, some go.
            for (const Listener& listener : Listening(wire == Wire::kTcp ? AF_INET : AF_UNIX))
              for (int i = 0; i < 100; ++i) {
                const int fd = ConnectTo(listener);
                const std::string said = i % 4 == 1 ? std::string(200, 'x') : i % 4 == 2 ? Hello() + std::string(32, 'p') : "";
                EXPECT_EQ(send(fd, said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
                if (i % 4 == 3)
                  close(fd);
                else
                  strangers.push_back(fd);
              }
          meeting.Barrier(rank);
          return all;
        };
        auto all = Communicator::Connect(std::move(rendezvous), Over(wire));
        ASSERT_TRUE(all.ok()) << all.status().ToString();
        std::vector<float> x(1000, 1);
        Status status = (*all)->AllReduce({.in = x.data(), .out = x.data(), .count = 1000, .name = "x"});
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(x[999], 2);
        meeting.Barrier(rank);
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(strangers.empty());
    // All are closed by now, and none has heard more than a challenge.
    for (int fd : strangers) {
      char bytes[4096];
      std::size_t heard = 0;
      for (ssize_t n; (n = recv(fd, bytes, sizeof(bytes), 0)) > 0;) heard += static_cast<std::size_t>(n);
      EXPECT_LE(heard, 48u);
      close(fd);
    }
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
