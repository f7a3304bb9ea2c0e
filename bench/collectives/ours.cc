// The contestant of the house: ranks as processes that connect as those of a gang do.
//
// usage: bench_allreduce RANKS shared|tcp SECONDS_OF_SIZE [ALGORITHM]     lines of JSON
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/collectives/sweep.h"
#include "bench/hub.h"
#include "bench/must.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/call_steps.h"

using ropewalk::Result;
namespace bench = ropewalk::bench;
namespace collective = ropewalk::collective;

using bench::Must;

namespace {

int RunRank(int rank, int ranks, collective::Wire wire, double seconds, const char* algorithm, int hub, sweep::Shared* shared) {
  collective::Rendezvous rendezvous{.rank = rank, .ranks = ranks, .machine = "here"};
  rendezvous.exchange = [&](const std::string& mine) { return Result<std::vector<std::string>>(bench::Exchange(hub, mine, ranks)); };
  const auto connected = Must(collective::Communicator::Connect(std::move(rendezvous), {.wire = wire}));
  collective::Communicator& all = *connected;
  char *const in = Must(all.Allocate(sweep::kBytesMax)), *const out = Must(all.Allocate(sweep::kBytesMax));
  sweep::Contestant contestant{.rank = rank, .ranks = ranks, .in = reinterpret_cast<float*>(in), .out = reinterpret_cast<float*>(out)};
  contestant.meet = [&] { Must(all.Barrier()); };
  auto sum_of = [&](std::size_t count) -> collective::CollectiveCall {
    return {.in = contestant.in, .out = contestant.out, .count = static_cast<std::int64_t>(count), .name = "bench", .algorithm = algorithm};
  };
  contestant.reduce = [&](std::size_t count) { Must(all.AllReduce(sum_of(count))); };
  contestant.steps = [&] { return all.steps(); };
  contestant.steps_of = [&](std::size_t count) { return Must(collective::StepsOf(all, sum_of(count))); };
  sweep::Run(contestant, shared, seconds);
  return 0;
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
  std::string words(bench::kWordBytes * hubs.size(), '\0');
  for (int rank = 0; rank < ranks; ++rank)
    if (!bench::Transfer(false, hubs[rank], words.data() + rank * bench::kWordBytes, bench::kWordBytes)) return 1;
  for (int hub : hubs)
    if (!bench::Transfer(true, hub, words.data(), words.size())) return 1;
  int worst = 0;
  for (int rank = 0, status = 0; rank < ranks && wait(&status) > 0; ++rank) worst |= status;
  return worst == 0 ? 0 : 1;
}
