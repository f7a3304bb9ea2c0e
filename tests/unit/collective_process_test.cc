// Ranks as processes: memory that is mapped by all, TCP on the loopback interface, and ranks that are killed in the middle.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/run/instance.h"
#include "mlrunner/collective/run/shared_transport.h"
#include "mlrunner/collective/run/tcp_transport.h"

namespace ropewalk::collective {
namespace {

constexpr std::int64_t kCount = 10'007;
constexpr int kLost = 42;

// Runs allreduces until `rounds` are done or one fails; the exit code of the child says which.
int Allreduce(Transport& transport, const std::string& algorithm, std::int32_t rank, std::int32_t ranks, int rounds, int started) {
  auto plan = BuildProgram(algorithm, {.dtype = Dtype::kI64, .ranks = ranks, .channels = 1, .segment_bytes = 4096}, rank);
  if (!plan.ok()) return 2;
  auto* data = reinterpret_cast<std::int64_t*>(transport.Allocate(kCount * 8));
  auto instance = Instance::Make(&plan->header, &plan->program, {.count = kCount}, &transport);
  if (data == nullptr || !instance.ok()) return 3;
  if (!(*instance)->Bind(std::vector<void*>{data, data}).ok()) return 3;
  for (int round = 0; rounds == 0 || round < rounds; ++round) {
    for (std::int64_t i = 0; i < kCount; ++i) data[i] = i * (rank + 1) + round;
    Status status = (*instance)->Run();
    if (!status.ok()) return status.tag() == "COLL20" && status.what() == "rank 1 is lost" ? kLost : 4;
    std::int64_t all = ranks * (ranks + 1) / 2;
    for (std::int64_t i = 0; i < kCount; ++i)
      if (data[i] != i * all + std::int64_t{round} * ranks) return 5;
    if (round == 0 && started >= 0 && write(started, "x", 1) != 1) return 6;
  }
  return 0;
}

// One process a rank; `body` makes its exit code. With `kill_rank_1`, that rank is killed once all have begun, and `tell` is called.
std::vector<int> RunProcesses(std::int32_t ranks, bool kill_rank_1, const std::function<int(std::int32_t rank, int started)>& body,
                              const std::function<void()>& in_parent, const std::function<void()>& tell) {
  int pipe_fds[2];
  EXPECT_EQ(pipe(pipe_fds), 0);
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    pid_t pid = fork();
    if (pid == 0) {
      close(pipe_fds[0]);
      _exit(body(rank, pipe_fds[1]));
    }
    children.push_back(pid);
  }
  close(pipe_fds[1]);
  in_parent();
  if (kill_rank_1) {
    char byte;
    for (std::int32_t n = 0; n < ranks; ++n) EXPECT_EQ(read(pipe_fds[0], &byte, 1), 1);
    kill(children[1], SIGKILL);
    tell();
  }
  std::vector<int> codes;
  for (pid_t pid : children) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  close(pipe_fds[0]);
  return codes;
}

std::vector<int> RunShared(const std::string& algorithm, std::int32_t ranks, bool kill_rank_1) {
  constexpr std::size_t kPoolBytes = 1 << 20;
  auto memory = SharedMemory::Create(Board::BytesFor(ranks, 2));
  EXPECT_TRUE(memory.ok());
  Board board(memory->data(), ranks, 2);
  std::vector<SharedMemory> pools;
  std::vector<char*> begins;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    auto pool = SharedMemory::Create(kPoolBytes);
    EXPECT_TRUE(pool.ok());
    pools.push_back(*std::move(pool));
  }
  auto body = [&](std::int32_t rank, int started) {
    // As if the descriptors had come by message: each process maps them at places of its own.
    std::vector<SharedMemory> mine;
    std::vector<char*> places;
    for (const SharedMemory& pool : pools) {
      auto mapped = SharedMemory::Open(dup(pool.fd()), kPoolBytes);
      if (!mapped.ok()) return 7;
      places.push_back(mapped->data());
      mine.push_back(*std::move(mapped));
    }
    SharedTransport transport(rank, board, places, kPoolBytes);
    return Allreduce(transport, algorithm, rank, ranks, kill_rank_1 ? 0 : 30, started);
  };
  return RunProcesses(ranks, kill_rank_1, body, [] {}, [&] { SharedTransport::Abort(board, 1); });
}

// A connected pair of TCP sockets on the loopback interface.
std::pair<int, int> Connected() {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  int a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(a, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  int b = accept(listener, nullptr, nullptr);
  close(listener);
  return {a, b};
}

std::vector<int> RunTcp(const std::string& algorithm, std::int32_t ranks, bool kill_rank_1) {
  constexpr std::int32_t kChannels = 2;
  std::vector<std::vector<int>> sockets(ranks, std::vector<int>(static_cast<std::size_t>(ranks * kChannels), -1));
  for (std::int32_t a = 0; a < ranks; ++a)
    for (std::int32_t b = a + 1; b < ranks; ++b)
      for (std::int32_t channel = 0; channel < kChannels; ++channel)
        std::tie(sockets[a][b * kChannels + channel], sockets[b][a * kChannels + channel]) = Connected();
  auto close_all_but = [&](std::int32_t keep) {
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      for (int fd : sockets[rank])
        if (rank != keep && fd >= 0) close(fd);
  };
  auto body = [&](std::int32_t rank, int started) {
    close_all_but(rank);  // or a killed rank's connections stay open in the others
    TcpTransport transport(rank, ranks, kChannels, sockets[rank], {.job_epoch = 5, .ranks_on_machine = ranks});
    return Allreduce(transport, algorithm, rank, ranks, kill_rank_1 ? 0 : 30, started);
  };
  return RunProcesses(ranks, kill_rank_1, body, [&] { close_all_but(-1); }, [] {});
}

TEST(Processes, ReduceFromEachOthersMappedMemory) {
  for (const char* algorithm : {"direct", "ring", "recursive_doubling", "chain"})
    for (std::int32_t ranks : {2, 3}) EXPECT_EQ(RunShared(algorithm, ranks, false), std::vector<int>(ranks, 0)) << algorithm;
}

TEST(Processes, ReduceOverTcp) {
  for (const char* algorithm : {"direct", "ring", "recursive_doubling", "chain"})
    for (std::int32_t ranks : {2, 3}) EXPECT_EQ(RunTcp(algorithm, ranks, false), std::vector<int>(ranks, 0)) << algorithm;
}

TEST(Processes, AKilledRankFreesTheOthersWhoNameIt) {
  EXPECT_EQ(RunShared("ring", 3, true), (std::vector<int>{kLost, 128 + SIGKILL, kLost}));
  // Over TCP the one that notices ends the others' waiting by its own name, so only those who spoke with the dead rank name it.
  std::vector<int> codes = RunTcp("direct", 3, true);
  EXPECT_EQ(codes[1], 128 + SIGKILL);
  for (std::int32_t rank : {0, 2}) EXPECT_TRUE(codes[rank] == kLost || codes[rank] == 4) << codes[rank];
  EXPECT_TRUE(codes[0] == kLost || codes[2] == kLost);
}

}  // namespace
}  // namespace ropewalk::collective
