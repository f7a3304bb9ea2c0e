// gloo over TCP, ranks as processes; the algorithm is the one that the driver finds fastest.
//
// usage: gloo RANKS ring|bcube SECONDS_OF_SIZE
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "bench/collectives/sweep.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: gloo RANKS ring|bcube SECONDS_OF_SIZE\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const auto algorithm =
      std::strcmp(argv[2], "ring") == 0 ? gloo::AllreduceOptions::Algorithm::RING : gloo::AllreduceOptions::Algorithm::BCUBE;
  char folder[] = "/tmp/ropewalk-bench-gloo-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  sweep::Shared* shared = sweep::MakeShared();
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
    sweep::Contestant contestant{.rank = rank,
                                 .ranks = ranks,
                                 .in = static_cast<float*>(std::malloc(sweep::kBytesMax)),
                                 .out = static_cast<float*>(std::malloc(sweep::kBytesMax))};
    contestant.meet = [&] {
      gloo::BarrierOptions options(context);
      gloo::barrier(options);
    };
    contestant.reduce = [&](std::size_t count) {
      gloo::AllreduceOptions options(context);
      options.setInput(contestant.in, count);
      options.setOutput(contestant.out, count);
      options.setAlgorithm(algorithm);
      options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) { gloo::sum<float>(out, a, b, n); });
      gloo::allreduce(options);
    };
    sweep::Run(contestant, shared, std::atof(argv[3]));
    _exit(0);
  }
  int worst = 0;
  for (int rank = 0, status = 0; rank < ranks && wait(&status) > 0; ++rank) worst |= status;
  const std::string command = std::string("rm -rf ") + folder;
  return std::system(command.c_str()) == 0 && worst == 0 ? 0 : 1;
}
