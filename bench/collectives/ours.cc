// The contestant of the house: ranks as processes that connect as those of a gang do.
//
// usage: bench_allreduce RANKS shared|tcp SECONDS_OF_SIZE [ALGORITHM]     lines of JSON, then the interpreter's steps of rank 0
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "bench/collectives/sweep.h"
#include "mlrunner/collective/communicator.h"

using ropewalk::Result;
using ropewalk::Status;
namespace collective = ropewalk::collective;

namespace {

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(1);
}

// Words of a fixed length are enough here.
constexpr std::size_t kWordBytes = 4096;

bool Transfer(bool out, int fd, char* bytes, std::size_t length) {
  for (std::size_t at = 0; at < length;) {
    const ssize_t n = out ? write(fd, bytes + at, length - at) : read(fd, bytes + at, length - at);
    if (n <= 0) return false;
    at += static_cast<std::size_t>(n);
  }
  return true;
}

std::vector<std::string> Exchange(int hub, std::string mine, int ranks) {
  const auto length = static_cast<std::uint32_t>(mine.size());
  std::string word(kWordBytes, '\0');
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

int RunRank(int rank, int ranks, collective::Wire wire, double seconds, const char* algorithm, int hub, sweep::Shared* shared) {
  collective::Rendezvous rendezvous{.rank = rank, .ranks = ranks, .machine = "here"};
  rendezvous.exchange = [&](std::string mine) { return Result<std::vector<std::string>>(Exchange(hub, std::move(mine), ranks)); };
  auto connected = collective::Communicator::Connect(std::move(rendezvous), {.wire = wire});
  Must(connected.ok() ? Status() : connected.status());
  collective::Communicator& all = **connected;
  auto in = all.Allocate(sweep::kBytesMax), out = all.Allocate(sweep::kBytesMax);
  Must(in.ok() ? Status() : in.status());
  Must(out.ok() ? Status() : out.status());
  sweep::Contestant contestant{.rank = rank, .ranks = ranks, .in = reinterpret_cast<float*>(*in), .out = reinterpret_cast<float*>(*out)};
  contestant.meet = [&] { Must(all.Barrier()); };
  contestant.reduce = [&](std::size_t count) {
    Must(all.AllReduce(
        {.in = contestant.in, .out = contestant.out, .count = static_cast<std::int64_t>(count), .name = "bench", .algorithm = algorithm}));
  };
  sweep::Run(contestant, shared, seconds);
  if (rank == 0) std::printf("{\"steps\": %llu}\n", static_cast<unsigned long long>(all.steps()));
  // No path beside the interpreter.
  return all.steps() > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: bench_allreduce RANKS shared|tcp SECONDS_OF_SIZE [ALGORITHM]\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const auto wire = std::strcmp(argv[2], "tcp") == 0 ? collective::Wire::kTcp : collective::Wire::kShared;
  sweep::Shared* shared = sweep::MakeShared();
  std::vector<int> hubs;
  for (int rank = 0; rank < ranks; ++rank) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
    if (fork() == 0) {
      const int code = RunRank(rank, ranks, wire, std::atof(argv[3]), argc > 4 ? argv[4] : "", pair[1], shared);
      std::fflush(stdout);
      _exit(code);
    }
    close(pair[1]);
    hubs.push_back(pair[0]);
  }
  std::string words(kWordBytes * hubs.size(), '\0');
  for (int rank = 0; rank < ranks; ++rank)
    if (!Transfer(false, hubs[rank], words.data() + rank * kWordBytes, kWordBytes)) return 1;
  for (int hub : hubs)
    if (!Transfer(true, hub, words.data(), words.size())) return 1;
  int worst = 0;
  for (int rank = 0, status = 0; rank < ranks && wait(&status) > 0; ++rank) worst |= status;
  return worst == 0 ? 0 : 1;
}
